"""Fresh databases on the server under test, and what was written in them: commits and bytes of WAL."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from holdfast.bench.server import Usage, usage, wait_for_quiet

__all__ = ["Usage", "address", "fresh", "settle", "usage", "wait_for_quiet"]


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


def _replace(conninfo: str, name: str, *, create: bool) -> None:
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        if create:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
