"""Claims for one tenant: its jobs alone, in the order and within the limits that hold for all."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import lifecycle, limits
from holdfast.domain.job import JobRecord, State
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.port.store import Page
from holdfast.testing.lab import RETENTION, Lab


def _rule(lab: Lab, queue: str = "default", **fields: object) -> None:
    body = limits.encoded(Kept(Rule(queue)._replace(**fields)))  # type: ignore[arg-type]
    assert lab.store.write_page(Page(limits.BOOK, limits.page_name("queue", queue), body), None)


def _ids(jobs: list[JobRecord]) -> list[str]:
    return [job.id for job in jobs]


def _groups(jobs: list[JobRecord]) -> list[str | None]:
    return [limits.group_of(job) for job in jobs]


def a_claim_for_one_tenant_takes_its_jobs_alone(lab: Lab) -> None:
    others = [lab.job(tenant="bob", priority=9), lab.job()]
    ours = lab.jobs(3, tenant="ada")
    claimed = lab.claim(9, tenant="ada")
    assert sorted(_ids(claimed)) == sorted(_ids(ours))
    assert {job.lease_owner for job in claimed} == {"ada"}
    assert lab.claim(9, tenant="ada") == []
    assert [lab.read(job) for job in others] == others
    assert _ids(lab.claim(9, tenant="")) == [others[1].id]
    assert _ids(lab.claim(9)) == [others[0].id]


def a_claim_for_a_tenant_without_jobs_takes_nothing(lab: Lab) -> None:
    job = lab.job(tenant="ada")
    assert lab.claim(9, tenant="") == []
    assert lab.claim(9, tenant="a") == []
    assert lab.claim(9, tenant="adam") == []
    assert lab.read(job) == job


def a_claim_for_one_tenant_never_takes_more_than_is_wanted(lab: Lab) -> None:
    for queue in ("a", "b", "c"):
        lab.jobs(3, queue=queue, tenant="ada")
        lab.jobs(2, queue=queue, tenant="bob")
    assert lab.claim(0, tenant="ada") == []
    claimed = lab.claim(9, tenant="ada", queues={"a": 2, "b": 1, "d": 4})
    assert sorted(job.queue for job in claimed) == ["a", "a", "b"]
    assert len(lab.claim(2, tenant="ada", queues={"a": 5, "b": 5, "c": 5})) == 2
    left = lab.claim(9, tenant="ada", full=frozenset({"a", "b"}))
    assert {(job.queue, job.tenant) for job in left} <= {("c", "ada")}
    assert len(claimed) + 2 + len(left) + len(lab.claim(9, tenant="ada")) == 9
    assert len(lab.claim(9)) == 6


def a_claim_for_one_tenant_follows_priority_then_due_time_then_age(lab: Lab) -> None:
    lab.need("strict_order")
    now = lab.clock.now()
    plan = [(0, 5), (9, 9), (0, 1), (9, 2), (-5, 0), (9, 9), (0, 5), (3, 3)]
    made = [
        (lab.job(priority=priority, run_at=now + due, tenant=tenant, queue=f"q{due % 2}"), priority, due)
        for priority, due in plan
        for tenant in ("bob", "ada")
    ]
    lab.clock.advance(seconds=1)
    best = sorted((row for row in made if row[0].tenant == "ada"), key=lambda row: (-row[1], row[2], row[0].id))
    claimed = [job for size in (1, 3, 2, 5) for job in lab.claim(size, tenant="ada")]
    assert _ids(claimed) == [job.id for job, _, _ in best]


def a_claim_for_one_tenant_waits_for_the_time_and_for_pauses(lab: Lab) -> None:
    later, shut = lab.job(tenant="ada", delay=SECOND), lab.job(tenant="ada", queue="shut")
    lab.job(tenant="bob")
    lab.store.pause("shut")
    assert lab.claim(9, tenant="ada") == []
    assert lab.claim(9, tenant="ada", queues={"shut": 1}) == []
    lab.clock.advance(seconds=1)
    assert _ids(lab.claim(9, tenant="ada")) == [later.id]
    lab.store.resume("shut")
    assert _ids(lab.claim(9, tenant="ada")) == [shut.id]


def a_claim_by_id_for_one_tenant_takes_no_other_tenants_job(lab: Lab) -> None:
    ours, other = lab.job(tenant="ada"), lab.job(tenant="bob")
    assert lab.claim(1, id=other.id, tenant="ada") == []
    assert lab.read(other) == other
    assert _ids(lab.claim(1, id=ours.id, tenant="ada")) == [ours.id]


def an_exchange_claims_for_one_tenant(lab: Lab) -> None:
    lab.job(tenant="bob")
    first = lab.take(lab.job(tenant="ada"))
    second = lab.job(tenant="ada")
    move = lifecycle.complete(first, None, RETENTION)
    _, claimed = lab.store.exchange([move], lab.want(9, tenant="ada"))
    assert _ids(claimed) == [second.id]
    assert lab.read(first).state is State.SUCCEEDED


def a_tenants_claim_goes_to_its_own_lane_and_is_no_turn_of_the_others(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, order="fair")
    for tenant in ("ada", "bob", "cy", "dee"):
        lab.jobs(6, tenant=tenant)
    assert [job.tenant for job in lab.claim(1)] == ["ada"]
    assert [job.tenant for job in lab.claim(3, tenant="cy")] == ["cy"] * 3
    assert [job.tenant for job in lab.claim(1)] == ["bob"]
    assert [job.tenant for job in lab.claim(9, tenant="cy")] == ["cy"] * 3
    assert lab.claim(9, tenant="cy") == []
    assert [job.tenant for job in lab.claim(4)] == ["dee", "ada", "bob", "dee"]


def a_tenants_claims_go_round_its_keys(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, order="fair", limits=(Limit("key", concurrency=9),))
    for group in ("x", "y", "z"):
        lab.jobs(3, tenant="ada", group=group)
    lab.jobs(3, tenant="ad", group="x")
    lab.jobs(3, tenant="adam", group="x")
    claimed = [job for size in (1, 1, 2, 5, 9) for job in lab.claim(size, tenant="ada")]
    assert {job.tenant for job in claimed} == {"ada"}
    assert _groups(claimed) == ["x", "y", "z"] * 3
    assert len(lab.claim(9)) == 6


def limits_hold_for_claims_of_one_tenant(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(concurrency=4), Limit("tenant", concurrency=3), Limit(rate=(1, HOUR), burst=6)))
    lab.jobs(9, tenant="ada")
    lab.jobs(9, tenant="bob")
    ours = lab.claim(9, tenant="ada")
    assert [job.tenant for job in ours] == ["ada"] * 3
    assert lab.claim(9, tenant="ada") == []
    assert [job.tenant for job in lab.claim(9)] == ["bob"]
    assert lab.claim(9, tenant="bob") == []
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in ours])
    assert len(lab.claim(9, tenant="bob")) == 2
    assert lab.claim(9, tenant="ada") == []


def a_limited_queue_without_lanes_gives_a_tenant_its_own(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit(concurrency=3),))
    lab.jobs(2, tenant="bob", priority=9)
    ours = lab.jobs(4, tenant="ada")
    assert _ids(lab.claim(2, tenant="ada")) == _ids(ours[:2])
    assert lab.claim(9, tenant="cy") == []
    assert [job.tenant for job in lab.claim(9)] == ["bob"]
    assert lab.claim(9, tenant="ada") == []


def what_a_tenants_claim_leaves_is_there_for_all(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("tenant", concurrency=1),))
    lab.jobs(2, tenant="ada")
    lab.job(tenant="bob")
    assert len(lab.claim(9, tenant="ada")) == 1
    assert lab.claim(9, tenant="ada") == []
    assert [job.tenant for job in lab.claim(9)] == ["bob"]


def aging_holds_for_claims_of_one_tenant(lab: Lab) -> None:
    lab.need("fair")
    _rule(lab, aging=MINUTE)
    lab.job(tenant="bob", priority=-9)
    old = lab.job(tenant="ada", priority=-5)
    lab.clock.advance(seconds=60)
    new = lab.job(tenant="ada", priority=9)
    assert _ids(lab.claim(1, tenant="ada")) == [old.id]
    assert _ids(lab.claim(9, tenant="ada")) == [new.id]


def a_paused_tenant_or_kind_is_held_back_from_its_own_claims(lab: Lab) -> None:
    lab.need("fair")
    lab.jobs(2, tenant="ada", kind="add", priority=5)
    echo = lab.job(tenant="ada")
    lab.job(tenant="bob")
    kind, tenant = limits.page_name("kind", "add"), limits.page_name("tenant", "ada")
    assert lab.store.write_page(Page(limits.BOOK, kind, "{}"), None)
    assert lab.store.write_page(Page(limits.BOOK, tenant, "{}"), None)
    assert lab.claim(9, tenant="ada") == []
    assert lab.store.remove_page(limits.BOOK, tenant)
    assert _ids(lab.claim(9, tenant="ada")) == [echo.id]
    assert lab.store.remove_page(limits.BOOK, kind)
    assert len(lab.claim(9, tenant="ada")) == 2
