"""Claims for one tenant beside others: what stands deep in a queue without lanes, and who claims at once."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.domain import limits
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim, Page, Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres import lanes as postgres
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import lines as sqlite

DEPTH = sqlite.DEPTH
LOOKS = 3
"""How many looks go through the backlog of the tests, beside the first."""
NEWS = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) % 2**bits)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Open a store in which another tenant has a backlog."""
    if request.param == "sqlite":
        opened: Store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    else:
        opened = PostgresStore(request.getfixturevalue("postgres_url"))
    with closing(opened):
        yield opened


def fill(store: Store, jobs: int, tenant: str, *, priority: int = 0) -> list[str]:
    new = NewJob("echo", "{}", tenant=tenant, priority=priority)
    group = [(id_, new) for id_ in NEWS.take(jobs)]
    store.insert([group])
    return [id_ for id_, _ in group]


def take(store: Store, limit: int, tenant: str | None = "small") -> list[JobRecord]:
    return store.claim(Claim("w", os.urandom(8).hex(), MINUTE, limit, tenant=tenant))


def looked(store: Store, limit: int) -> tuple[int, list[JobRecord]]:
    """Claim until there is something; give how many claims found nothing."""
    for vain in range(3 * LOOKS):
        if jobs := take(store, limit):
            return vain, jobs
    pytest.fail("nothing is found")


def test_both_look_equally_deep() -> None:
    assert sqlite.DEPTH == postgres.DEPTH


def test_what_stands_behind_anothers_backlog_is_found_by_going_on(store: Store) -> None:
    fill(store, (LOOKS + 1) * DEPTH, "big")
    ours = fill(store, 50, "small")
    vain, first = looked(store, 10)
    assert vain <= LOOKS
    claimed = [*first, *(job for _ in range(6) for job in take(store, 10))]
    assert [job.id for job in claimed] == ours
    assert {job.tenant for job in take(store, 100, None)} == {"big"}
    assert store.counts()["default", State.QUEUED] == (LOOKS + 1) * DEPTH - 100


def test_what_stands_in_front_is_found_at_once_wherever_the_last_look_stopped(store: Store) -> None:
    fill(store, (LOOKS + 1) * DEPTH, "big")
    assert take(store, 1) == []
    assert take(store, 1) == []
    best = fill(store, 2, "small", priority=9)
    assert [job.id for job in take(store, 5)] == best


def test_a_search_begins_anew_when_it_has_seen_all(store: Store) -> None:
    fill(store, LOOKS * DEPTH, "big", priority=5)
    fill(store, DEPTH // 2, "big")
    for _ in range(LOOKS):
        take(store, 1)
    middle = fill(store, 1, "small", priority=5)
    _, found = looked(store, 1)
    assert [job.id for job in found] == middle


def test_a_limited_queue_is_searched_as_well(store: Store) -> None:
    body = limits.encoded(Kept(Rule("default", limits=(Limit(concurrency=2),))))
    assert store.write_page(Page(limits.BOOK, limits.page_name("queue", "default"), body), None)
    fill(store, 2 * DEPTH, "big")
    ours = fill(store, 5, "small")
    _, found = looked(store, 9)
    assert [job.id for job in found] == ours[:2]
    assert take(store, 9) == []
    assert take(store, 9, None) == []


def test_tenants_and_all_others_claim_at_once_and_nothing_twice(store: Store) -> None:
    made = {tenant: set(fill(store, 150, tenant)) for tenant in ("a", "b", "c")}

    def work(tenant: str | None) -> list[JobRecord]:
        found: list[JobRecord] = []
        while store.next_due(None) is not None and len(found) < 450:
            jobs = take(store, 3, tenant)
            assert tenant is None or {job.tenant for job in jobs} <= {tenant}
            found += jobs
            if tenant is not None and not jobs:
                break
        return found

    with ThreadPoolExecutor(6) as pool:
        claimed = [job for jobs in pool.map(work, ("a", "b", "c", "a", None, None)) for job in jobs]
    assert Counter(job.id for job in claimed) == Counter(id_ for ids in made.values() for id_ in ids)
    assert all(job.id in made[job.tenant] for job in claimed)
