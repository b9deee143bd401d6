"""Credits: granted once, set aside with the job, spent with the step, given back at the end, and never overspent."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from collections.abc import Callable

from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits, KeyConflict
from holdfast.domain.job import Account, CreditEntry, Flow, JobRecord, State
from holdfast.domain.moments import HOUR, SECOND
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Query
from holdfast.testing.lab import FLAKY, HOPELESS, RETENTION, Lab, Stored

_TENANT = "acme"


def an_account_opens_with_its_first_grant(lab: Lab) -> None:
    assert lab.store.account(_TENANT) is None
    assert (lab.store.accounts(), lab.store.entries(_TENANT, 10)) == ([], [])
    assert lab.store.grant(_TENANT, 10, "g-1") == Account(_TENANT, 10, 0, 0)
    lab.clock.advance(seconds=1)
    assert lab.store.grant(_TENANT, 5, "g-2") == lab.store.account(_TENANT) == Account(_TENANT, 15, 0, 0)
    now = lab.clock.now()
    assert lab.store.entries(_TENANT, 10) == [
        CreditEntry(_TENANT, "grant", None, 0, "g-2", 5, 0, 0, now),
        CreditEntry(_TENANT, "grant", None, 0, "g-1", 10, 0, 0, now - SECOND),
    ]


def a_grant_of_the_same_id_counts_once(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    for amount in (10, 7, -3):
        assert lab.other.grant(_TENANT, amount, "g-1") == Account(_TENANT, 10, 0, 0)
    assert lab.store.grant("other", 7, "g-1") == Account("other", 7, 0, 0)
    assert len(lab.store.entries(_TENANT, 10)) == 1


def accounts_are_listed_by_tenant(lab: Lab) -> None:
    for number, tenant in enumerate(["b", "", "a", "it's"]):
        lab.store.grant(tenant, number, "g")
    assert [account.tenant for account in lab.store.accounts()] == ["", "a", "b", "it's"]
    assert lab.store.account("nobody") is None


def credits_can_be_taken_back_as_far_as_they_are_to_spare(lab: Lab) -> None:
    assert lab.store.grant(_TENANT, -1, "g-0") is None
    assert lab.store.account(_TENANT) is None
    lab.store.grant(_TENANT, 10, "g-1")
    job = _running(lab, 4)
    lab.done(lifecycle.checkpoint(job, "a", None, spend=1))
    before = lab.books()
    assert lab.store.grant(_TENANT, -7, "g-2") is None
    assert lab.books() == before
    assert lab.store.grant(_TENANT, -6, "g-2") == Account(_TENANT, 4, 3, 1)
    assert lab.store.entries(_TENANT, 1)[0].granted == -6


def without_an_account_nothing_is_asked(lab: Lab) -> None:
    job = _running(lab, 5)
    assert job.flow == Flow(estimate=5)
    spent = lab.done(lifecycle.checkpoint(job, "a", None, spend=3))
    assert spent.flow == Flow(estimate=5, spent=3)
    assert lab.done(lifecycle.complete(spent, None, RETENTION)).flow == Flow(estimate=5, spent=3)
    assert (lab.store.account(_TENANT), lab.store.entries(_TENANT, 10)) == (None, [])


def an_account_that_opens_late_pays_from_then_on(lab: Lab) -> None:
    job = _running(lab, 5)
    lab.done(lifecycle.checkpoint(job, "a", None, spend=3))
    lab.store.grant(_TENANT, 2, "g-1")
    spent = lab.done(lifecycle.checkpoint(lab.read(job), "b", None, spend=2))
    assert (spent.flow, lab.store.account(_TENANT)) == (Flow(estimate=5, spent=5), Account(_TENANT, 2, 0, 2))
    lab.refused(lifecycle.complete(spent, None, RETENTION, spend=1), Answer.UNPAID)
    lab.done(lifecycle.complete(spent, None, RETENTION))


def an_enqueued_job_sets_its_credits_aside(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    jobs = lab.insert(*(lab.new(tenant=_TENANT, credits=number) for number in (3, 0, 4)))
    assert [job.flow for job in jobs] == [Flow(estimate=3, reserved=3), None, Flow(estimate=4, reserved=4)]
    assert [lab.read(job) for job in jobs] == jobs
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 7, 0)
    entries = lab.store.entries(_TENANT, 2)
    now = lab.clock.now()
    assert sorted(entries) == sorted(
        CreditEntry(_TENANT, "reserve", job.id, 1, None, 0, number, 0, now)
        for job, number in ((jobs[0], 3), (jobs[2], 4))
    )
    _adds_up(lab)


def a_group_is_paid_for_whole_or_not_stored(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    before = lab.books()
    ids = lab.ids.take(8)
    costly = lab.new(tenant=_TENANT, credits=6)
    [refused] = lab.store.insert([[(ids[0], lab.new(key="k")), (ids[1], costly), (ids[2], costly)]])
    assert isinstance(refused, InsufficientCredits)
    assert _TENANT in str(refused)
    assert lab.store.read(ids[:3]) == [None] * 3
    assert lab.books() == before
    assert not lab.accepted([lab.new(key="k", payload='"else"')])[0].duplicate, "a refused group leaves its keys free"
    answers = lab.store.insert(
        [
            [(ids[3], costly)],
            [(ids[4], costly)],
            [(ids[5], lab.new(tenant=_TENANT)), (ids[6], costly)],
            [(ids[7], lab.new())],
        ]
    )
    assert [isinstance(answer, list) for answer in answers] == [True, False, False, True]
    assert [job is not None for job in lab.store.read(ids[3:])] == [True, False, False, False, True]
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 6, 0)
    _adds_up(lab)


def a_group_of_several_tenants_asks_each(lab: Lab) -> None:
    lab.store.grant("a", 5, "g")
    lab.store.grant("b", 1, "g")
    news = [lab.new(tenant=tenant, credits=2) for tenant in ("a", "b", "c")]
    [refused] = lab.store.insert([list(zip(lab.ids.take(3), news, strict=True))])
    assert isinstance(refused, InsufficientCredits)
    lab.store.grant("b", 1, "h")
    lab.insert(*news)
    assert lab.store.accounts() == [Account("a", 5, 2, 0), Account("b", 2, 2, 0)]


def a_job_that_is_there_already_sets_nothing_aside(lab: Lab) -> None:
    lab.store.grant(_TENANT, 5, "g-1")
    group = [(lab.ids.take(1)[0], lab.new(tenant=_TENANT, credits=3, key="k"))]
    lab.store.insert([group])
    before = lab.books()
    lab.store.insert([group])
    [again] = lab.accepted([lab.new(tenant=_TENANT, credits=3, key="k")])
    assert again.duplicate
    [conflict] = lab.store.insert([[(lab.ids.take(1)[0], lab.new(tenant=_TENANT, credits=1, key="k", payload="2"))]])
    assert isinstance(conflict, KeyConflict)
    assert lab.books() == before


def a_refused_request_leaves_its_key_to_be_asked_for_again(lab: Lab) -> None:
    lab.store.grant(_TENANT, 1, "g-1")
    new = lab.new(tenant=_TENANT, credits=3, key="k")
    [refused] = lab.store.insert([[(lab.ids.take(1)[0], new)]])
    assert isinstance(refused, InsufficientCredits)
    lab.store.grant(_TENANT, 2, "g-2")
    [stored] = lab.accepted([new])
    assert not stored.duplicate
    assert lab.accepted([new]) == [Stored(stored.job, duplicate=True)]


def a_step_spends_first_what_was_set_aside(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    job = _running(lab, 5)
    assert lab.done(lifecycle.checkpoint(job, "a", None, spend=3)).flow == Flow(estimate=5, reserved=2, spent=3)
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 2, 3)
    [entry] = lab.store.entries(_TENANT, 1)
    assert entry == CreditEntry(_TENANT, "checkpoint", job.id, 1, "a", 0, -3, 3, lab.clock.now())
    assert lab.done(lifecycle.checkpoint(lab.read(job), "b", None, spend=4)).flow == Flow(estimate=5, spent=7)
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 0, 7)
    lab.refused(lifecycle.checkpoint(lab.read(job), "c", None, spend=4), Answer.UNPAID)
    lab.done(lifecycle.checkpoint(lab.read(job), "c", None, spend=3))
    _adds_up(lab)


def a_step_is_paid_for_once(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    job = _running(lab, 5)
    move = lifecycle.checkpoint(job, "a", None, spend=3)
    assert lab.store.commit([move, move]) == [Answer.OK, Answer.OK]
    lab.refused(move, Answer.OK)
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 2, 3)


def a_move_that_cannot_be_paid_changes_nothing(lab: Lab) -> None:
    lab.store.grant(_TENANT, 6, "g-1")
    job = _running(lab, 5)
    child = ((lab.ids.take(1)[0], lab.new(tenant=_TENANT, parent=job.id, credits=2)),)
    for move in (
        lifecycle.checkpoint(job, "a", "1", spend=7),
        lifecycle.complete(job, None, RETENTION, spend=7),
        lifecycle.suspend(job, "~wait", "1", spend=7, awaits="go"),
        lifecycle.suspend(job, "~gather", "1", awaits="children", children=child),
    ):
        lab.refused(move, Answer.UNPAID)
    lab.done(lifecycle.checkpoint(job, "a", "1", spend=6))
    _adds_up(lab)


def what_cannot_be_paid_does_not_hold_up_the_rest_of_a_commit(lab: Lab) -> None:
    lab.store.grant(_TENANT, 5, "g-1")
    lab.jobs(4, tenant=_TENANT)
    jobs = lab.claim(4)
    moves = [
        lifecycle.checkpoint(jobs[0], "a", None, spend=3),
        lifecycle.checkpoint(jobs[1], "a", None, spend=3),
        lifecycle.checkpoint(jobs[2], "a", None),
        lifecycle.checkpoint(jobs[3], "a", None, spend=2),
        lifecycle.complete(jobs[2], None, RETENTION),
    ]
    assert lab.store.commit(moves) == [Answer.OK, Answer.UNPAID, Answer.OK, Answer.OK, Answer.OK]
    assert lab.store.account(_TENANT) == Account(_TENANT, 5, 0, 5)
    assert [len(lab.store.steps(job.id)) for job in jobs] == [1, 0, 1, 1]
    _adds_up(lab)


def what_one_move_gives_back_the_next_may_spend(lab: Lab) -> None:
    lab.store.grant(_TENANT, 5, "g-1")
    first = _running(lab, 5)
    second = _running(lab, 0)
    spend = lifecycle.checkpoint(second, "a", None, spend=4)
    assert lab.store.commit([spend, lifecycle.complete(first, None, RETENTION), spend]) == [
        Answer.UNPAID,
        Answer.OK,
        Answer.OK,
    ]
    assert lab.store.account(_TENANT) == Account(_TENANT, 5, 0, 4)


def every_end_gives_back_what_is_left(lab: Lab) -> None:
    lab.store.grant(_TENANT, 100, "g-1")
    for end in (_complete, _fail, _settle_cancel, _cancel, _crash, _expire, _undo):
        before = lab.store.account(_TENANT)
        job = lab.job(tenant=_TENANT, credits=5, crash_cap=1, expires_after=HOUR)
        held = lab.done(lifecycle.checkpoint(lab.take(job), "a", None, spend=2, undoable=end is _undo))
        assert lab.store.account(_TENANT) == before._replace(reserved=3, spent=before.spent + 2)  # type: ignore[union-attr]
        ended = end(lab, held)
        assert ended.flow == Flow(estimate=5, spent=2), end.__name__
        assert lab.store.account(_TENANT) == before._replace(spent=before.spent + 2)  # type: ignore[union-attr]
        [entry] = lab.store.entries(_TENANT, 1)
        assert (entry.job_id, entry.reserved, entry.spent) == (job.id, -3, 0)
        assert lab.store.purge(10).jobs == 0
    _adds_up(lab)


def a_settlement_asked_again_gives_back_once(lab: Lab) -> None:
    lab.store.grant(_TENANT, 9, "g-1")
    job = _running(lab, 5)
    move = lifecycle.complete(job, None, RETENTION, spend=1)
    assert lab.store.commit([move, move]) == [Answer.OK, Answer.OK]
    lab.refused(move, Answer.OK)
    assert lab.store.account(_TENANT) == Account(_TENANT, 9, 0, 1)


def completions_of_many_jobs_settle_their_credits(lab: Lab) -> None:
    lab.store.grant(_TENANT, 100, "g-1")
    lab.insert(*(lab.new(tenant=_TENANT, credits=number % 3) for number in range(9)))
    lab.jobs(3)
    held = lab.claim(20)
    assert lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in held]) == [Answer.OK] * 12
    assert lab.store.account(_TENANT) == Account(_TENANT, 100, 0, 0)
    _adds_up(lab)


def a_job_that_goes_on_keeps_what_was_set_aside(lab: Lab) -> None:
    lab.store.grant(_TENANT, 9, "g-1")
    job = _running(lab, 5)
    before = lab.store.account(_TENANT)
    failed = lab.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    lab.clock.advance(minutes=1)
    back = lab.done(lifecycle.release(lab.take(failed)))
    lab.done(lifecycle.signal(back, "s-1", "go", None))
    assert lab.store.account(_TENANT) == before
    assert lab.read(job).flow == Flow(estimate=5, reserved=5, signals=1)


def children_set_their_credits_aside(lab: Lab) -> None:
    lab.store.grant(_TENANT, 10, "g-1")
    job = _running(lab, 4)
    children = tuple((id_, lab.new(tenant=_TENANT, parent=job.id, credits=3)) for id_ in lab.ids.take(2))
    lab.done(lifecycle.suspend(job, "~gather", None, awaits="children", children=children))
    assert [child.flow for child in lab.store.find(Query(parent=job.id))] == [Flow(estimate=3, reserved=3)] * 2
    assert lab.store.account(_TENANT) == Account(_TENANT, 10, 10, 0)
    _adds_up(lab)


def children_of_a_tenant_without_an_account_cost_nothing(lab: Lab) -> None:
    job = lab.running()
    child = (lab.ids.take(1)[0], lab.new(parent=job.id, credits=3))
    lab.done(lifecycle.suspend(job, "~gather", None, awaits="children", children=(child,)))
    assert [each.flow for each in lab.store.find(Query(parent=job.id))] == [Flow(estimate=3)]


def a_redriven_job_spends_from_the_account(lab: Lab) -> None:
    lab.store.grant(_TENANT, 9, "g-1")
    dead = lab.done(lifecycle.fail(_running(lab, 5), HOPELESS, draw=0, retention=RETENTION))
    again = lab.take(lab.done(lifecycle.redrive(dead)))
    assert lab.store.account(_TENANT) == Account(_TENANT, 9, 0, 0)
    lab.done(lifecycle.checkpoint(again, "a", None, spend=2))
    [entry] = lab.store.entries(_TENANT, 1)
    assert (entry.generation, entry.spent, entry.reserved) == (2, 2, 0)
    lab.refused(lifecycle.checkpoint(lab.read(again), "b", None, spend=8), Answer.UNPAID)
    _adds_up(lab)


def entries_are_listed_newest_first(lab: Lab) -> None:
    for number in range(7):
        lab.clock.advance(seconds=1)
        lab.store.grant(_TENANT, number, f"g-{number}")
    assert [entry.granted for entry in lab.store.entries(_TENANT, 3)] == [6, 5, 4]
    assert len(lab.store.entries(_TENANT, 100)) == 7
    assert lab.store.entries("nobody", 3) == []


def the_books_outlive_the_jobs(lab: Lab) -> None:
    lab.store.grant(_TENANT, 9, "g-1")
    lab.done(lifecycle.complete(_running(lab, 5), None, RETENTION, spend=2))
    before = lab.store.entries(_TENANT, 10)
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(10).jobs == 1
    assert lab.store.entries(_TENANT, 10) == before
    assert lab.store.account(_TENANT) == Account(_TENANT, 9, 0, 2)
    assert list(lab.store.check()) == []


def _running(lab: Lab, credits_: int) -> JobRecord:
    return lab.running(tenant=_TENANT, credits=credits_)


def _adds_up(lab: Lab) -> None:
    """Compare each account with its entries and with its jobs."""
    for account in lab.store.accounts():
        entries = lab.store.entries(account.tenant, 10_000)
        sums = (sum(each.granted for each in entries), sum(each.reserved for each in entries))
        assert account == Account(account.tenant, *sums, sum(each.spent for each in entries))
        jobs = lab.store.find(Query(tenant=account.tenant, limit=10_000))
        assert account.reserved == sum(job.flow.reserved for job in jobs if job.flow)
        assert account.available >= 0
    assert list(lab.store.check()) == []


_End = Callable[[Lab, JobRecord], JobRecord]


def _complete(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(lifecycle.complete(job, None, RETENTION))


def _fail(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(_reject(job))


def _settle_cancel(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(lifecycle.settle_cancel(job, RETENTION))


def _cancel(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(lifecycle.cancel(lab.done(lifecycle.release(job)), RETENTION))


def _crash(lab: Lab, job: JobRecord) -> JobRecord:
    lab.done(lifecycle.start(job))
    lab.lapse()
    [dead] = lab.reap()
    assert dead.state is State.DEAD
    return dead


def _expire(lab: Lab, job: JobRecord) -> JobRecord:
    lab.done(lifecycle.release(job))
    lab.clock.advance(hours=1)
    [dead] = lab.reap()
    return dead


def _undo(lab: Lab, job: JobRecord) -> JobRecord:
    ending = lab.done(_reject(job))
    assert ending.flow == Flow(estimate=5, reserved=3, spent=2, undoes=1, ending="dead:rejected")
    return lab.done(lifecycle.undo(lab.take(ending), RETENTION))


def _reject(job: JobRecord) -> Move:
    return lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)
