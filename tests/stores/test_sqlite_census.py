"""Few new jobs at a time are counted by whoever comes next; the counters are exact at any moment all the same."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob, Retention, State
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer
from holdfast.port.store import Claim
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import UNCOUNTED
from holdfast.testing.clock import ManualClock

IDS = Ids(lambda: 0, secrets.randbits)
QUEUED = ("default", State.QUEUED)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)
    store.claim(Claim("me", "first", MINUTE, 1))  # learns that no rule holds
    yield store
    store.close()


def enqueue(store: SqliteStore, number: int = 1, queue: str = "default") -> list[str]:
    ids = IDS.take(number)
    for id_ in ids:
        store.insert([[(id_, NewJob("add", "{}", queue))]])
    return ids


def uncounted(store: SqliteStore) -> int:
    with store.file.read() as db:
        return int(db.execute("SELECT count(*) FROM job WHERE seq > (SELECT seq FROM census) AND uncounted").get)


def test_a_lone_job_is_left_to_be_counted_and_is_in_the_counters_all_the_same(store: SqliteStore) -> None:
    enqueue(store, 3)
    assert uncounted(store) == 3
    assert store.counts() == {QUEUED: 3}
    assert list(store.check()) == []


def test_a_claim_counts_those_who_came(store: SqliteStore) -> None:
    enqueue(store, 3)
    jobs = store.claim(Claim("me", "lease", MINUTE, 2))
    assert store.counts() == {QUEUED: 1, ("default", State.RUNNING): 2}
    enqueue(store)
    store.exchange([lifecycle.complete(job, None, Retention()) for job in jobs], Claim("me", "next", MINUTE, 1))
    assert uncounted(store) == 0
    assert store.counts() == {QUEUED: 1, ("default", State.RUNNING): 1, ("default", State.SUCCEEDED): 2}
    assert list(store.check()) == []


def test_a_lone_job_of_another_queue_is_found_by_those_who_take_all_queues(store: SqliteStore) -> None:
    enqueue(store, 4)
    assert len(store.claim(Claim("me", "lease", MINUTE, 2))) == 2
    [other] = enqueue(store, queue="another")
    assert other in {job.id for job in store.claim(Claim("me", "next", MINUTE, 10))}
    assert list(store.check()) == []


def test_those_nobody_claims_are_counted_now_and_then(store: SqliteStore) -> None:
    enqueue(store, UNCOUNTED + 10)
    assert uncounted(store) < UNCOUNTED
    assert store.counts() == {QUEUED: UNCOUNTED + 10}
    assert list(store.check()) == []


def test_jobs_that_share_a_commit_are_counted_like_lone_ones(store: SqliteStore) -> None:
    store.insert([[(id_, NewJob("add", "{}"))] for id_ in IDS.take(5)])
    store.insert([[(id_, NewJob("add", f'{{"n":{n}}}', priority=n))] for n, id_ in enumerate(IDS.take(5))])
    assert uncounted(store) == 10
    store.insert([[(id_, NewJob("add", "{}")) for id_ in IDS.take(500)]])
    assert store.counts() == {QUEUED: 510}
    assert list(store.check()) == []


def test_a_job_that_is_purged_before_it_was_counted_is_in_no_counter(store: SqliteStore, clock: ManualClock) -> None:
    first, last = enqueue(store, 2)
    for id_ in (first, last):
        [job] = store.read([id_])
        assert job is not None
        assert store.commit([lifecycle.cancel(job, Retention())]) == [Answer.OK]
    assert uncounted(store) == 2
    clock.advance(days=400)
    assert store.purge(10).jobs == 2
    assert store.counts() == {}
    enqueue(store, 3)  # in the places of those that went
    assert store.counts() == {QUEUED: 3}
    assert store.claim(Claim("me", "lease", MINUTE, 1))
    assert list(store.check()) == []


def test_a_program_that_counts_what_it_stores_is_understood(store: SqliteStore) -> None:
    enqueue(store)
    with store.file.write() as db:
        db.execute(
            "INSERT INTO job (id, kind, queue, tenant, priority, payload, retry, max_attempts, crash_cap, trigger, "
            "created_at, steps_total, state, available_at, updated_at, ready) "
            "VALUES ('old', 'add', 'default', '', 0, '1', 'none', 3, 3, 'manual', 1, 0, 'queued', 1, 1, 1)"
        )
        db.execute(SQL["tally"], ("default", "queued", 1))
    enqueue(store)
    assert store.counts() == {QUEUED: 3}
    assert len(store.claim(Claim("me", "lease", MINUTE, 10))) == 3
    assert list(store.check()) == []
