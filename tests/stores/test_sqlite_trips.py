"""A trip on a SQLite file: one statement where all is as it was, and the long way where it is not."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, StoreError
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.stores.sqlite import SqliteStore

IDS = Ids(lambda: 0, secrets.randbits)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    yield store
    store.close()


def fill(store: SqliteStore, number: int, queue: str = "default") -> None:
    store.insert([[(id_, NewJob("add", "{}", queue)) for id_ in IDS.take(number)]])


def want(most: int, **fields: Any) -> Claim:
    return Claim("worker", secrets.token_hex(4), MINUTE, most, **fields)


def completed(jobs: list[JobRecord]) -> list[Move]:
    return [lifecycle.complete(job, None, Retention()) for job in jobs]


def statements(store: SqliteStore, moves: list[Move], claim: Claim) -> tuple[list[str], list[JobRecord]]:
    """Make a trip and list the verbs of its statements."""
    seen: list[str] = []
    writer = store.file.writer
    writer.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: seen.append(event["sql"]))
    answers, claimed = store.exchange(moves, claim)
    writer.trace_v2(0, None)
    assert answers == [Answer.OK] * len(moves)
    lines = [[line for line in sql.splitlines() if not line.startswith("--")] for sql in seen]
    return [first.split()[0] for first, *_ in lines], claimed


def test_a_trip_is_one_statement_and_one_look_where_all_is_as_it_was(store: SqliteStore) -> None:
    fill(store, 30)
    moves = completed(store.claim(want(10)))
    seen, claimed = statements(store, moves, want(10))
    assert len(claimed) == 10
    assert seen == ["BEGIN", "INSERT", "SELECT", "COMMIT"]
    assert list(store.check()) == []


def test_a_trip_takes_the_long_way_where_another_queue_has_work(store: SqliteStore) -> None:
    fill(store, 3)
    moves = completed(store.claim(want(1)))
    fill(store, 3, "mail")
    seen, claimed = statements(store, moves, want(10))
    assert sorted(job.queue for job in claimed) == ["default"] * 2 + ["mail"] * 3
    assert len(seen) > 4
    assert list(store.check()) == []


def test_a_worker_of_one_queue_takes_the_short_way_whatever_waits_in_others(store: SqliteStore) -> None:
    fill(store, 3)
    fill(store, 3, "mail")
    moves = completed(store.claim(want(1, queues={"mail": 5})))
    seen, claimed = statements(store, moves, want(10, queues={"mail": 5}))
    assert ([job.queue for job in claimed], len(seen)) == (["mail"] * 2, 4)


@pytest.mark.parametrize("claims", [1, 8, 9, 30])
def test_a_trip_hands_in_what_was_claimed_by_many(store: SqliteStore, claims: int) -> None:
    fill(store, 2 * claims + 5)
    held = [job for _ in range(claims) for job in store.claim(want(2))]
    answers, claimed = store.exchange(completed(held), want(10))
    assert (answers, len(claimed)) == ([Answer.OK] * 2 * claims, 5)
    assert list(store.check()) == []


@pytest.mark.parametrize("claims", [1, 9])
def test_one_late_completion_keeps_no_other_back(store: SqliteStore, claims: int) -> None:
    fill(store, 2 * claims + 5)
    held = [job for _ in range(claims) for job in store.claim(want(2))]
    late = held[0]
    store.commit([lifecycle.release(late)])
    answers, claimed = store.exchange(completed(held), want(10))
    assert answers == [Answer.ALREADY_CLAIMED if job is late else Answer.OK for job in held]
    assert (len(claimed), late.id in {job.id for job in claimed}) == (6, True)
    assert list(store.check()) == []


def test_what_a_trip_brings_back_can_be_taken_by_it(store: SqliteStore) -> None:
    fill(store, 1)
    [job] = store.claim(want(1))
    answers, claimed = store.exchange([lifecycle.release(job)], want(1, full=frozenset({"mail"})))
    assert (answers, [one.id for one in claimed]) == ([Answer.OK], [job.id])
    assert list(store.check()) == []


def test_a_row_that_cannot_be_claimed_is_the_stores_error(store: SqliteStore) -> None:
    fill(store, 2)
    app = Holdfast(store.url)
    hand = apsw.Connection(str(store.path))
    hand.execute("UPDATE job SET attempt = max_attempts WHERE seq = 2")
    hand.close()
    moves = completed(store.claim(want(1)))
    for brought in (moves, []):
        with pytest.raises(StoreError, match="SQLite refused"):
            store.exchange(brought, want(1))
    assert store.commit(moves) == [Answer.OK]
    assert app.counts()["succeeded"] == 1
    app.close()
