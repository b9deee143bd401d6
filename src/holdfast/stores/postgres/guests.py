"""Enqueue inside the caller's own transaction, on the caller's own connection.

psycopg (blocking and asynchronous), asyncpg, SQLAlchemy (connections and sessions, of both kinds) and Django. The job
is there if and only if the caller commits. Nobody is notified from inside the caller's transaction, because a
notification holds up every other commit of the database; the worker that leads finds the job within a quarter of a
second and calls the others.

No driver is imported here: a caller who has such a connection has imported its driver already.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, LiteralString

import psycopg

from holdfast.domain.errors import BadInput
from holdfast.port.store import Inserted
from holdfast.stores.postgres.insertion import Rows, Steps

Text = Callable[[str], LiteralString]
_PARAMETER = re.compile(r"%\((\w+)\)s")


def run(steps: Steps, execute: Callable[[str, dict[str, Any]], Rows]) -> list[Inserted]:
    """Carry out the steps of an insertion."""
    try:
        name, values = next(steps)
        while True:
            name, values = steps.send(execute(name, values))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps, execute: Callable[[str, dict[str, Any]], Awaitable[Rows]]) -> list[Inserted]:
    """Carry out the steps of an insertion, awaiting each."""
    try:
        name, values = next(steps)
        while True:
            name, values = steps.send(await execute(name, values))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def insert(connection: Any, steps: Steps, text: Text) -> list[Inserted]:
    """Store through a connection that blocks."""
    match _family(connection):
        case "psycopg" if isinstance(connection, psycopg.Connection):
            nested: AbstractContextManager[Any] = connection.transaction()

            def execute(name: str, values: dict[str, Any]) -> Rows:
                with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                    return cursor.execute(text(name), values).fetchall()

        case "sqlalchemy" if not _is_async(connection):
            from sqlalchemy import text as clause

            nested = connection.begin_nested()

            def execute(name: str, values: dict[str, Any]) -> Rows:
                return connection.execute(clause(_colons(text(name))), values).fetchall()  # type: ignore[no-any-return]

        case "django":
            from django.db import transaction  # type: ignore[import-untyped]

            nested = transaction.atomic(using=connection.alias)

            def execute(name: str, values: dict[str, Any]) -> Rows:
                with connection.cursor() as cursor:
                    cursor.execute(text(name), values)
                    return cursor.fetchall()  # type: ignore[no-any-return]

        case "psycopg" | "sqlalchemy" | "asyncpg":
            msg = f"A {type(connection).__name__} is awaited: enqueue through it with `await ….aenqueue(…)`."
            raise BadInput(msg)
        case _:
            raise _stranger(connection)
    with nested:
        return run(steps, execute)


async def ainsert(connection: Any, steps: Steps, text: Text) -> list[Inserted]:
    """Store through a connection that is awaited, or that blocks."""
    match _family(connection):
        case "psycopg" if isinstance(connection, psycopg.AsyncConnection):
            nested: AbstractAsyncContextManager[Any] = connection.transaction()

            async def execute(name: str, values: dict[str, Any]) -> Rows:
                async with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                    return await (await cursor.execute(text(name), values)).fetchall()

        case "sqlalchemy" if _is_async(connection):
            from sqlalchemy import text as clause

            nested = connection.begin_nested()

            async def execute(name: str, values: dict[str, Any]) -> Rows:
                return (await connection.execute(clause(_colons(text(name))), values)).fetchall()  # type: ignore[no-any-return]

        case "asyncpg":
            nested = connection.transaction()

            async def execute(name: str, values: dict[str, Any]) -> Rows:
                statement, ordered = _numbered(text(name), values)
                return [tuple(row) for row in await connection.fetch(statement, *ordered)]

        case _:
            return insert(connection, steps, text)
    async with nested:
        return await arun(steps, execute)


def _family(connection: Any) -> str:
    """Tell which library a connection comes from; a proxy, like Django's, is asked for what it stands for."""
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return "psycopg"
    module = type(connection).__module__.partition(".")[0]
    if module == "asgiref" or (module == "django" and hasattr(connection, "alias")):
        return "django"
    return module if module in ("sqlalchemy", "asyncpg") else ""


def _is_async(connection: Any) -> bool:
    return inspect.iscoroutinefunction(connection.execute)


def _colons(statement: str) -> str:
    """Spell parameters as SQLAlchemy does, whatever driver is under it."""
    return _PARAMETER.sub(r":\1", statement.replace(":", r"\:"))


def _numbered(statement: str, values: dict[str, Any]) -> tuple[str, list[Any]]:
    """Spell parameters as asyncpg does."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    places = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _PARAMETER.sub(lambda match: places[match[1]], statement), [values[name] for name in names]


def _stranger(connection: Any) -> BadInput:
    return BadInput(
        f"using(connection=...) takes a connection of psycopg, asyncpg, SQLAlchemy or Django, "
        f"not {type(connection).__name__}."
    )
