"""A PostgreSQL server under test: schemas of our own that are dropped again, its settings, and what it wrote.

Nothing here reads or changes a schema that it did not make.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import NamedTuple

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

PREFIXES = ("holdfast_bench_", "holdfast_chaos_")
APPLICATION = "holdfast_bench"
"""What our processes under test are called, so that the server can tell when they are gone."""
SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


class Usage(NamedTuple):
    """Counters of the server; the difference of two is what happened between."""

    commits: int
    wal: int


def new_schema(purpose: str = "bench") -> str:
    """Make up a schema's name that nobody has."""
    return f"holdfast_{purpose}_{token_hex(6)}"


@contextmanager
def schema(conninfo: str) -> Iterator[str]:
    """Make a schema; give an address at which tables without a schema's name are in it. It is dropped at the end."""
    name = new_schema()
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    try:
        own = conninfo_to_dict(conninfo).get("options") or ""
        yield make_conninfo(conninfo, options=f"{own} -c search_path={name}".strip())
    finally:
        drop(conninfo, name)


def drop(conninfo: str, name: str) -> None:
    """Drop a schema that was made here."""
    assert name.startswith(PREFIXES), name
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def settle(conninfo: str, schema: str | None = None) -> None:
    """Leave what was loaded as it would be after a while: vacuumed, with statistics, and checkpointed if we may."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace(%s)"
        here = db.execute("SELECT current_schema()").fetchone()
        assert here is not None
        for (table,) in db.execute(query, (schema or here[0],)).fetchall():
            db.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(schema or here[0], table)))
        with suppress(errors.InsufficientPrivilege):
            db.execute("CHECKPOINT")


def usage(conninfo: str, database: str | None = None) -> Usage:
    """Read the counters of a database; from another one, reading counts for nothing."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        row = db.execute(
            "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database"
            " WHERE datname = coalesce(%s, current_database())",
            (database,),
        ).fetchone()
        assert row is not None
        return Usage(int(row[0]), int(row[1]))


def wait_for_quiet(conninfo: str, database: str | None = None, application: str | None = None) -> None:
    """Wait until nobody (or nobody called so) is connected: a connection hands in its last commits when it closes."""
    end = time.monotonic() + 10
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = coalesce(%s, current_database())"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        " AND application_name = coalesce(%s, application_name)"
    )
    with psycopg.connect(conninfo, autocommit=True) as db:
        while db.execute(query, (database, application)).fetchone() and time.monotonic() < end:
            threading.Event().wait(0.02)


def settings(conninfo: str) -> dict[str, str]:
    """Read the settings that a rate depends on."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        rows = db.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", (list(SETTINGS),))
        return dict(rows.fetchall())
