"""Enqueue inside the caller's own transaction, on the caller's own connection to the same file (`apsw` or `sqlite3`).

The job is there if and only if the caller commits. Nobody is rung: the commit is not ours to see, so an idle worker
finds the job at its next look.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw

from holdfast.domain.errors import BadInput


class Connection(Protocol):
    """What `apsw` and `sqlite3` connections have in common."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any: ...
    def executemany(self, sql: str, parameters: Any, /) -> Any: ...


class OwnConnection(Connection, Protocol):
    """Our own connection, which can also say what it changed."""

    def changes(self) -> int: ...


@contextmanager
def welcome(connection: Any, path: Path) -> Iterator[Connection]:
    """Check a caller's connection and let several statements through it as one."""
    if not isinstance(connection, apsw.Connection | sqlite3.Connection):
        msg = f"using(connection=...) takes an apsw or sqlite3 connection to {path}, not {type(connection).__name__}."
        raise BadInput(msg)
    file = next((row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")
    if not file or not path.exists() or not path.samefile(file):
        other = file or "a database in memory"
        msg = f"The connection is to {other}, but the jobs are kept in {path}; both must be the same file."
        raise BadInput(msg)
    if (
        isinstance(connection, sqlite3.Connection)
        and connection.isolation_level is not None
        and not connection.in_transaction
    ):
        connection.execute("BEGIN IMMEDIATE")
    connection.execute("SAVEPOINT holdfast")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK TO holdfast")
        connection.execute("RELEASE holdfast")
        raise
    connection.execute("RELEASE holdfast")
