"""Enqueue inside the caller's own transaction, on the caller's own `apsw` connection to the same file.

The job is there if and only if the caller commits. Nobody is rung: the commit is not ours to see, so an idle worker
finds the job at its next look.

Connections of the standard library's `sqlite3` are refused. They bring a second copy of SQLite into the process, and
the two copies do not see each other's locks: when one closes the file it drops the locks of the other, and the
write-ahead log can be deleted under it, with committed jobs in it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw

from holdfast.domain.errors import BadInput


class Connection(Protocol):
    """What a statement needs of a connection."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any: ...
    def executemany(self, sql: str, parameters: Any, /) -> Any: ...


class OwnConnection(Connection, Protocol):
    """Our own connection, which can also say what it changed."""

    def changes(self) -> int: ...
    def wal_autocheckpoint(self, n: int, /) -> None: ...


@contextmanager
def welcome(connection: Any, path: Path) -> Iterator[Connection]:
    """Check a caller's connection and let several statements through it as one."""
    if isinstance(connection, sqlite3.Connection):
        msg = (
            "A connection of the sqlite3 module cannot share a file with Holdfast in one process: two copies of SQLite "
            f"drop each other's locks. Open it with apsw.Connection({str(path)!r}) instead."
        )
        raise BadInput(msg)
    if not isinstance(connection, apsw.Connection):
        msg = f"using(connection=...) takes an apsw connection to {path}, not {type(connection).__name__}."
        raise BadInput(msg)
    file = connection.filename
    if not file or not path.exists() or not path.samefile(file):
        other = file or "a database in memory"
        msg = f"The connection is to {other}, but the jobs are kept in {path}; both must be the same file."
        raise BadInput(msg)
    with connection:
        yield connection
