"""Enqueue in the caller's own transaction: the job is there if and only if the caller commits, whatever the driver."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as awaited

from holdfast import BadInput, Holdfast, JobFunction, JobNotFound, KeyConflict
from tests.servers import until, working
from tests.stores.callers import KINDS, Caller, Kind, by_psycopg, django, engine, ids, url

Add = JobFunction[[int], int]
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url)) as opened:
        yield opened


@pytest.fixture
def add(app: Holdfast) -> Add:
    @app.job
    def add(n: int) -> int:
        return n + 1

    return add


def is_clean(app: Holdfast, **counted: int) -> bool:
    """Count the jobs, and see that the counters, the keys and the places agree."""
    told = {state: number for state, number in app.counts().items() if number}
    return told == counted and list(app.store.check()) == []


@every_kind
def test_a_job_is_there_once_the_caller_commits_and_not_before(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    with kind(postgres_server) as caller:
        jobs = [caller.enqueue(add, n) for n in range(3)]
        assert app.find() == []
        caller.commit()
        assert ids(app.find()) == ids(jobs)
    assert is_clean(app, queued=3)
    assert [job.refresh().payload for job in jobs] == [{"n": 0}, {"n": 1}, {"n": 2}]
    app.run_worker(until_idle=True)
    assert [job.result() for job in jobs] == [1, 2, 3]


@every_kind
def test_a_rollback_leaves_neither_job_nor_key_nor_counter(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    with kind(postgres_server) as caller:
        plain, keyed = caller.enqueue(add, 1), caller.enqueue(add.using(key="k"), 2)
        caller.rollback()
        assert is_clean(app)
    for gone in (plain, keyed):
        with pytest.raises(JobNotFound):
            gone.refresh()
    assert not add.using(key="k").enqueue(3).duplicate
    assert is_clean(app, queued=1)


@every_kind
def test_a_key_finds_the_job_that_has_it(app: Holdfast, add: Add, postgres_server: str, kind: Kind) -> None:
    known = add.using(key="old", tenant="acme").enqueue(1)
    with kind(postgres_server) as caller:
        found = caller.enqueue(add.using(key="old", tenant="acme"), 1)
        first, again = (caller.enqueue(add.using(key="new"), 2) for _ in range(2))
        other = caller.enqueue(add.using(key="old", tenant="other"), 3)
        assert [(job.id, job.duplicate) for job in (found, again)] == [(known.id, True), (first.id, True)]
        assert not first.duplicate
        assert not other.duplicate
        caller.commit()
    assert is_clean(app, queued=3)
    assert ids(app.find(key="new")) == [first.id]


@every_kind
def test_a_conflict_stores_nothing_and_leaves_the_transaction_as_it_was(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    add.using(key="k").enqueue(1)
    with kind(postgres_server) as caller:
        before = caller.enqueue(add, 5)
        with pytest.raises(KeyConflict, match="'k' already belongs to job"):
            caller.enqueue(add.using(key="k"), 2)
        caller.execute("SELECT 1")
        after = caller.enqueue(add, 6)
        caller.commit()
    assert is_clean(app, queued=3)
    assert {before.id, after.id} < set(ids(app.find()))


@every_kind
def test_every_option_arrives_as_it_does_without_a_connection(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    chosen = add.using(
        queue="mail", priority=-7, run_after=timedelta(minutes=10), key="ä€😀", tenant="acme", user="ada",
        trace_id="t-1", key_ttl=3600, expires_after=7200, trigger="webhook",
    )  # fmt: skip
    plain = chosen.using(key="plain").enqueue(2**62).record
    with kind(postgres_server) as caller:
        job = caller.enqueue(chosen, 2**62)
        caller.commit()
    stored = app.get(job.id).record
    assert job.record == stored
    assert (stored.expires_at or 0) - (plain.expires_at or 0) == stored.available_at - plain.available_at
    own = {"id", "key", "created_at", "available_at", "updated_at", "expires_at"}
    assert _without(stored._asdict(), own) == _without(plain._asdict(), own)
    assert stored.available_at - stored.created_at == 600_000_000


def _without(fields: dict[str, Any], left_out: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in left_out}


@pytest.fixture(scope="module")
def other_database(postgres_server: str) -> Iterator[str]:
    """Give the address of a database that has no schema of ours."""
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute("CREATE DATABASE holdfast_other")
    yield urlunsplit(urlsplit(postgres_server)._replace(path="/holdfast_other"))
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute("DROP DATABASE holdfast_other WITH (FORCE)")


@every_kind
def test_a_connection_to_another_database_is_refused(app: Holdfast, add: Add, other_database: str, kind: Kind) -> None:
    with kind(other_database) as caller, pytest.raises(BadInput, match="does not lead to the database") as caught:
        caller.enqueue(add, 1)
    assert f'schema "{app.url.rpartition("=")[2]}" does not exist' in str(caught.value)
    assert "\n" not in str(caught.value)
    assert is_clean(app)


def in_psycopg(address: str) -> Iterator[Caller]:
    with by_psycopg(address, autocommit=True) as caller:
        yield caller
        assert caller.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def in_async_psycopg(address: str) -> Iterator[Caller]:
    with asyncio.Runner() as loop:
        db = loop.run(psycopg.AsyncConnection.connect(address, autocommit=True))
        yield caller_of(loop, db)
        assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        loop.run(db.close())


def in_asyncpg(address: str) -> Iterator[Caller]:
    with asyncio.Runner() as loop:
        pool = loop.run(_pool(address))
        db = loop.run(_acquired(pool))
        yield caller_of(loop, db)
        assert not db.is_in_transaction()
        loop.run(pool.release(db))
        loop.run(pool.close())


async def _pool(address: str) -> "asyncpg.Pool[Any]":
    return await asyncpg.create_pool(address, min_size=1, max_size=1)


async def _acquired(pool: "asyncpg.Pool[Any]") -> Any:
    return await pool.acquire()


def in_sqlalchemy(address: str) -> Iterator[Caller]:
    with engine(address) as made, made.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        yield caller_of(None, db)


def in_async_sqlalchemy(driver: str) -> Callable[[str], Iterator[Caller]]:
    def connect(address: str) -> Iterator[Caller]:
        with asyncio.Runner() as loop:
            made = awaited.create_async_engine(url(address, driver), isolation_level="AUTOCOMMIT")
            db = loop.run(made.connect().start())
            yield caller_of(loop, db)
            loop.run(db.close())
            loop.run(made.dispose())

    return connect


def in_django(address: str) -> Iterator[Caller]:
    with django(address) as connection:
        yield caller_of(None, connection)
        assert not connection.in_atomic_block


def caller_of(loop: asyncio.Runner | None, db: Any) -> Caller:
    def enqueue(kind: JobFunction[..., Any], n: int) -> Any:
        chosen = kind.using(connection=db)
        return chosen.enqueue(n) if loop is None else loop.run(chosen.aenqueue(n))

    return Caller(db, enqueue, *[lambda *_: None] * 3)


@pytest.mark.parametrize(
    "kind",
    [
        in_psycopg, in_async_psycopg, in_asyncpg, in_sqlalchemy, in_async_sqlalchemy("psycopg"),
        in_async_sqlalchemy("asyncpg"), in_django,
    ],
    ids=["psycopg", "psycopg-async", "asyncpg", "sqlalchemy", "sqlalchemy-psycopg", "sqlalchemy-asyncpg", "django"],
)  # fmt: skip
def test_where_each_statement_commits_the_job_is_there_at_once_and_whole(
    app: Holdfast, add: Add, postgres_server: str, kind: Callable[[str], Iterator[Caller]]
) -> None:
    for caller in kind(postgres_server):
        job = caller.enqueue(add.using(key="k"), 1)
        assert app.get(job.id).key == "k"
        assert caller.enqueue(add.using(key="k"), 1).duplicate
        with pytest.raises(KeyConflict):
            caller.enqueue(add.using(key="k"), 2)
        caller.enqueue(add, 3)
        assert is_clean(app, queued=2)


def test_a_block_inside_a_transaction_can_be_rolled_back_alone(app: Holdfast, add: Add, postgres_server: str) -> None:
    with psycopg.connect(postgres_server) as db:
        kept = add.using(connection=db).enqueue(1)
        with db.transaction(force_rollback=True):
            add.using(connection=db, key="k").enqueue(2)
        last = add.using(connection=db).enqueue(3)
    assert ids(app.find()) == ids([kept, last])
    assert is_clean(app, queued=2)


def test_the_callers_own_writes_and_the_job_come_together(app: Holdfast, add: Add, postgres_server: str) -> None:
    app.counts()
    schema = app.url.rpartition("=")[2]
    with psycopg.connect(postgres_server) as db:
        db.execute(f"CREATE TABLE {schema}.orders (id integer PRIMARY KEY)")
        db.commit()
        for _ in range(2):
            try:
                db.execute(f"INSERT INTO {schema}.orders VALUES (7)")
                add.using(connection=db).enqueue(7)
                db.execute(f"INSERT INTO {schema}.orders VALUES (8)")
                db.commit()
            except psycopg.errors.UniqueViolation:
                db.rollback()
    assert is_clean(app, queued=1)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_pipeline_of_the_callers_is_no_hindrance(
    app: Holdfast, add: Add, postgres_server: str, autocommit: bool
) -> None:
    with psycopg.connect(postgres_server, autocommit=autocommit) as db, db.pipeline():
        db.execute("SELECT 1")
        add.using(connection=db).enqueue(1)
        add.using(connection=db, key="k").enqueue(2)
        assert add.using(connection=db, key="k").enqueue(2).duplicate
        with pytest.raises(KeyConflict):
            add.using(connection=db, key="k").enqueue(3)
        assert len(app.find()) == (2 if autocommit else 0)
    assert is_clean(app, queued=2)


def test_many_jobs_in_one_transaction_need_no_savepoints(app: Holdfast, add: Add, postgres_server: str) -> None:
    with psycopg.connect(postgres_server) as db:
        if db.info.server_version < 160_000:
            pytest.skip("this server does not count them")
        for n in range(70):
            add.using(connection=db, key=f"k{n % 60}").enqueue(n % 60)
        counted = db.execute(
            "SELECT subxact_count FROM pg_stat_get_backend_idset() AS backend, pg_stat_get_backend_subxact(backend) "
            "WHERE pg_stat_get_backend_pid(backend) = pg_backend_pid()"
        ).fetchone()
    assert counted == (0,)
    assert is_clean(app, queued=60)


def test_a_group_of_which_one_key_is_taken_leaves_none_of_its_keys_behind(
    app: Holdfast, add: Add, postgres_server: str
) -> None:
    add.using(key="taken").enqueue(1)
    wanted = [add.using(key="free").prepare(2).new, add.using(key="taken").prepare(3).new]
    with psycopg.connect(postgres_server) as db:
        group = app._inserting().group(wanted)
        with pytest.raises(KeyConflict):
            app.store.insert_on(db, group)
        kept = add.using(connection=db).enqueue(4)
    assert is_clean(app, queued=2)
    assert not add.using(key="free").enqueue(5).duplicate
    assert kept.refresh().state == "queued"


def test_many_jobs_come_together_with_the_callers_own_writes(app: Holdfast, add: Add, postgres_server: str) -> None:
    with psycopg.connect(postgres_server) as db:
        lost = app.enqueue_many([add.using(connection=db).prepare(n) for n in range(5)])
        db.rollback()
        jobs = app.enqueue_many([add.using(connection=db).prepare(n) for n in range(500)])
        assert is_clean(app)
    assert is_clean(app, queued=500)
    assert [job.refresh().payload for job in jobs[:2]] == [{"n": 0}, {"n": 1}]
    with pytest.raises(JobNotFound):
        lost[0].refresh()

    async def awaits() -> None:
        pg = await asyncpg.connect(postgres_server)
        async with pg.transaction():
            await app.aenqueue_many([add.using(connection=pg).prepare(n) for n in range(7)])
        await pg.close()

    asyncio.run(awaits())
    assert is_clean(app, queued=507)


def test_one_who_waits_for_a_key_holds_up_nobody_who_could_give_it(
    app: Holdfast, add: Add, postgres_server: str
) -> None:
    with psycopg.connect(postgres_server) as db, psycopg.connect(postgres_server, autocommit=True) as watch:
        first = add.using(connection=db, key="k").enqueue(1)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(add.using(key="k").enqueue(1)))
        waiting.start()
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        until(lambda: watch.execute(waits).fetchone(), "waiting for the key")
        second: list[Any] = []
        going_on = threading.Thread(target=lambda: second.append(add.using(connection=db).enqueue(2)))
        going_on.start()
        going_on.join(5)
        assert second, "the holder of the key was held up by the one who waits for it"
        db.commit()
        waiting.join()
    assert (found[0].id, found[0].duplicate) == (first.id, True)
    assert is_clean(app, queued=2)


def test_an_idle_worker_finds_a_job_that_nobody_told_it_of(app: Holdfast, add: Add, postgres_server: str) -> None:
    with working(app), psycopg.connect(postgres_server) as db:
        assert add.enqueue(1).result(timeout=20) == 2
        job = add.using(connection=db).enqueue(2)
        db.commit()
        assert job.result(timeout=5) == 3, "an idle worker looks by itself every 30 s only"


@pytest.mark.parametrize("kind", [name for name in KINDS if "async" in name])
def test_a_connection_that_is_awaited_needs_the_call_that_is(
    app: Holdfast, add: Add, postgres_server: str, kind: str
) -> None:
    with (
        KINDS[kind](postgres_server) as caller,
        pytest.raises(BadInput, match=r"A connection that is awaited \(\w+'s \w+\) needs `await ….aenqueue"),
    ):
        add.using(connection=caller.connection).enqueue(1)
    assert is_clean(app)


def test_a_blocking_connection_may_be_used_from_asynchronous_code(
    app: Holdfast, add: Add, postgres_server: str
) -> None:
    with psycopg.connect(postgres_server) as db:
        asyncio.run(add.using(connection=db).aenqueue(1))
    assert is_clean(app, queued=1)


def test_a_session_of_the_applications_own_class_is_known(app: Holdfast, add: Add, postgres_server: str) -> None:
    class OwnSession(orm.Session):
        pass

    with engine(postgres_server) as made, OwnSession(made) as session, session.begin():
        add.using(connection=session).enqueue(1)
    assert is_clean(app, queued=1)


async def _in_registry(address: str, add: Add) -> None:
    made = awaited.create_async_engine(url(address, "asyncpg"))
    sessions = awaited.async_scoped_session(awaited.async_sessionmaker(made), asyncio.current_task)
    await add.using(connection=sessions).aenqueue(1)
    await sessions.commit()
    await sessions.remove()
    await made.dispose()


def test_a_registry_of_asynchronous_sessions_is_known(app: Holdfast, add: Add, postgres_server: str) -> None:
    asyncio.run(_in_registry(postgres_server, add))
    assert is_clean(app, queued=1)


def strangers(address: str) -> Iterator[tuple[Any, str]]:
    """Give what might be taken for a connection, and what is said of it."""
    takes = "takes a connection of psycopg, asyncpg, SQLAlchemy .* or Django, not "
    yield object(), takes + "builtins's object"
    yield address, takes + "builtins's str"
    with closing(sqlite3.connect(":memory:")) as lite:
        yield lite, takes + "sqlite3's Connection"
    with psycopg.connect(address) as db, db.cursor() as cursor:
        yield cursor, takes + "psycopg's Cursor"
    with psycopg_pool.ConnectionPool(address, min_size=0, max_size=1, open=True) as pool:
        yield pool, takes + "psycopg_pool's ConnectionPool"
    with engine(address) as made:
        yield made, takes + "sqlalchemy's Engine"
        yield orm.sessionmaker(made), takes + "sqlalchemy's sessionmaker"
    other = sqlalchemy.create_engine("sqlite://")
    with other.connect() as lite:
        yield lite, "is to sqlite, but the jobs are kept in PostgreSQL"
    other.dispose()


def test_what_is_no_connection_is_refused(app: Holdfast, add: Add, postgres_server: str) -> None:
    for stranger, said in strangers(postgres_server):
        with pytest.raises(BadInput, match=said):
            add.using(connection=stranger).enqueue(1)
        with pytest.raises(BadInput, match=said):
            asyncio.run(add.using(connection=stranger).aenqueue(1))
    assert is_clean(app)
