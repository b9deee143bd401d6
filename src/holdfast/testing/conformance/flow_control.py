"""Flow control: turns among tenants, rates, jobs at once, aging and pauses, by rules that may change at any time."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from collections import Counter

from holdfast.domain import lifecycle, limits
from holdfast.domain.excess import decide
from holdfast.domain.gates import Standing
from holdfast.domain.job import JobRecord, State
from holdfast.domain.limits import ROOMY, Kept, Limit, Rule
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.port.store import Page, Query, Store
from holdfast.testing.lab import FLAKY, RETENTION, Lab


def _rule(lab: Lab, queue: str = "default", *, by: Store | None = None, **fields: object) -> None:
    """Write a rule, whatever was there before."""
    store, name = by or lab.store, limits.page_name("queue", queue)
    found = store.page(limits.BOOK, name)
    body = limits.encoded(Kept(Rule(queue)._replace(**fields)))  # type: ignore[arg-type]
    assert store.write_page(Page(limits.BOOK, name, body), found and found.version)


def _pause(lab: Lab, what: str, which: str) -> None:
    assert lab.store.write_page(Page(limits.BOOK, limits.page_name(what, which), "{}"), None)


def _resume(lab: Lab, what: str, which: str) -> None:
    assert lab.store.remove_page(limits.BOOK, limits.page_name(what, which))


def _tenants(jobs: list[JobRecord]) -> list[str]:
    return [job.tenant for job in jobs]


def _finish(lab: Lab, jobs: list[JobRecord]) -> None:
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in jobs])


def tenants_of_a_fair_queue_take_turns(lab: Lab) -> None:
    lab.need("fair")
    lab.jobs(6, tenant="crowd", priority=9)
    lab.jobs(2, tenant="ada")
    lab.jobs(2, tenant="bob")
    _rule(lab, order="fair")
    claimed = [*lab.claim(4), *lab.claim(1), *lab.claim(5)]
    assert _tenants(claimed) == ["ada", "bob", "crowd", "ada", "bob", "crowd", "crowd", "crowd", "crowd", "crowd"]


def a_batch_may_end_in_the_middle_of_a_visit(lab: Lab) -> None:
    lab.need("fair")
    for tenant in ("a", "b", "c"):
        lab.jobs(12, tenant=tenant)
    _rule(lab, order="fair", weights={"a": 3, "b": 2})
    claimed = [job for size in (1, 1, 2, 3, 5, 7, 5) for job in lab.claim(size)]
    assert "".join(_tenants(claimed)) == "aaabbc" * 4


def weights_are_exact_in_every_round(lab: Lab) -> None:
    lab.need("fair")
    for tenant in ("a", "b", "c"):
        lab.jobs(60, tenant=tenant)
    _rule(lab, order="fair", weights={"a": 3, "b": 2})
    claimed = [job for _ in range(12) for job in lab.claim(5)]
    assert Counter(_tenants(claimed)) == {"a": 30, "b": 20, "c": 10}


def a_tenant_that_comes_late_is_served_within_one_round(lab: Lab) -> None:
    lab.need("fair")
    for number in range(5):
        lab.jobs(10, tenant=f"t{number}")
    _rule(lab, order="fair")
    lab.claim(7)
    late = lab.job(tenant="late")
    assert late.id in [job.id for job in lab.claim(6)]


def priority_decides_inside_a_lane(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    low, high = lab.job(tenant="a"), lab.job(tenant="a", priority=5)
    other = lab.job(tenant="b", priority=-5)
    assert [job.id for job in lab.claim(3)] == [high.id, other.id, low.id]


def jobs_that_come_due_or_back_stand_in_their_lanes(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    lab.jobs(3, tenant="a")
    [first] = lab.claim(1)
    later = lab.job(tenant="b", delay=SECOND)
    lab.done(lifecycle.fail(first, FLAKY, draw=0, retention=RETENTION))
    assert lab.store.next_due(None) == lab.clock.now()
    lab.clock.advance(seconds=1)
    assert [job.id for job in lab.claim(1)] == [later.id]
    lab.clock.advance(seconds=10)
    assert sorted(_tenants(lab.claim(9))) == ["a", "a", "a"]


def a_fair_queue_stands_beside_others(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, "fair", order="fair")
    for tenant in ("a", "b"):
        lab.jobs(2, queue="fair", tenant=tenant)
    plain = lab.job(queue="plain", priority=1)
    assert [job.id for job in lab.claim(1)] == [plain.id]
    lab.job(queue="plain", priority=-1)
    assert [job.queue for job in lab.claim(9)] == ["fair"] * 4 + ["plain"]


def each_queue_gives_no_more_than_is_wanted_under_rules(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, "fair", order="fair")
    for tenant in ("a", "b", "c"):
        lab.jobs(2, queue="fair", tenant=tenant)
    lab.jobs(3, queue="plain")
    claimed = lab.claim(9, queues={"fair": 2, "plain": 1, "none": 4})
    assert sorted(job.queue for job in claimed) == ["fair", "fair", "plain"]
    assert [job.queue for job in lab.claim(9, full=frozenset({"fair"}))] == ["plain", "plain"]
    assert lab.claim(0) == []


def a_rate_is_kept_to_in_every_window(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(rate=(2, SECOND), burst=3),))
    lab.jobs(40)
    taken = []
    for _ in range(40):
        taken += [lab.clock.now() for _ in lab.claim(9)]
        lab.clock.advance(milliseconds=130)
    assert len(taken) == 3 + 2 * 39 * 130 // 1000
    for place, start in enumerate(taken):
        for end, at in enumerate(taken[place:], place):
            assert end - place + 1 <= 2 * (at - start) / SECOND + 3


def a_rate_says_when_the_next_may_start(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(rate=(1, MINUTE)),))
    lab.jobs(3)
    assert len(lab.claim(5)) == 1
    assert lab.store.next_due(None) == lab.clock.now() + MINUTE
    assert lab.claim(5) == []
    lab.clock.advance(seconds=59)
    assert lab.claim(5) == []
    lab.clock.advance(seconds=1)
    assert lab.store.next_due(["default"]) == lab.clock.now()
    assert len(lab.claim(5)) == 1


def what_a_rate_holds_back_burns_no_attempts(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(rate=(1, MINUTE)),))
    jobs = lab.jobs(3)
    [claimed] = lab.claim(5)
    lab.claim(5)
    held = [job for job in jobs if job.id != claimed.id]
    assert [lab.read(job) for job in held] == held


def a_rate_per_tenant_holds_back_that_tenant_alone(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", rate=(1, SECOND), burst=2),))
    lab.jobs(5, tenant="a")
    lab.jobs(3, tenant="b")
    assert sorted(_tenants(lab.claim(9))) == ["a", "a", "b", "b"]
    lab.jobs(1, tenant="c")
    assert _tenants(lab.claim(9)) == ["c"]
    lab.clock.advance(seconds=1)
    assert sorted(_tenants(lab.claim(9))) == ["a", "b"]


def what_is_limited_but_not_fair_goes_by_priority_due_time_and_age(lab: Lab) -> None:
    lab.need("limits")
    for queue, most in (("small", 2), ("large", ROOMY)):
        _rule(lab, queue, limits=(Limit("tenant", concurrency=most),))
        late, first, second, high = (
            lab.job(queue=queue, tenant=tenant, priority=priority, delay=delay)
            for tenant, priority, delay in (("a", 0, SECOND), ("b", 0, 0), ("b", 0, 0), ("c", 5, 0))
        )
        lab.clock.advance(seconds=1)
        third = lab.job(queue=queue, tenant="b")
        claimed = [*lab.claim(1, queues={queue: 1}), *lab.claim(9, queues={queue: 9})]
        order = [high, first, second, late, *([third] if most == ROOMY else [])]
        assert [job.id for job in claimed] == [job.id for job in order]


def a_limit_that_was_far_is_exact_when_it_comes_near(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=ROOMY),))
    lab.jobs(ROOMY + 100, tenant="a")
    lab.jobs(3, tenant="b")
    far = lab.claim(ROOMY - 50)
    assert _tenants(far) == ["a"] * (ROOMY - 50)
    near = lab.claim(100)
    assert Counter(_tenants(near)) == {"a": 50, "b": 3}
    assert lab.claim(9) == []
    assert lab.claim(id=lab.job(tenant="a").id) == []
    _finish(lab, far[:40])
    assert len(lab.claim(100)) == 40
    _finish(lab, far[40:])
    late = lab.job(tenant="b", priority=5)
    assert lab.claim(1)[0].id == late.id
    assert _tenants(lab.claim(100)) == ["a"] * 61
    assert list(lab.store.check()) == []


def a_limit_per_key_is_that_of_a_tenants_key(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("key", concurrency=1),))
    lab.jobs(2, tenant="a", group="x")
    lab.jobs(2, tenant="b", group="x")
    lab.jobs(2, tenant="b", group="y")
    lab.jobs(2, tenant="b")
    claimed = lab.claim(20)
    assert Counter((job.tenant, job.flow and job.flow.group) for job in claimed) == {
        ("a", "x"): 1,
        ("b", "x"): 1,
        ("b", "y"): 1,
        ("b", None): 2,
    }


def one_at_a_time_per_key_keeps_the_order_of_a_key(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("key", concurrency=1),))
    jobs = lab.jobs(4, tenant="a", group="x")
    order = []
    while claimed := lab.claim(9):
        order += [job.id for job in claimed]
        _finish(lab, claimed)
    assert order == [job.id for job in jobs]


def no_more_run_at_once_than_may(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(concurrency=3),))
    lab.jobs(8)
    first = lab.claim(2)
    assert len(first) == 2
    assert len(lab.claim(9)) == 1
    assert lab.claim(9) == []
    assert lab.store.next_due(None) is None
    _finish(lab, first[:1])
    assert lab.store.next_due(None) == lab.clock.now()
    assert len(lab.claim(9)) == 1
    answers, claimed = lab.store.exchange([lifecycle.complete(first[1], None, RETENTION)], lab.want(9))
    assert len(answers) == len(claimed) == 1


def a_lost_holders_place_comes_back_when_it_is_reaped(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1),))
    lab.jobs(2, tenant="a", crash_cap=9)
    [lost] = lab.claim(9)
    lab.lapse()
    assert lab.claim(9) == []
    lab.reap()
    [again] = lab.claim(9)
    assert again.tenant == lost.tenant


def limits_of_all_queues_count_in_each(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, "*", limits=(Limit(concurrency=3), Limit("tenant", concurrency=2)))
    for queue in ("q1", "q2"):
        lab.jobs(3, queue=queue, tenant="a")
        lab.jobs(3, queue=queue, tenant="b")
    claimed = [*lab.claim(1, queues={"q1": 5}), *lab.claim(9)]
    assert len(claimed) == 3
    assert max(Counter(_tenants(claimed)).values()) == 2
    _finish(lab, claimed[:1])
    assert len(lab.claim(9)) == 1


def a_claim_by_id_passes_the_same_gates(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1), Limit("tenant", rate=(1, HOUR), burst=2)))
    first, second, third = lab.jobs(3, tenant="a")
    taken = lab.take(first)
    assert lab.claim(id=second.id) == []
    _finish(lab, [taken])
    _finish(lab, [lab.take(second)])
    assert lab.claim(id=third.id) == []
    assert lab.claim(9) == []
    assert lab.read(third) == third


def what_ran_before_a_limit_counts_under_it(lab: Lab) -> None:
    lab.need("limits")
    lab.jobs(5, tenant="a")
    running = lab.claim(2)
    _rule(lab, limits=(Limit("tenant", concurrency=2),))
    assert lab.claim(9) == []
    _finish(lab, running)
    assert len(lab.claim(9)) == 2


def a_changed_rule_holds_from_the_next_claim_on(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1),))
    lab.jobs(9, tenant="a", group="x")
    assert len(lab.claim(9)) == 1
    _rule(lab, limits=(Limit("key", concurrency=3),))
    assert len(lab.claim(9)) == 2
    _rule(lab, limits=(Limit("tenant", concurrency=4),))
    assert len(lab.claim(9)) == 1
    _rule(lab, order="fair")
    assert len(lab.claim(2)) == 2
    _rule(lab, limits=(Limit(concurrency=7),))
    assert len(lab.claim(9)) == 1
    _rule(lab)
    assert len(lab.claim(9)) == 2


def a_rule_that_another_writes_holds_from_the_next_claim_on(lab: Lab) -> None:
    lab.need("limits")
    lab.jobs(9, tenant="a")
    assert [len(lab.claim(1)) for _ in range(3)] == [1, 1, 1]
    _rule(lab, by=lab.other, limits=(Limit(concurrency=4),))
    assert len(lab.claim(9)) == 1
    _rule(lab, by=lab.other, limits=(Limit("tenant", concurrency=6),))
    assert len(lab.claim(9)) == 2


def a_rate_that_is_raised_does_not_wait_for_the_old_one(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(rate=(1, HOUR)),))
    lab.jobs(3)
    assert len(lab.claim(9)) == 1
    _rule(lab, limits=(Limit(rate=(1, SECOND)),))
    lab.clock.advance(seconds=1)
    assert len(lab.claim(9)) == 1


def a_queue_whose_rule_is_removed_is_as_it_was(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    jobs = [lab.job(tenant=tenant, priority=place) for place, tenant in enumerate("abca")]
    [first] = lab.claim(1)
    assert first.id == jobs[3].id
    assert lab.store.remove_page(limits.BOOK, limits.page_name("queue", "default"))
    assert lab.store.next_due(None) == lab.clock.now()
    assert [job.id for job in lab.claim(9)] == [jobs[2].id, jobs[1].id, jobs[0].id]


def what_stands_in_a_lane_can_be_found_cancelled_and_expired(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    lab.job(tenant="a")
    ends, over = lab.job(tenant="b"), lab.job(tenant="c", expires_after=SECOND)
    lab.claim(1)
    assert {job.id for job in lab.store.find(Query(state=State.QUEUED))} == {ends.id, over.id}
    lab.done(lifecycle.cancel(ends, RETENTION))
    lab.clock.advance(seconds=1)
    assert lab.claim(9) == []
    assert lab.store.next_due(None) is None
    assert [job.id for job in lab.reap()] == [over.id]
    assert list(lab.store.check()) == []


def a_job_that_waited_too_long_goes_before_all_others(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, aging=MINUTE)
    old = lab.job(priority=-5)
    lab.clock.advance(seconds=59)
    older_than_new = lab.job(priority=0)
    for _ in range(3):
        lab.job(priority=9)
    assert [job.priority for job in lab.claim(1)] == [9]
    lab.clock.advance(seconds=1)
    assert [job.id for job in lab.claim(1)] == [old.id]
    lab.clock.advance(seconds=59)
    lab.job(priority=9)
    assert lab.claim(1)[0].id == older_than_new.id


def aging_holds_inside_a_lane(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair", aging=MINUTE)
    old = lab.job(tenant="a", priority=-5)
    lab.clock.advance(seconds=60)
    lab.jobs(3, tenant="a", priority=9)
    lab.jobs(3, tenant="b", priority=9)
    first, second = lab.claim(2)
    assert (first.id, second.tenant) == (old.id, "b")


def a_paused_tenant_is_held_back_in_every_queue(lab: Lab) -> None:
    lab.need("fair")
    lab.jobs(3, tenant="a", priority=9)
    lab.jobs(2, tenant="b")
    lab.jobs(2, tenant="a", queue="other")
    _pause(lab, "tenant", "a")
    assert _tenants(lab.claim(9)) == ["b", "b"]
    assert lab.store.next_due(None) is None
    assert lab.claim(id=lab.job(tenant="a").id) == []
    _resume(lab, "tenant", "a")
    assert lab.store.next_due(None) == lab.clock.now()
    assert len(lab.claim(9)) == 6


def a_paused_kind_is_held_back_also_in_lanes(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    for tenant in ("a", "b"):
        lab.jobs(2, tenant=tenant, kind="add", priority=5)
        lab.jobs(1, tenant=tenant)
    lab.claim(1)
    _pause(lab, "kind", "add")
    assert [job.kind for job in lab.claim(9)] == ["echo", "echo"]
    _pause(lab, "tenant", "b")
    _resume(lab, "kind", "add")
    assert [(job.kind, job.tenant) for job in lab.claim(9)] == [("add", "a")]
    _resume(lab, "tenant", "b")
    assert len(lab.claim(9)) == 2
    assert list(lab.store.check()) == []


def jobs_beyond_a_full_limit_can_be_dropped(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1, full="drop"),))
    lab.jobs(3, tenant="a")
    lab.job(tenant="b")
    assert lab.store.overflow(100) == []
    [running] = [job for job in lab.claim(2) if job.tenant == "a"]
    later = lab.job(tenant="a", delay=SECOND)
    gone = lab.store.overflow(100)
    assert {(job.tenant, why) for job, why in gone} == {("a", "limit")}
    assert len(gone) == 2
    for one in gone:
        dropped = lab.done(decide(one, RETENTION))
        assert (dropped.state, dropped.failure_code, dropped.attempt) == (State.CANCELLED, "limit", 0)
    assert lab.store.overflow(100) == []
    _finish(lab, [running])
    lab.clock.advance(seconds=1)
    assert [job.id for job in lab.claim(5)] == [later.id]


def the_newest_can_replace_the_oldest(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("key", concurrency=1, full="replace"),))
    oldest = lab.job(group="x")
    [running] = lab.claim(1)
    assert running.id == oldest.id
    lab.job(group="x")
    lab.clock.advance(seconds=1)
    newest = lab.job(group="x")
    lab.job(group="y")
    gone = lab.store.overflow(100)
    assert {why for _, why in gone} == {"superseded"}
    assert len(gone) == 2
    assert running.id in {job.id for job, _ in gone}
    for one in gone:
        lab.done(decide(one, RETENTION))
    assert lab.store.overflow(100) == []
    assert lab.read(running).cancel_requested
    lab.done(lifecycle.settle_cancel(lab.read(running), RETENTION))
    assert newest.id in {job.id for job in lab.claim(5)}


def what_is_in_use_can_be_read(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", rate=(1, MINUTE), burst=2), Limit(concurrency=9)))
    lab.jobs(1, tenant="a", group="x")
    lab.jobs(2, tenant="b")
    lab.jobs(1, tenant="b", queue="other")
    assert lab.store.standing("default") == Standing({}, {})
    now = lab.clock.now()
    lab.claim(9)
    expected = Standing(
        {("a", "x"): 1, ("b", None): 2}, {("tenant", "a"): now + MINUTE, ("tenant", "b"): now + 2 * MINUTE}
    )
    assert lab.store.standing("default") == expected
    assert lab.store.standing("*") == Standing({("a", "x"): 1, ("b", None): 3}, {})
    lab.clock.advance(minutes=1)
    assert lab.store.standing("default").buckets == {("tenant", "b"): now + 2 * MINUTE}


def rules_outlive_the_store_object(lab: Lab) -> None:
    lab.need("durable")
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1), Limit("tenant", rate=(1, HOUR), burst=2)))
    lab.jobs(3, tenant="a")
    [running] = lab.claim(9)
    again = lab.reopen()
    assert again.claim(lab.want(9)) == []
    _finish(lab, [running])
    assert len(again.claim(lab.want(9))) == 1
    assert lab.claim(9) == []
