"""Fresh databases on the server under test, and what was written in them: commits and bytes of WAL."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict


class Usage(NamedTuple):
    """Counters of the server; the difference of two is what happened between."""

    commits: int
    wal: int


def address(conninfo: str, database: str) -> str:
    """Name another database of the same server, as a URL: the one form that every driver reads."""
    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    parts.pop("dbname", None)
    user, password = quote(parts.pop("user", "postgres"), safe=""), quote(parts.pop("password", ""), safe="")
    host, port = parts.pop("host", "127.0.0.1"), parts.pop("port", "5432")
    if host.startswith("/"):  # a folder with a socket is no host name
        parts |= {"host": host, "port": port}
        place = ""
    else:
        place = f"{host}:{port}"
    login = f"{user}:{password}" if password else user
    return f"postgresql://{login}@{place}/{database}" + (f"?{urlencode(parts)}" if parts else "")


@contextmanager
def fresh(conninfo: str, name: str) -> Iterator[str]:
    """Give the address of an empty database, which is dropped at the end."""
    _replace(conninfo, name, create=True)
    try:
        yield address(conninfo, name)
    finally:
        _replace(conninfo, name, create=False)


def settle(url: str) -> None:
    """Leave what was loaded as it would be after a while: vacuumed, with statistics, and checkpointed."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


def usage(conninfo: str, name: str) -> Usage:
    """Read the counters from another database, so that reading counts for nothing."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        row = db.execute(
            "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database WHERE datname = %s", (name,)
        ).fetchone()
        assert row is not None
        return Usage(int(row[0]), int(row[1]))


def wait_for_quiet(conninfo: str, name: str) -> None:
    """Wait until nobody is connected: a connection hands in its last commits when it closes."""
    end = time.monotonic() + 10
    with psycopg.connect(conninfo, autocommit=True) as db:
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        while db.execute(query, (name,)).fetchone() and time.monotonic() < end:
            threading.Event().wait(0.02)


def _replace(conninfo: str, name: str, *, create: bool) -> None:
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        if create:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
