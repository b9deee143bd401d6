"""The traps that bit others' job tables on PostgreSQL (DESIGN §5), a test for each.

Plans are pinned in `test_postgres_plans`; that nothing hangs on a session is shown behind PgBouncer, in
`test_postgres_pgbouncer`. `HOLDFAST_TEST_ROWS` lengthens the run beside a pinned horizon.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median
from typing import Any

import psycopg
import pytest
from psycopg import errors

from holdfast import BadInput, Holdfast, Permanent, Retry
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim, Query
from holdfast.stores.postgres import PostgresStore
from tests.servers import until, working

LEASE = 60_000_000
OLDER = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()"
)
JOBS_BESIDE_A_PIN = min(100_000, int(os.environ.get("HOLDFAST_TEST_ROWS", "100000")))
PLANS = {
    "as it comes": {},
    "nested loops": {"enable_hashjoin": "off", "enable_mergejoin": "off"},
    "hash joins": {"enable_nestloop": "off", "enable_mergejoin": "off"},
    "merge joins": {"enable_nestloop": "off", "enable_hashjoin": "off"},
    "sequential scans": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off"},
    "bitmaps": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_seqscan": "off"},
    "nothing kept": {"enable_material": "off", "enable_memoize": "off", "enable_hashjoin": "off"},
    "custom plans": {"plan_cache_mode": "force_custom_plan"},
}


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url, lease=3, heartbeat=0.5, upkeep=0.1, grace=5)) as app:
        yield app


@pytest.fixture
def db(postgres_server: str, store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody else, which finds the store's tables by their bare names."""
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


def done(jobs: list[JobRecord], retention: Retention | None = None) -> list[Move]:
    return [lifecycle.complete(job, None, retention or Retention()) for job in jobs]


def state_of(store: PostgresStore, id_: str) -> str:
    (job,) = store.read([id_])
    assert job is not None
    return job.state.value


@pytest.mark.parametrize("plan", PLANS)
def test_s11_a_claim_never_takes_more_than_its_limit_whatever_the_plan(
    store: PostgresStore, postgres_server: str, plan: str
) -> None:
    """Many at once, over lanes of several queues and priorities; and every job is taken exactly once (S10)."""
    ids = [id_ for n in range(6) for id_ in fill(store, 60, queue=f"q{n % 2}", priority=n % 3)]
    options = " ".join(f"-c {name}={value}" for name, value in PLANS[plan].items())
    wishes: tuple[Callable[[], Claim], ...] = (lambda: wish(7), lambda: wish(7, {"q0": 3, "q1": 5}))

    def drain(number: int) -> list[str]:
        taken: list[str] = []
        empty = 0
        with psycopg.connect(postgres_server, autocommit=True, options=options, prepare_threshold=0) as session:
            while empty < 3:
                want = wishes[number % 2]()
                statement, parameters, *_ = store._claims.look(want)
                found = [(row[0], row[2]) for row in session.execute(statement, parameters)]
                assert len(found) <= want.limit
                for queue, most in (want.queues or {}).items():
                    assert sum(in_queue == queue for _, in_queue in found) <= most
                held = session.execute(
                    f"SELECT count(*) FROM {store.address.schema}.running WHERE lease_id = %s", (want.lease_id,)
                ).fetchone()
                assert held == (len(found),), "more were taken than were told"
                taken += [id_ for id_, _ in found]
                empty += not found
        return taken

    with ThreadPoolExecutor(8) as crew:
        taken = [id_ for part in crew.map(drain, range(8)) for id_ in part]
    assert Counter(taken) == Counter(ids)
    assert list(store.check()) == []


def test_notify_is_never_sent_from_inside_a_callers_transaction(
    app: Holdfast, db: psycopg.Connection[Any], postgres_server: str, store: PostgresStore
) -> None:
    @app.job
    def noop() -> None: ...

    db.execute(f"LISTEN holdfast_{store.address.schema}")
    with psycopg.connect(postgres_server) as caller:
        noop.using(connection=caller).enqueue()
        caller.execute(f"SELECT {store.address.schema}.enqueue('noop')")
        caller.commit()
    assert list(db.notifies(timeout=0.5)) == []
    assert app.counts()["queued"] == 2
    noop.enqueue()
    assert len(list(db.notifies(timeout=5, stop_after=1))) == 1, "our own commits are called out"


def test_l8_notifications_are_debounced(app: Holdfast, db: psycopg.Connection[Any], store: PostgresStore) -> None:
    @app.job
    def noop(n: int) -> None: ...

    db.execute(f"LISTEN holdfast_{store.address.schema}")
    began = time.monotonic()
    for n in range(1000):
        noop.enqueue(n)
    lasted = time.monotonic() - began
    heard = len(list(db.notifies(timeout=1.0)))
    assert 1 <= heard <= lasted * 100 + 2


