"""Flow control per key: the order of a key, and turns among tenants whose keys are limited."""

from collections import Counter

from holdfast.domain import lifecycle, limits
from holdfast.domain.job import JobRecord
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.retry import Retry
from holdfast.port.store import Page
from holdfast.testing.lab import FLAKY, RETENTION, Lab


def _rule(lab: Lab, **fields: object) -> None:
    body = limits.encoded(Kept(Rule("default")._replace(**fields)))  # type: ignore[arg-type]
    assert lab.store.write_page(Page(limits.BOOK, limits.page_name("queue", "default"), body), None)


def _tenants(jobs: list[JobRecord]) -> str:
    return "".join(job.tenant for job in jobs)


def _finish(lab: Lab, jobs: list[JobRecord]) -> None:
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in jobs])


def tenants_take_turns_in_a_queue_that_is_limited_per_key(lab: Lab) -> None:
    lab.need("fair")
    lab.need("limits")
    _rule(lab, order="fair", weights={"b": 2}, limits=(Limit("key", concurrency=1),))
    for group in "uvwxyz":
        lab.jobs(3, tenant="a", group=group)
    lab.jobs(3, tenant="b", group="x", priority=1)
    lab.jobs(2, tenant="b")
    lab.jobs(1, tenant="c", group="x")
    claimed = [job for size in (1, 2, 2, 9) for job in lab.claim(size)]
    assert _tenants(claimed) == "abbcabaaaa"
    served = Counter((job.tenant, limits.group_of(job)) for job in claimed)
    assert served == Counter({("b", "x"): 1, ("b", None): 2, ("c", "x"): 1}) + Counter(
        ("a", group) for group in "uvwxyz"
    )
    assert lab.claim(9) == []
    _finish(lab, claimed)
    assert _tenants(lab.claim(9)) == "baaaaaa"


def priority_decides_inside_a_tenant_whose_keys_are_limited(lab: Lab) -> None:
    lab.need("fair")
    lab.need("limits")
    _rule(lab, order="fair", limits=(Limit("key", concurrency=1),))
    low = lab.jobs(2, tenant="a", group="k")
    high = lab.jobs(2, tenant="a", group="z", priority=5)
    other = lab.jobs(2, tenant="b", group="k")
    claimed: list[JobRecord] = []
    while found := lab.claim(1):
        claimed += found
        _finish(lab, found)
    expected = (high[0], other[0], high[1], other[1], low[0], low[1])
    assert [job.id for job in claimed] == [job.id for job in expected]


def a_job_of_a_key_that_comes_back_at_once_keeps_its_place(lab: Lab) -> None:
    lab.need("limits")
    _rule(lab, limits=(Limit("key", concurrency=1),))
    jobs = lab.jobs(3, tenant="a", group="x", max_attempts=9, crash_cap=9, retry=Retry.fixed(0, retries=8).spec)
    [first] = lab.claim(9)
    lab.clock.advance(seconds=1)
    lab.done(lifecycle.release(first))
    [again] = lab.claim(9)
    lab.clock.advance(seconds=1)
    lab.done(lifecycle.fail(again, FLAKY, draw=0, retention=RETENTION))
    [third] = lab.claim(9)
    lab.lapse()
    lab.reap()
    order = [first.id, again.id, third.id]
    while claimed := lab.claim(9):
        order += [job.id for job in claimed]
        _finish(lab, claimed)
    assert order == [jobs[0].id] * 3 + [job.id for job in jobs]
