"""Enqueue inside the caller's own transaction, on the caller's own connection.

psycopg (blocking and asynchronous), asyncpg, SQLAlchemy (connections and sessions, of both kinds) and Django. The job
is there if and only if the caller commits; on a connection that commits each statement by itself, it is there when the
call returns. Nobody is notified from inside the caller's transaction, because a notification holds up every other
commit of the database; the worker that leads finds the job within a quarter of a second and calls the others.

A lone job needs no savepoint: a key that is taken is seen before anything is stored. That matters, because a
transaction of more than 64 savepoints slows down the whole server.

No driver is imported here but our own: whoever has another's connection has imported that driver already.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.domain.errors import BadInput
from holdfast.port.store import Inserted
from holdfast.stores.postgres.insertion import Insertion, Rows, Steps
from holdfast.stores.postgres.spelling import colons, numbered

Text = Callable[[str], LiteralString]
Execute = Callable[[str, dict[str, Any]], Rows]
AsyncExecute = Callable[[str, dict[str, Any]], Awaitable[Rows]]

_MISSING = frozenset({"3F000", "42P01", "42883", "42704"})
"""What PostgreSQL says of a schema, a table, a function or a type that is not there."""
_SQLALCHEMY = frozenset(
    {
        "sqlalchemy.engine.base.Connection",
        "sqlalchemy.orm.session.Session",
        "sqlalchemy.orm.scoping.scoped_session",
    }
)
_SQLALCHEMY_ASYNC = frozenset(
    {
        "sqlalchemy.ext.asyncio.engine.AsyncConnection",
        "sqlalchemy.ext.asyncio.session.AsyncSession",
        "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
    }
)
_ASYNCPG = frozenset({"asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy"})
_DJANGO = frozenset({"django.db.backends.base.base.BaseDatabaseWrapper", "django.utils.connection.ConnectionProxy"})


class Bracket(NamedTuple):
    """What goes around an insertion so that it is whole or not at all."""

    begin: LiteralString
    end: LiteralString
    undo: tuple[LiteralString, ...]


_TRANSACTION = Bracket("BEGIN", "COMMIT", ("ROLLBACK",))
_SAVEPOINT = Bracket(
    "SAVEPOINT holdfast",
    "RELEASE SAVEPOINT holdfast",
    ("ROLLBACK TO SAVEPOINT holdfast", "RELEASE SAVEPOINT holdfast"),
)
_COMMANDS = frozenset(
    text for bracket in (_TRANSACTION, _SAVEPOINT) for text in (bracket.begin, bracket.end, *bracket.undo)
)


def run(steps: Steps, execute: Execute) -> list[Inserted]:
    """Carry out the steps of an insertion."""
    try:
        name, values = next(steps)
        while True:
            try:
                rows = execute(name, values)
            except BaseException as error:  # noqa: BLE001 - the steps raise it again, once they have cleaned up
                name, values = steps.throw(error)
            else:
                name, values = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps, execute: AsyncExecute) -> list[Inserted]:
    """Carry out the steps of an insertion, awaiting each."""
    try:
        name, values = next(steps)
        while True:
            try:
                rows = await execute(name, values)
            except BaseException as error:  # noqa: BLE001 - the steps raise it again, once they have cleaned up
                name, values = steps.throw(error)
            else:
                name, values = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def insert(connection: Any, insertion: Insertion, text: Text) -> list[Inserted]:
    """Store through a connection that blocks."""
    names = _classes(connection)
    if isinstance(connection, psycopg.Connection):
        return _on_psycopg(connection, insertion, text)
    if names & _SQLALCHEMY:
        return _on_sqlalchemy(connection, insertion, text)
    if names & _DJANGO:
        return _on_django(connection, insertion, text)
    if isinstance(connection, psycopg.AsyncConnection) or names & (_SQLALCHEMY_ASYNC | _ASYNCPG):
        msg = f"A connection that is awaited ({_named(connection)}) needs `await ….aenqueue(…)` in place of enqueue."
        raise BadInput(msg)
    msg = (
        "using(connection=...) takes a connection of psycopg, asyncpg, SQLAlchemy (or its session) or Django, "
        f"not {_named(connection)}."
    )
    raise BadInput(msg)


async def ainsert(connection: Any, insertion: Insertion, text: Text) -> list[Inserted]:
    """Store through a connection that is awaited, or that blocks."""
    names = _classes(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return await _on_async_psycopg(connection, insertion, text)
    if names & _ASYNCPG:
        return await _on_asyncpg(connection, insertion, text)
    if names & _SQLALCHEMY_ASYNC:
        if not hasattr(connection, "run_sync"):  # a session of the present task, in a registry of them
            connection = connection()
        return await connection.run_sync(_on_sqlalchemy, insertion, text)  # type: ignore[no-any-return]
    return insert(connection, insertion, text)


def _on_psycopg(connection: "psycopg.Connection[Any]", insertion: Insertion, text: Text) -> list[Inserted]:
    _require_text(connection)

    def execute(name: str, values: dict[str, Any]) -> Rows:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:  # the caller's own factory may be any
            cursor.execute(_spelled(name, text), values or None)
            return () if name in _COMMANDS else cursor.fetchall()

    return run(_whole(insertion, alone=_psycopg_alone(connection)), execute)


async def _on_async_psycopg(
    connection: "psycopg.AsyncConnection[Any]", insertion: Insertion, text: Text
) -> list[Inserted]:
    _require_text(connection)

    async def execute(name: str, values: dict[str, Any]) -> Rows:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_spelled(name, text), values or None)
            return () if name in _COMMANDS else await cursor.fetchall()

    return await arun(_whole(insertion, alone=_psycopg_alone(connection)), execute)


async def _on_asyncpg(connection: Any, insertion: Insertion, text: Text) -> list[Inserted]:
    async def execute(name: str, values: dict[str, Any]) -> Rows:
        if name in _COMMANDS:
            await connection.execute(name)
            return ()
        statement, ordered = numbered(text(name), values)
        return [tuple(row) for row in await connection.fetch(statement, *ordered)]

    return await arun(_whole(insertion, alone=not connection.is_in_transaction()), execute)


def _on_sqlalchemy(connection: Any, insertion: Insertion, text: Text) -> list[Inserted]:
    from sqlalchemy import text as clause

    if not _classes(connection) & {"sqlalchemy.engine.base.Connection"}:
        connection = connection.connection()  # a session's
    _require_postgresql(connection.dialect.name)

    def execute(name: str, values: dict[str, Any]) -> Rows:
        answer = connection.execute(clause(colons(_spelled(name, text))), values)
        return () if name in _COMMANDS else answer.fetchall()

    fairy = connection.connection
    alone = getattr(fairy.dbapi_connection, "autocommit", False) and not _has_begun(fairy.driver_connection)
    return run(_whole(insertion, alone=alone), execute)


def _on_django(connection: Any, insertion: Insertion, text: Text) -> list[Inserted]:
    _require_postgresql(connection.vendor)

    def execute(name: str, values: dict[str, Any]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_spelled(name, text), values or None)
            return () if name in _COMMANDS else cursor.fetchall()

    alone = connection.get_autocommit() and not _has_begun(connection.connection)
    return run(_whole(insertion, alone=alone), execute)


def _whole(insertion: Insertion, *, alone: bool) -> Steps:
    """Put around the steps what keeps them together: nothing, if they cannot come apart.

    `alone` says that the connection is in no transaction and would commit each statement by itself.
    """
    steps = insertion.steps
    try:
        first = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    bracket = _TRANSACTION if alone else _SAVEPOINT if insertion.divisible else None
    if bracket is not None:
        yield bracket.begin, {}
    try:
        done = yield from _from(steps, first)
    except GeneratorExit:
        raise
    except BaseException as error:
        if bracket is not None:
            with suppress(Exception):  # the connection is gone, and what was done on it too
                for command in bracket.undo:
                    yield command, {}
        if _sqlstate(error) in _MISSING:
            reason = (str(error).strip().splitlines() or [""])[0].removesuffix(".")
            msg = (
                "The connection given to using(connection=...) does not lead to the database in which this "
                f"application keeps its jobs ({reason})."
            )
            raise BadInput(msg) from error
        raise
    if bracket is not None:
        yield bracket.end, {}
    return done


def _from(steps: Steps, first: tuple[str, dict[str, Any]]) -> Steps:
    """Carry on with steps of which the first was asked for already."""
    try:
        request = steps.send((yield first))
        while True:
            request = steps.send((yield request))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _psycopg_alone(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    return connection.autocommit and not _has_begun(connection)


def _has_begun(driver: Any) -> bool:
    """Tell whether a driver's own connection is inside a transaction."""
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())
    return driver is not None and driver.info.transaction_status != TransactionStatus.IDLE


def _spelled(name: str, text: Text) -> LiteralString:
    return name if name in _COMMANDS else text(name)


def _classes(connection: Any) -> set[str]:
    """Name an object's classes: it may be of a subclass of the application's own."""
    return {f"{each.__module__}.{each.__qualname__}" for each in type(connection).__mro__}


def _named(connection: Any) -> str:
    return f"{type(connection).__module__.partition('.')[0]}'s {type(connection).__name__}"


def _require_postgresql(found: str) -> None:
    if found != "postgresql":
        msg = f"The connection given to using(connection=...) is to {found}, but the jobs are kept in PostgreSQL."
        raise BadInput(msg)


def _require_text(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Refuse a connection that gives bytes for texts, as psycopg's do where the server names no encoding."""
    if connection.info.encoding == "ascii":
        msg = (
            "The connection given to using(connection=...) reads texts as bytes, because its client_encoding is "
            "SQL_ASCII; connect with client_encoding=utf8."
        )
        raise BadInput(msg)


def _sqlstate(error: BaseException) -> str | None:
    """Find PostgreSQL's code in an error of any driver; SQLAlchemy and Django wrap the driver's own."""
    seen: BaseException | None = error
    while seen is not None:
        if code := getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None):
            return str(code)
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None