def test_a_nul_or_half_a_surrogate_in_an_error_is_written_out_and_the_job_recorded(app: Holdfast) -> None:
    @app.job(retry=Retry.fixed(0, retries=0))
    def raises() -> None:
        msg = "a\x00b\ud800c"
        raise ValueError(msg)

    @app.job
    def rejects() -> None:
        raise Permanent("a\x00b\ud800c", code="x\x00\udfff")

    @app.job
    def returns() -> str:
        return "a\ud800"

    jobs = [raises.enqueue(), rejects.enqueue(), returns.enqueue()]
    app.run_worker(until_idle=True)
    for job in jobs:
        assert (job.refresh().state, job.attempt) == ("dead", 1)
        (attempt,) = app.attempts(job.id)
        told = f"{attempt.code}{attempt.message}{attempt.traceback}"
        assert "\x00" not in told
        told.encode()
    assert jobs[0].failure
    assert jobs[0].failure.code == "value_error"
    assert list(app.store.check()) == []


def test_a_settlement_that_carries_a_nul_is_written_by_the_store_itself(store: PostgresStore) -> None:
    fill(store, 1)
    (job,) = store.claim(wish(1))
    failure = Failure("a\x00", "b\x00\ud800", retryable=False)
    move = lifecycle.fail(job, failure, draw=0, retention=Retention(), traceback="c\x00\udfff")
    assert store.commit([move]) == [Answer.OK]
    (attempt,) = store.attempts(job.id)
    assert (attempt.code, attempt.message, attempt.traceback) == ("a\\u0000", "b\\u0000\\ud800", "c\\u0000\\udfff")


@pytest.mark.parametrize("where", ["payload", "key", "queue", "tenant", "user", "trace_id"])
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_a_nul_or_half_a_surrogate_is_refused_at_enqueue(app: Holdfast, where: str, text: str) -> None:
    @app.job
    def take(text: str) -> None: ...

    with pytest.raises(BadInput):
        app.enqueue("take", {"text": text}) if where == "payload" else app.enqueue(
            "take", {"text": ""}, **{where: text}
        )
    assert app.counts().unfinished == 0


@pytest.mark.parametrize(
    "obstacle",
    [
        "ALTER TABLE outcome ADD CHECK (job_id <> '{id}')",
        (
            "CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; "
            "CREATE TRIGGER bad BEFORE INSERT ON outcome "
            "FOR EACH ROW WHEN (NEW.job_id = '{id}') EXECUTE FUNCTION bad()"
        ),
    ],
    ids=["check", "trigger"],
)
@pytest.mark.parametrize("claims", [True, False], ids=["exchange", "commit"])
def test_one_bad_row_never_blocks_its_batch(
    store: PostgresStore, db: psycopg.Connection[Any], obstacle: str, claims: bool
) -> None:
    fill(store, 60)
    jobs = store.claim(wish(50))
    bad = jobs[17].id
    db.execute(obstacle.format(id=bad))
    if claims:
        answers, _ = store.exchange(done(jobs), wish(5))
    else:
        answers = store.commit(done(jobs))
    assert Counter(answers) == {Answer.OK: 49, Answer.UNWRITABLE: 1}
    assert answers[17] is Answer.UNWRITABLE
    assert state_of(store, bad) == "running"
    assert store.claim(wish(5)), "claims go on"
    assert list(store.check()) == []


def test_a_worker_goes_on_beside_a_row_that_cannot_be_written(
    app: Holdfast, db: psycopg.Connection[Any], store: PostgresStore
) -> None:
    @app.job(crash_cap=2)
    def noop(n: int) -> None: ...

    jobs = app.enqueue_many([noop.prepare(n) for n in range(200)])
    db.execute(f"ALTER TABLE outcome ADD CHECK (job_id <> '{jobs[77].id}')")
    with working(app):
        until(lambda: app.counts()["succeeded"] == 199, "the others")
        later = noop.enqueue(0)
        assert later.result(20) is None
    assert jobs[77].refresh().state != "succeeded"
    assert list(store.check()) == []


def test_a_deadlocks_victim_asks_again_and_nobody_hears_of_it(
    store: PostgresStore, db: psycopg.Connection[Any], postgres_server: str
) -> None:
    fill(store, 2)
    jobs = store.claim(wish(2))

    def deadlocks() -> int:
        db.execute("SELECT pg_stat_clear_snapshot()")
        found = db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        return int(found[0]) if found else 0

    before = deadlocks()
    lock = "SELECT FROM running WHERE job_id = %s FOR UPDATE"
    answers: list[Answer] = []
    with psycopg.connect(postgres_server) as rival:
        rival.execute(f"SET search_path = {store.address.schema}")
        rival.execute("SET deadlock_timeout = '60s'")  # so that the store is the one to give way
        rival.commit()
        rival.execute(lock, (jobs[1].id,))
        settling = threading.Thread(target=lambda: answers.extend(store.commit(done(jobs))))
        settling.start()
        until(lambda: not db.execute(f"{lock} SKIP LOCKED", (jobs[0].id,)).fetchall(), "the store to hold the first")
        rival.execute(lock, (jobs[0].id,))
        rival.rollback()
        settling.join(20)
    assert answers == [Answer.OK, Answer.OK]
    until(lambda: deadlocks() > before, "a deadlock in the server's books")


