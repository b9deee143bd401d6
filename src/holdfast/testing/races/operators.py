"""Races with those who do not run jobs: enqueuers, cancellers, redrivers, purgers, leaders."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

import threading
from functools import partial

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim, Page, Refusal, Store
from holdfast.testing.lab import FLAKY, RETENTION, Lab, Stored, stored
from holdfast.testing.races.start import together

_ROUNDS = 30


def two_enqueuers_of_one_key_make_one_job(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        left, right = lab.ids.take(2)
        new = lab.new(key=f"k{round_}")
        answers = together(partial(_insert, lab.store, left, new), partial(_insert, lab.other, right, new))
        first, second = sorted(
            (answer for answer in answers if isinstance(answer, Stored)), key=lambda one: one.duplicate
        )
        assert (first.duplicate, second.duplicate) == (False, True)
        assert first.job == second.job == lab.read(first.job)
        assert [job is not None for job in lab.store.read([left, right])].count(True) == 1


def two_enqueuers_of_one_key_with_two_payloads_meet_one_conflict(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        left, right = lab.ids.take(2)
        news = [lab.new(key=f"k{round_}", payload=payload) for payload in ("1", "2")]
        answers = together(partial(_insert, lab.store, left, news[0]), partial(_insert, lab.other, right, news[1]))
        assert sorted(isinstance(answer, KeyConflict) for answer in answers) == [False, True]
        stored = [job for job in lab.store.read([left, right]) if job]
        assert stored == [answer.job for answer in answers if isinstance(answer, Stored)]


def an_insert_sent_twice_stores_one_job(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        [id_] = lab.ids.take(1)
        answers = together(partial(_insert, lab.store, id_, lab.new()), partial(_insert, lab.other, id_, lab.new()))
        [job] = lab.store.read([id_])
        assert job is not None
        assert answers == [Stored(job, duplicate=False)] * 2
    assert lab.counts() == {("default", State.QUEUED): _ROUNDS}


def a_cancel_never_overwrites_a_finished_job(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        moves = lifecycle.complete(job, "1", RETENTION), lifecycle.cancel(job, RETENTION)
        finished, asked = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        assert finished is Answer.OK
        assert asked in {Answer.OK, Answer.NO_OP_TERMINAL}
        after = lab.read(job)
        assert (after.state, after.result) == (State.SUCCEEDED, "1")
        assert after.cancel_requested == (asked is Answer.OK)
        assert after.version == job.version + 1 + (asked is Answer.OK)


def a_cancel_and_a_failure_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.running()
        moves = lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION), lifecycle.cancel(job, RETENTION)
        failed, asked = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        after = lab.read(job)
        assert after.version == job.version + 1
        if failed is Answer.OK:
            assert (asked, after.state) == (Answer.ALREADY_CLAIMED, State.RETRYING)
        else:
            assert (failed, asked, after.state) == (Answer.CANCEL_REQUESTED, Answer.OK, State.RUNNING)
            assert after.cancel_requested


def a_cancel_and_a_claim_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.job()
        cancel = lifecycle.cancel(job, RETENTION)
        want = lab.want(id=job.id)
        taken, asked = together(partial(_took, lab.store, want), partial(_written, lab.other, cancel))
        assert taken != asked
        assert lab.read(job).state is (State.RUNNING if taken else State.CANCELLED)


def a_cancel_and_a_submit_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.job(state=State.CREATED)
        moves = lifecycle.submit(job), lifecycle.cancel(job, RETENTION)
        submitted, cancelled = together(partial(_commit, lab.store, moves[0]), partial(_commit, lab.other, moves[1]))
        assert (submitted is Answer.OK) != (cancelled is Answer.OK)
        assert lab.read(job).state is (State.QUEUED if submitted is Answer.OK else State.CANCELLED)


def a_redrive_sent_twice_opens_one_generation(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        dead = lab.in_state(State.DEAD)
        move = lifecycle.redrive(dead)
        answers = together(partial(_commit, lab.store, move), partial(_commit, lab.other, move))
        assert sorted(answers) == [Answer.ALREADY_CLAIMED, Answer.OK]
        again = lab.read(dead)
        assert (again.generation, again.version) == (2, dead.version + 1)
        lab.store.commit([lifecycle.cancel(again, RETENTION)])


def a_purge_and_a_redrive_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        dead = lab.in_state(State.DEAD, key="k")
        lab.clock.advance(microseconds=RETENTION.dead)
        move = lifecycle.redrive(dead)
        redriven, purged = together(partial(_written, lab.store, move), partial(_purged, lab.other))
        assert redriven != purged
        after = lab.store.read([dead.id])[0]
        if purged:
            assert after is None
            assert lab.store.attempts(dead.id) == []
        else:
            assert after is not None
            assert (after.state, after.generation, after.purge_at) == (State.QUEUED, 2, None)
            lab.store.commit([lifecycle.cancel(after, RETENTION)])
            lab.clock.advance(microseconds=RETENTION.cancelled)
            lab.store.purge(10)


def two_purgers_share_the_work(lab: Lab) -> None:
    lab.jobs(60)
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in lab.claim(60)])
    lab.clock.advance(microseconds=RETENTION.succeeded)

    def drain(store: Store) -> int:
        total = 0
        while number := store.purge(7).jobs:
            total += number
        return total

    assert sum(together(partial(drain, lab.store), partial(drain, lab.other))) == 60
    assert lab.counts() == {}


def a_key_survives_the_purge_of_its_former_job(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        key = f"k{round_}"
        old = lab.in_state(State.SUCCEEDED, key=key)
        lab.clock.advance(microseconds=RETENTION.succeeded)
        [id_] = lab.ids.take(1)
        answer, _ = together(partial(_insert, lab.store, id_, lab.new(key=key)), lambda: lab.other.purge(10).jobs)
        assert isinstance(answer, Stored)
        assert lab.store.read([old.id]) == [None]
        if answer.duplicate:
            assert answer.job == old
            assert lab.store.read([id_]) == [None]
        else:
            assert lab.accepted([lab.new(key=key)])[0] == Stored(answer.job, duplicate=True)
    assert list(lab.store.check()) == []


def two_candidates_make_one_leader(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        answers = together(
            partial(lab.store.lead, "upkeep", f"a{round_}", MINUTE),
            partial(lab.other.lead, "upkeep", f"b{round_}", MINUTE),
        )
        assert sorted(answers) == [False, True]
        lab.clock.advance(minutes=1)


def two_writers_of_one_page_meet_one_refusal(lab: Lab) -> None:
    seen = None
    for round_ in range(_ROUNDS):
        pages = [Page("book", "page", f'"{writer} {round_}"') for writer in "ab"]
        answers = together(partial(lab.store.write_page, pages[0], seen), partial(lab.other.write_page, pages[1], seen))
        assert sorted(answers) == [False, True]
        seen = round_ + 1
        assert lab.store.page("book", "page") == pages[answers.index(True)]._replace(version=seen)


def two_writers_over_an_expired_page_and_a_purge_leave_one_page(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        expires_at = lab.clock.now() + MINUTE
        pages = [Page("book", "page", f'"{writer} {round_}"', expires_at=expires_at) for writer in "ab"]
        *answers, _ = together(
            partial(lab.store.write_page, pages[0], None),
            partial(lab.other.write_page, pages[1], None),
            lambda: lab.store.purge(10).pages > 0,
        )
        assert sorted(answers) == [False, True]
        assert lab.store.pages("book") == [pages[answers.index(True)]]
        lab.clock.advance(minutes=1)


def nothing_is_claimed_once_a_pause_has_returned(lab: Lab) -> None:
    for round_ in range(8):
        lab.jobs(60, priority=round_)
        paused = threading.Event()

        def work(store: Store, paused: threading.Event = paused) -> int:
            """Claim until the queue gives nothing; count what was given to a claim begun after the pause."""
            late = 0
            while True:
                begun_late = paused.is_set()
                claimed = store.claim(lab.want(1))
                late += begun_late and bool(claimed)
                if not claimed:
                    return late

        def pause(paused: threading.Event = paused) -> int:
            lab.other.pause("default")
            paused.set()
            return 0

        assert together(partial(work, lab.store), partial(work, lab.other), pause) == [0, 0, 0]
        lab.store.resume("default")
        lab.claim(100)


def counts_are_right_after_a_crowd(lab: Lab) -> None:
    lab.need("exact_counts")

    def bustle(store: Store, owner: str, ids: list[str]) -> int:
        for id_ in ids:
            store.insert([[(id_, lab.new(queue=owner))]])
            for job in store.claim(lab.want(2, owner=owner)):
                store.commit([lifecycle.complete(job, None, RETENTION)] * 2)
        return len(ids)

    stores = [lab.store, lab.other, lab.store]
    made = together(*(partial(bustle, store, f"w{n}", lab.ids.take(40)) for n, store in enumerate(stores)))
    while claimed := lab.claim(50):
        lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in claimed])
    assert lab.counts() == {(f"w{n}", State.SUCCEEDED): number for n, number in enumerate(made)}
    assert list(lab.store.check()) == []


def _insert(store: Store, id_: str, new: NewJob) -> Stored | Refusal:
    [answer] = store.insert([[(id_, new)]])
    return answer if isinstance(answer, Exception) else stored(answer)[0]


def _commit(store: Store, move: Move) -> Answer:
    [answer] = store.commit([move])
    return answer


def _written(store: Store, move: Move) -> bool:
    return _commit(store, move) is Answer.OK


def _took(store: Store, want: Claim) -> bool:
    return store.claim(want) != []


def _purged(store: Store) -> bool:
    return store.purge(10).jobs == 1
