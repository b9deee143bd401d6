"""Claims on PostgreSQL that take the short way: one statement that completes and claims, for a lane that is the only
one, and in a crowd.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.stores.postgres import PostgresStore, arrays
from holdfast.stores.postgres.claiming import Claims
from tests.workers import LONG, running

LEASE = 60_000_000


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


@pytest.fixture
def db(postgres_server: str, store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f"SET search_path = {store.address.schema}")
        yield db


def fill(store: PostgresStore, number: int, **options: Any) -> list[str]:
    ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8).take(
        number
    )
    store.insert([[(id_, NewJob("noop", "{}", **options)) for id_ in ids]])
    return ids


def wish(limit: int, queues: dict[str, int] | None = None) -> Claim:
    return Claim("somebody", os.urandom(8).hex(), LEASE, limit, queues)


def done(jobs: list[JobRecord]) -> list[Move]:
    return [lifecycle.complete(job, None, Retention()) for job in jobs]


def claimed(store: PostgresStore, limit: int, queues: dict[str, int] | None = None) -> list[str]:
    return [job.id for job in store.claim(wish(limit, queues))]


@pytest.mark.parametrize("queues", [None, {"default": 100}])
def test_a_second_lane_is_seen_at_once(store: PostgresStore, queues: dict[str, int] | None) -> None:
    usual = fill(store, 30)
    assert claimed(store, 3, queues) == usual[:3]
    assert store._claims.marks.alone(time.monotonic()) is not None
    assert claimed(store, 3, queues) == usual[3:6]
    (urgent,) = fill(store, 1, priority=5)
    assert claimed(store, 3, queues) == [urgent, *usual[6:8]]
    (patient,) = fill(store, 1, priority=-5)
    assert claimed(store, 100, queues) == [*usual[8:], patient]
    assert list(store.check()) == []


def test_what_is_in_another_queue_is_taken_when_the_only_lane_is_empty(store: PostgresStore) -> None:
    first, other = fill(store, 4), fill(store, 2, queue="other")
    assert claimed(store, 2, {"default": 2}) == first[:2]
    assert claimed(store, 2, {"default": 1}) == first[2:3]
    assert claimed(store, 9) == [first[3], *other]
    again = fill(store, 2, queue="other")
    assert claimed(store, 9, {"default": 9}) == []
    assert claimed(store, 9) == again


def test_a_lane_that_has_run_empty_is_still_the_only_one(store: PostgresStore) -> None:
    fill(store, 1)
    for _ in range(3):
        (job,) = store.claim(wish(9))
        assert store.exchange(done([job]), wish(9)) == ([Answer.OK], [])
        assert store._claims.marks.alone(time.monotonic()) is not None
        fill(store, 1)


def test_jobs_that_come_one_by_one_are_claimed_the_short_way(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: Counter[str] = Counter()
    trip = Claims.trip

    def counted(claims: Claims, *asked: Any) -> Any:
        way = "long" if claims.marks.alone(time.monotonic()) is None else "short"
        done = trip(claims, *asked)
        ways[way] += len(done[1])
        return done

    monkeypatch.setattr(Claims, "trip", counted)
    with closing(Holdfast(postgres_url)) as app:

        @app.job
        def double(n: int) -> int:
            return 2 * n

        with running(app):
            for n in range(30):
                assert double.enqueue(n).result(timeout=LONG) == 2 * n
    assert ways["short"] >= 25, ways


@pytest.mark.parametrize("late", ["other", "default"])
def test_a_trip_that_finds_the_only_lane_empty_looks_elsewhere(store: PostgresStore, late: str) -> None:
    fill(store, 1)
    (job,) = store.claim(wish(9))
    elsewhere = fill(store, 2, queue=late, priority=3)
    answers, found = store.exchange(done([job]), wish(9))
    assert answers == [Answer.OK]
    assert [job.id for job in found] == elsewhere
    assert list(store.check()) == []


@pytest.mark.parametrize("queues", [None, {"default": 9, "other": 9}])
def test_a_look_round_the_lanes_asks_nobody_for_what_others_hold(
    store: PostgresStore, db: psycopg.Connection[Any], queues: dict[str, int] | None
) -> None:
    usual, other = fill(store, 8), fill(store, 2, queue="other")
    assert claimed(store, 1, queues) == usual[:1]  # the first claim of a store object tries all
    store._claims.marks.not_alone(time.monotonic())
    with db.transaction(force_rollback=True):
        db.execute("SELECT FROM waiting WHERE job_id = ANY (%s) FOR UPDATE", [usual[1:6]])
        assert claimed(store, 3, queues) == [*usual[6:], other[0]]
        assert claimed(store, 3, queues) == other[1:]
        assert claimed(store, 3, queues) == []
    assert claimed(store, 9, queues) == usual[1:6], "what the rollback left was passed over"
    assert list(store.check()) == []


def test_whoever_sees_that_another_leads_waits_for_nobody(store: PostgresStore, db: psycopg.Connection[Any]) -> None:
    with closing(PostgresStore(store.url)) as second:
        assert store.lead("upkeep", "first", LEASE)
        with db.transaction(force_rollback=True):
            db.execute("SELECT FROM role FOR UPDATE")
            assert not second.lead("upkeep", "second", LEASE)
        assert store.lead("upkeep", "first", 0)
        with closing(PostgresStore(store.url)) as third:
            assert third.lead("upkeep", "third", LEASE)


def test_whoever_is_called_in_vain_again_and_again_looks_round_at_once(store: PostgresStore) -> None:
    fill(store, 1)
    assert len(claimed(store, 1)) == 1
    for _ in range(3):
        assert claimed(store, 1) == []
        assert store._claims.marks.alone(time.monotonic()) is not None
    assert claimed(store, 1) == []
    assert store._claims.marks.alone(time.monotonic()) is None


def test_the_only_lane_is_left_alone_while_its_queue_is_paused(store: PostgresStore) -> None:
    ids = fill(store, 6)
    assert claimed(store, 2) == ids[:2]
    store.pause("default")
    assert claimed(store, 2) == []
    store.resume("default")
    assert claimed(store, 2) == ids[2:4]


def test_a_claim_tells_the_record_as_it_is_read(store: PostgresStore) -> None:
    fill(store, 3, priority=2, tenant="ada", user="u", trace_id="t")
    (first, second, third) = store.claim(wish(3))
    failure = Failure("no", 'a "message"', retryable=True)
    moves = [
        lifecycle.fail(first, failure, draw=0, retention=Retention()),
        lifecycle.release(second),
        lifecycle.complete(third, "1", Retention()),
    ]
    assert store.commit(moves) == [Answer.OK] * 3
    waiting = [job for job in store.read([first.id, second.id]) if job is not None]
    assert [job.state for job in waiting] == [State.RETRYING, State.RETRYING]
    with psycopg.connect(store.address.conninfo, autocommit=True) as db:
        db.execute(f"UPDATE {store.address.schema}.waiting SET available_at = 1")
    again = store.claim(wish(3))
    assert again == sorted((job for job in store.read([first.id, second.id]) if job), key=lambda job: job.id)
    assert {job.failure_message for job in again} == {None, 'a "message"'}


def test_a_trip_completes_what_it_may_and_claims_all_the_same(store: PostgresStore) -> None:
    ids = fill(store, 9)
    mine = store.claim(wish(3))
    store.commit([lifecycle.release(mine[1])])
    answers, jobs = store.exchange(done(mine), wish(2))
    assert answers == [Answer.OK, Answer.ALREADY_CLAIMED, Answer.OK]
    assert [job.id for job in jobs] == ids[3:5]
    answers, jobs = store.exchange(done(jobs), wish(0))
    assert (answers, jobs) == ([Answer.OK] * 2, [])
    answers, jobs = store.exchange(done(store.claim(wish(9))), wish(9))
    assert set(answers) == {Answer.OK}
    assert list(store.check()) == []


def test_a_crowd_passes_over_what_others_hold_and_what_was_given_up_is_found(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    ids = fill(store, 100)
    assert claimed(store, 1) == ids[:1]
    with db.transaction(force_rollback=True):
        db.execute("SELECT FROM waiting WHERE job_id = ANY (%s::uuid[]) FOR UPDATE", (ids[1:4],))
        assert claimed(store, 2) == ids[4:6]
    taken = [id_ for _ in range(20) for id_ in claimed(store, 2)]
    assert set(ids[1:4]) < set(taken), "what nobody holds any more is tried now and then"
    rest = [id_ for _ in range(40) for id_ in claimed(store, 2)]
    assert Counter(taken + rest) == Counter(set(ids) - {ids[0], *ids[4:6]})


def test_what_was_given_up_is_found_at_once_if_there_is_nothing_else(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    ids = fill(store, 9)
    assert claimed(store, 1) == ids[:1]
    assert claimed(store, 5) == ids[1:6]
    with db.transaction(force_rollback=True):
        db.execute("DELETE FROM waiting")
    assert claimed(store, 3) == ids[6:]


def test_many_claim_the_only_lane_and_each_job_is_taken_once(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as first:
        ids = fill(first, 1_000)

        def drain(_: int) -> list[str]:
            taken: list[str] = []
            moves: list[Move] = []
            empty = 0
            with closing(PostgresStore(postgres_url)) as store:
                while empty < 3:
                    answers, jobs = store.exchange(moves, wish(5))
                    assert set(answers) <= {Answer.OK}
                    assert len(jobs) <= 5
                    moves = done(jobs)
                    taken += [job.id for job in jobs]
                    empty += not jobs
            return taken

        with ThreadPoolExecutor(12) as crew:
            taken = [id_ for part in crew.map(drain, range(12)) for id_ in part]
        assert Counter(taken) == Counter(ids)
        assert first.counts() == {("default", State.SUCCEEDED): len(ids)}
        assert list(first.check()) == []


def test_arrays_arrive_as_they_were(db: psycopg.Connection[Any]) -> None:
    ids = Ids(lambda: 1, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8).take(3)
    packed = arrays.ids(ids)
    assert isinstance(packed, arrays.Ids)
    texts = ["a", "null", "", 'say "so"', "back\\slash", "comma, brace}"]
    row = db.execute(
        "SELECT CAST(%s AS uuid[])::text[], CAST(%s AS integer[]), CAST(%s AS text[]), CAST(%s AS text[])",
        (packed, arrays.numbers([1, -2]), arrays.texts(texts), arrays.texts([texts[n] for n in (0, 1, 2, 5)])),
    ).fetchone()
    assert row == (ids, [1, -2], texts, ["a", "null", "", "comma, brace}"])
    for odd in (["nobody"], [ids[0], ids[1][:-1]], [ids[0][:-1] + "g"], []):
        assert not isinstance(arrays.ids(odd), arrays.Ids)


@pytest.mark.parametrize(
    "options", [{}, {"tenant": "ünï", "user": "ada", "trace_id": "t", "expires_after": LEASE, "code_version": 3}]
)
def test_a_job_that_comes_alone_is_claimed_as_it_is_stored(store: PostgresStore, options: dict[str, Any]) -> None:
    """Also when the server has forgotten the statement that claims it, and after the job has been through something."""
    for round_ in range(4):
        (id_,) = fill(store, 1, **options)
        (job,) = store.claim(wish(20))
        assert store.read([id_]) == [job]
        store.commit([lifecycle.release(job)])
        if round_:
            store.pool.run(lambda db: db.execute("DEALLOCATE ALL"))
        (again,) = store.claim(wish(20))
        assert (again.id, again.token, again.version) == (id_, job.token + 1, job.version + 2)
        assert store.read([id_]) == [again]
        store.commit(done([again]))
        assert store.claim(wish(20)) == []