def test_l7_a_pinned_horizon_does_not_slow_the_drain_down(
    store: PostgresStore, db: psycopg.Connection[Any], postgres_server: str
) -> None:
    """An open transaction keeps every deleted row in the index; claims start behind them all the same."""
    total, batch = JOBS_BESIDE_A_PIN, 500
    for _ in range(0, total, 10_000):
        fill(store, 10_000)
    with psycopg.connect(postgres_server) as pin:
        pin.execute("SELECT pg_current_xact_id()")
        pin.execute("SELECT count(*) FROM pg_class")
        times: list[float] = []
        jobs: list[JobRecord] = []
        settled = 0
        while settled < total:
            began = time.monotonic()
            answers, jobs = store.exchange(done(jobs), wish(batch))
            times.append(time.monotonic() - began)
            assert set(answers) <= {Answer.OK}
            settled += len(answers)
        tenth = len(times) // 10
        first, last = times[1 : tenth + 1], times[-tenth - 1 : -1]
        assert median(first) / median(last) >= 0.5
        assert sum(first) / sum(last) >= 0.3, "the looks from the front take up too much"
        # What comes to stand behind the marks, because it was committed late or is due since long, is found as well.
        late = fill(store, 50, run_at=1_000_000) + fill(store, 50, run_at=store.now() - 3_600_000_000)
        found: set[str] = set()

        def all_found() -> bool:
            found.update(job.id for job in store.claim(wish(100)))
            return found >= set(late)

        until(all_found, "the late ones")
    assert list(store.check()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outcome SET state = 'queued'",
        "UPDATE outcome SET result = '9'",
        "UPDATE outcome SET purge_at = 0",
        "INSERT INTO outcome SELECT * FROM outcome",
        "UPDATE job SET payload = '{}'",
        "UPDATE job SET max_attempts = 1000",
        "UPDATE job SET id = gen_random_uuid()",
    ],
)
def test_s15_hand_written_sql_cannot_change_a_finished_job_or_what_a_job_was_asked(
    store: PostgresStore, db: psycopg.Connection[Any], statement: str
) -> None:
    fill(store, 2)
    store.commit(done(store.claim(wish(1))))
    before = store.find(Query())
    with pytest.raises((errors.RaiseException, errors.UniqueViolation)):
        db.execute(statement)
    assert store.find(Query()) == before


def test_s1_a_job_that_moves_while_jobs_are_listed_is_listed_once(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(store, 2)
    claimed = store.claim(wish(2))
    listed: list[str] = []

    def executed(db: Any, statement: Any, *words: Any, **named: Any) -> Any:
        """Let both leave where the running stand for where the waiting do, as soon as those have been listed."""
        cursor = execute(db, statement, *words, **named)
        if "waiting AS place" in str(statement) and "LIMIT" in str(statement) and not listed:
            listed.append(str(statement))
            with closing(PostgresStore(postgres_url)) as other:
                other.commit([lifecycle.release(job) for job in claimed])
        return cursor

    execute = psycopg.Connection.execute
    monkeypatch.setattr(psycopg.Connection, "execute", executed)
    assert sorted(job.id for job in store.find(Query())) == sorted(ids)
    assert (len(listed), {state_of(store, id_) for id_ in ids}) == (1, {"retrying"})


def test_retention_leaves_no_bloat_behind(store: PostgresStore, db: psycopg.Connection[Any]) -> None:
    """Cycles of insert, drain, purge and vacuum leave tables and indexes as large as the first ones did."""
    sizes: list[int] = []
    for _ in range(6):
        fill(store, 5_000)
        jobs: list[JobRecord] = []
        while (trip := store.exchange(done(jobs, Retention(0, 0, 0)), wish(500)))[1] or jobs:
            jobs = trip[1]
        while store.purge(500).jobs:
            pass
        until(lambda: db.execute(OLDER).fetchone() == (0,), "the end of others' transactions, which keep dead rows")
        db.execute("VACUUM")
        (size,) = db.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = %s::regnamespace",
            (store.address.schema,),
        ).fetchone() or (0,)
        sizes.append(int(size))
    assert store.counts() == {}
    assert sizes[-1] <= sizes[1] * 1.1, sizes
