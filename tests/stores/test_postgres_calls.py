"""A claim that was made ready, and goes over the connection that the call for it came over."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.port.store import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.swift import Loaded
from tests.workers import LONG

LEASE = 60_000_000


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    """Give a store object that has had jobs of one lane, and listens."""
    with closing(PostgresStore(postgres_url)) as store:
        fill(store, 1)
        assert len(claimed(store)) == 1
        assert claimed(store) == []
        store.wait(["default"], 0)
        yield store


@pytest.fixture
def other(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as other:
        yield other


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tell of the claims that were made ready and sent: over which connections."""
    connections = list[Any]()
    rows = Loaded.rows

    def noted(loaded: Loaded, db: Any, value: str) -> list[tuple[Any, ...]]:
        connections.append(db)
        return rows(loaded, db, value)

    monkeypatch.setattr(Loaded, "rows", noted)
    return connections


_ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8)


def fill(store: PostgresStore, number: int, **options: Any) -> list[str]:
    ids = _ids.take(number)
    for id_ in ids:
        store.insert([[(id_, NewJob("noop", "{}", **options))]])
    return ids


def wish() -> Claim:
    return Claim("somebody", os.urandom(8).hex(), LEASE, 20)


def claimed(store: PostgresStore) -> list[str]:
    return [job.id for job in store.claim(wish())]


def heard(store: PostgresStore) -> None:
    """Hear a call: an earlier one may come first."""
    assert store.wait(["default"], LONG)


def silent(store: PostgresStore) -> None:
    """Hear whatever there still is."""
    while store.wait(["default"], 0.1):
        pass


def test_a_call_is_answered_over_the_line_it_came_over(
    store: PostgresStore, other: PostgresStore, sent: list[Any]
) -> None:
    silent(store)
    for _ in range(3):
        (id_,) = fill(other, 1)
        heard(store)
        assert claimed(store) == [id_]
        assert claimed(store) == []
        silent(store)
    assert sent == [store._bell._ears] * 3
    assert list(store.check()) == []


def test_only_who_heard_it_answers_a_call_so(store: PostgresStore, other: PostgresStore, sent: list[Any]) -> None:
    silent(store)
    (id_,) = fill(other, 1)
    heard(store)
    found = list[str]()
    thread = threading.Thread(target=lambda: found.extend(claimed(store)))
    thread.start()
    thread.join(LONG)
    assert (found, sent) == ([id_], [])


def test_a_call_that_comes_while_one_is_answered_is_heard_afterwards(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(store)
    rows, late = Loaded.rows, list[str]()

    def and_another(loaded: Loaded, db: Any, value: str) -> list[tuple[Any, ...]]:
        found = rows(loaded, db, value)
        late.extend(fill(other, 1))
        db.execute("SELECT pg_sleep(0.1)")  # the call comes with this answer
        return found

    for _ in range(2):  # the first call is read before it is answered, the second is not: the last one was for us
        (id_,) = fill(other, 1)
        heard(store)
        with monkeypatch.context() as patch:
            patch.setattr(Loaded, "rows", and_another)
            assert claimed(store) == [id_]
        assert len(late) == 1
        heard(store)
        assert claimed(store) == late
        assert claimed(store) == []
        late.clear()
        silent(store)


def _cut(store: PostgresStore, db: psycopg.Connection[Any]) -> Callable[..., Any]:
    """Let the server's end of the line go before a claim is sent."""
    rows = Loaded.rows

    def cut(loaded: Loaded, ears: Any, value: str) -> list[tuple[Any, ...]]:
        db.execute("SELECT pg_terminate_backend(%s, 5000)", [ears.info.backend_pid])
        return rows(loaded, ears, value)

    return cut


def _lose(store: PostgresStore, db: psycopg.Connection[Any]) -> Callable[..., Any]:
    """Let the answer get lost after the commit."""
    rows = Loaded.rows

    def lose(loaded: Loaded, ears: Any, value: str) -> list[tuple[Any, ...]]:
        rows(loaded, ears, value)
        ears.close()
        raise psycopg.OperationalError

    return lose


@pytest.mark.parametrize("trouble", [_cut, _lose])
def test_s1_nothing_is_lost_with_the_line(
    store: PostgresStore,
    other: PostgresStore,
    postgres_server: str,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[..., Any],
) -> None:
    silent(store)
    with psycopg.connect(postgres_server, autocommit=True) as db, monkeypatch.context() as patch:
        patch.setattr(Loaded, "rows", trouble(store, db))
        (id_,) = fill(other, 1)
        heard(store)
        (job,) = store.claim(want := wish())
        assert (job.id, job.lease_id, job.attempt) == (id_, want.lease_id, 1)
    (id_,) = fill(other, 1)
    heard(store)  # over a new line
    assert claimed(store) == [id_]
    assert list(store.check()) == []


def test_s29_a_rule_that_came_meanwhile_is_not_overlooked(
    postgres_url: str, store: PostgresStore, other: PostgresStore, sent: list[Any]
) -> None:
    silent(store)
    with closing(Holdfast(postgres_url)) as app:
        app.limits.set("default", concurrency=2)
    store._turns._read_at = float("-inf")  # it is long ago that somebody asked
    fill(other, 2)
    heard(store)
    assert len(claimed(store)) == 1, "one runs already"
    assert len(sent) == 1
    assert list(store.check()) == []


def test_a_worker_that_was_not_called_for_long_asks_for_no_rules(
    store: PostgresStore, other: PostgresStore, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(store)
    store._turns._read_at = float("-inf")
    with monkeypatch.context() as patch:
        patch.setattr(store._turns, "learn", None)
        ids = fill(other, 1)
        heard(store)
        assert claimed(store) == ids
    assert len(sent) == 1


def test_a_queue_that_was_paused_meanwhile_gives_nothing(
    store: PostgresStore, other: PostgresStore, sent: list[Any]
) -> None:
    silent(store)
    other.pause("default")
    fill(other, 1)
    heard(store)
    assert claimed(store) == []
    assert len(sent) == 1
    other.resume("default")
    assert len(claimed(store)) == 1


def test_a_better_job_of_another_lane_goes_first(store: PostgresStore, other: PostgresStore, sent: list[Any]) -> None:
    silent(store)
    usual, urgent = fill(other, 1), fill(other, 1, priority=3)
    heard(store)
    assert claimed(store) == urgent + usual
    assert len(sent) == 1
