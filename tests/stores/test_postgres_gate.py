"""The gate that a crowd's claims go through: who finds every place taken gets nothing, and never waits."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.move import Answer
from holdfast.port.store import Claim, TurnedAway
from holdfast.stores.postgres import PostgresStore, gate
from tests.workers import LONG

LEASE = 60_000_000
Crowd = Callable[[Claim], AbstractContextManager[None]]
_ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


@pytest.fixture
def crowd(store: PostgresStore, postgres_server: str) -> Crowd:
    """Give what takes every place that claims like one could have."""

    @contextmanager
    def crowd(want: Claim) -> Iterator[None]:
        with psycopg.connect(postgres_server) as db:
            taken = "SELECT pg_try_advisory_xact_lock(%s, place) FROM generate_series(1, %s) AS place"
            values = [gate.key(store.address.schema, want), gate.places(want)]
            assert all(got for (got,) in db.execute(taken, values))
            yield

    return crowd


def wish(limit: int = 20, **options: object) -> Claim:
    return Claim("somebody", os.urandom(8).hex(), LEASE, limit, defers=True)._replace(**options)  # type: ignore[arg-type]


def fill(store: PostgresStore, number: int, **options: object) -> list[str]:
    ids = _ids.take(number)
    store.insert([[(id_, NewJob("noop", "{}", **options)) for id_ in ids]])  # type: ignore[arg-type]
    return ids


def finish(store: PostgresStore, jobs: list[JobRecord], want: Claim) -> list[JobRecord]:
    """Hand in and claim, in one trip."""
    answers, claimed = store.exchange([lifecycle.complete(job, "1", Retention()) for job in jobs], want)
    assert answers == [Answer.OK] * len(jobs), "what was handed in is on record whether there is room or not"
    return claimed


@pytest.mark.parametrize("limit", [1, 20, 100])
@pytest.mark.parametrize("queues", [None, {"default": 100}, {"default": 100, "mail": 100}])
@pytest.mark.parametrize("before", range(3))
def test_who_finds_every_place_taken_is_turned_away_whichever_way_he_claims(
    store: PostgresStore, crowd: Crowd, limit: int, queues: dict[str, int] | None, before: int
) -> None:
    ids = fill(store, 5 * limit)
    want = wish(limit, queues=queues)
    held = list[JobRecord]()
    for _ in range(before):  # from the front, from the only lane, from the marks
        held = finish(store, held, want._replace(lease_id=os.urandom(8).hex()))
        assert len(held) == limit
    with crowd(want):
        turned = finish(store, held, want)
        assert isinstance(turned, TurnedAway)
        assert turned == []
        assert isinstance(store.claim(want), TurnedAway)
        assert len(store.claim(wish(limit, queues=queues, defers=False))) == limit, "who does not defer is let in"
    admitted = store.claim(want)
    assert [job.id for job in admitted] == ids[(before + 1) * limit : (before + 2) * limit]
    assert not isinstance(admitted, TurnedAway)
    assert list(store.check()) == []


def test_a_place_is_free_again_after_the_claim(store: PostgresStore) -> None:
    fill(store, 400)
    for _ in range(3 * gate.places(wish())):
        assert len(store.claim(wish(10))) == 10
    assert store.claim(wish(200)) != []
    left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
    number = gate.key(store.address.schema, wish()) % 2**32
    assert store.pool.run(lambda db: db.execute(left, [number]).fetchall()) == [(0,)]


def test_an_empty_claim_is_not_turned_away(store: PostgresStore) -> None:
    for _ in range(3):
        nothing = store.claim(wish())
        assert nothing == []
        assert not isinstance(nothing, TurnedAway)


def test_other_queues_have_a_gate_of_their_own(store: PostgresStore, crowd: Crowd) -> None:
    fill(store, 1, queue="urgent")
    with crowd(wish()), crowd(wish(queues={"default": 20})):
        assert len(store.claim(wish(queues={"urgent": 20}))) == 1


def test_the_fewer_each_wants_the_more_are_let_in() -> None:
    places = [gate.places(wish(limit)) for limit in (1, 2, 5, 10, 20, 100, 1000)]
    assert places == [64, 64, 32, 16, 8, 8, 8]
    assert gate.key("a", wish()) != gate.key("b", wish())


def test_l1_a_worker_that_was_turned_away_comes_again(postgres_url: str, store: PostgresStore, crowd: Crowd) -> None:
    with closing(Holdfast(postgres_url)) as app:

        @app.job
        def add(n: int) -> int:
            return n + 1

        service = app.service()
        thread = threading.Thread(target=service.run)
        with crowd(wish(1)):
            thread.start()
            jobs = app.enqueue_many([add.prepare(n) for n in range(50)])
            time.sleep(1.0)
            assert app.counts()["queued"] == 50
        try:
            assert [job.result(timeout=LONG) for job in jobs] == list(range(1, 51))
        finally:
            service.stop()
            thread.join(LONG)


def test_a_worker_that_stops_when_idle_waits_for_its_turn(
    postgres_url: str, store: PostgresStore, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = list[float]()
    exchange = PostgresStore.exchange

    def noted(self: PostgresStore, *asked: object) -> object:
        trips.append(time.monotonic())
        return exchange(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresStore, "exchange", noted)
    with closing(Holdfast(postgres_url)) as app:

        @app.job
        def add(n: int) -> int:
            return n + 1

        jobs = app.enqueue_many([add.prepare(n) for n in range(50)])
        thread = threading.Thread(target=lambda: app.run_worker(until_idle=True))
        with crowd(wish(1)):
            thread.start()
            time.sleep(1.0)
            assert thread.is_alive(), "there is something to do"
            assert 1 < len(trips) < 8, "it asks again, and less and less often"
        thread.join(LONG)
        assert not thread.is_alive()
        assert [job.result(timeout=0) for job in jobs] == list(range(1, 51))
