"""Callers with a transaction of their own, one for each kind of connection that can be enqueued on.

They look the same from a test: `enqueue`, `execute`, `commit` and `rollback`, whether the driver blocks or is awaited.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]
import psycopg
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as awaited

from holdfast.client.function import JobFunction
from holdfast.client.job import Job

Enqueue = Callable[[JobFunction[..., Any], int], Job[Any]]


class Caller(NamedTuple):
    """Somebody in the middle of a transaction, which the end of the test rolls back at the latest."""

    connection: Any
    """What is given to `using(connection=...)`."""
    enqueue: Enqueue
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


Kind = Callable[[str], AbstractContextManager[Caller]]


def blocking(connection: Any, execute: Any, commit: Any, rollback: Any) -> Caller:
    """Make a caller of a driver that blocks."""
    return Caller(connection, lambda kind, n: kind.using(connection=connection).enqueue(n), execute, commit, rollback)


def awaiting(
    loop: asyncio.Runner, connection: Any, execute: Callable[[str], Any], commit: Any, rollback: Any
) -> Caller:
    """Make a caller of a driver that is awaited."""
    return Caller(
        connection,
        lambda kind, n: loop.run(kind.using(connection=connection).aenqueue(n)),
        lambda statement: loop.run(execute(statement)),
        lambda: loop.run(commit()),
        lambda: loop.run(rollback()),
    )


@contextmanager
def by_psycopg(address: str, **options: Any) -> Iterator[Caller]:
    with closing(psycopg.connect(address, **options)) as db:
        yield blocking(db, db.execute, db.commit, db.rollback)


def by_psycopg_with_rows_of_its_own(address: str) -> AbstractContextManager[Caller]:
    return by_psycopg(address, row_factory=dict_row, cursor_factory=psycopg.RawCursor)


@contextmanager
def by_psycopg_in_a_block(address: str) -> Iterator[Caller]:
    """In `with connection.transaction()`, on a connection that commits by itself outside of it."""
    with closing(psycopg.connect(address, autocommit=True)) as db:
        block = db.transaction()
        block.__enter__()

        def rollback() -> None:
            error = psycopg.Rollback()
            block.__exit__(type(error), error, None)

        yield blocking(db, db.execute, lambda: block.__exit__(None, None, None), rollback)


@contextmanager
def by_async_psycopg(address: str) -> Iterator[Caller]:
    with asyncio.Runner() as loop:
        db = loop.run(psycopg.AsyncConnection.connect(address))
        try:
            yield awaiting(loop, db, db.execute, db.commit, db.rollback)
        finally:
            loop.run(db.close())


@contextmanager
def by_asyncpg(address: str) -> Iterator[Caller]:
    with asyncio.Runner() as loop:
        db = loop.run(asyncpg.connect(address))
        block = db.transaction()
        loop.run(block.start())
        try:
            yield awaiting(loop, db, db.execute, block.commit, block.rollback)
        finally:
            loop.run(db.close())


@contextmanager
def by_sqlalchemy(address: str) -> Iterator[Caller]:
    with engine(address) as made, made.connect() as db:
        yield blocking(db, lambda statement: db.execute(sqlalchemy.text(statement)), db.commit, db.rollback)


@contextmanager
def by_session(address: str) -> Iterator[Caller]:
    with engine(address) as made, orm.Session(made) as db:
        yield blocking(db, lambda statement: db.execute(sqlalchemy.text(statement)), db.commit, db.rollback)


@contextmanager
def by_scoped_session(address: str) -> Iterator[Caller]:
    with engine(address) as made:
        db = orm.scoped_session(orm.sessionmaker(made))
        try:
            yield blocking(db, lambda statement: db.execute(sqlalchemy.text(statement)), db.commit, db.rollback)
        finally:
            db.remove()


def by_async_sqlalchemy(driver: str) -> Kind:
    @contextmanager
    def connect(address: str) -> Iterator[Caller]:
        with asyncio.Runner() as loop:
            made = awaited.create_async_engine(url(address, driver))
            db = loop.run(made.connect().start())
            try:
                yield awaiting(
                    loop, db, lambda statement: db.execute(sqlalchemy.text(statement)), db.commit, db.rollback
                )
            finally:
                loop.run(db.close())
                loop.run(made.dispose())

    return connect


def by_async_session(driver: str) -> Kind:
    @contextmanager
    def connect(address: str) -> Iterator[Caller]:
        with asyncio.Runner() as loop:
            made = awaited.create_async_engine(url(address, driver))
            db = awaited.AsyncSession(made)
            try:
                yield awaiting(
                    loop, db, lambda statement: db.execute(sqlalchemy.text(statement)), db.commit, db.rollback
                )
            finally:
                loop.run(db.close())
                loop.run(made.dispose())

    return connect


@contextmanager
def by_django(address: str) -> Iterator[Caller]:
    with django(address) as connection:
        from django.db import transaction  # type: ignore[import-untyped]

        block = transaction.atomic()
        block.__enter__()

        def rollback() -> None:
            transaction.set_rollback(True)
            block.__exit__(None, None, None)

        def execute(statement: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement)

        yield blocking(connection, execute, lambda: block.__exit__(None, None, None), rollback)


@contextmanager
def django(address: str) -> Iterator[Any]:
    """Give Django's connection, which is in no transaction."""
    from django import setup  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db import connection

    given = conninfo_to_dict(address)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {name: given.get(option, "") for name, option in names.items()}
    if not settings.configured:
        engine = {"ENGINE": "django.db.backends.postgresql"}
        settings.configure(DATABASES={"default": engine | database}, USE_TZ=True, LOGGING_CONFIG=None)
        setup()
    connection.settings_dict.update(database)
    try:
        yield connection
    finally:
        connection.in_atomic_block = False
        connection.savepoint_ids, connection.atomic_blocks, connection.needs_rollback = [], [], False
        connection.close()


@contextmanager
def engine(address: str, driver: str = "psycopg") -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(url(address, driver))
    try:
        yield made
    finally:
        made.dispose()


def url(address: str, driver: str) -> sqlalchemy.URL:
    given = {name: str(value) for name, value in conninfo_to_dict(address).items()}
    host = given.get("host", "")
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        given.get("user"),
        given.get("password"),
        None if host.startswith("/") else host,
        int(given["port"]) if "port" in given else None,
        given["dbname"],
        {"host": host} if host.startswith("/") else {},
    )


KINDS: dict[str, Kind] = {
    "psycopg": by_psycopg,
    "psycopg-own-rows": by_psycopg_with_rows_of_its_own,
    "psycopg-block": by_psycopg_in_a_block,
    "psycopg-async": by_async_psycopg,
    "asyncpg": by_asyncpg,
    "sqlalchemy": by_sqlalchemy,
    "sqlalchemy-session": by_session,
    "sqlalchemy-scoped": by_scoped_session,
    "sqlalchemy-async-psycopg": by_async_sqlalchemy("psycopg"),
    "sqlalchemy-async-asyncpg": by_async_sqlalchemy("asyncpg"),
    "sqlalchemy-async-session-psycopg": by_async_session("psycopg"),
    "sqlalchemy-async-session-asyncpg": by_async_session("asyncpg"),
    "django": by_django,
}


def ids(jobs: list[Job[Any]]) -> list[UUID]:
    return sorted(job.id for job in jobs)
