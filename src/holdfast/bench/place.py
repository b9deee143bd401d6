"""Where a benchmark or a chaos run works: stores of its own beside the user's, made when asked for and removed when
done with.

The user's own jobs are never opened. A place is a folder beside the user's file, new schemas in the user's database, or
this process's memory.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.domain.errors import BadInput, StoreUnusable
from holdfast.stores import open_store

if TYPE_CHECKING:
    from holdfast.bench.server import Usage

_MEMORY = "memory://"


class Place(Protocol):
    """What a measure needs to know of where it works."""

    engine: str
    shared: bool
    """Several processes may work on one store."""
    conninfo: str | None
    """Where the raw floor can run, if there is one."""

    def fresh(self) -> AbstractContextManager[str]:
        """Give the URL of an empty store, which is removed at the end."""
        ...

    def settle(self, url: str) -> None:
        """Leave what was loaded as it would be after a while."""
        ...

    def usage(self) -> "Usage | None":
        """Read what the server has written so far, once nobody under test is connected."""
        ...

    def settings(self) -> dict[str, Any]:
        """Tell what the figures depend on."""
        ...


@contextmanager
def place(url: str, purpose: str = "bench") -> Iterator[Place]:
    """Find a place beside a store; it is left as it was found. What is made there bears the name of its purpose."""
    match url.partition("://")[0]:
        case "sqlite":
            with _beside_file(url, purpose) as folder:
                yield Folder(folder)
        case "postgresql" | "postgres":
            with _in_database(url, purpose) as database:
                yield database
        case _:
            open_store(url).close()  # refuses what it does not know
            yield Memory()


def machine() -> dict[str, Any]:
    """Tell what every figure depends on."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


class Memory:
    """In this process."""

    engine, shared = "memory", False
    conninfo: str | None = None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL; each process has its own."""
        yield _MEMORY

    def settle(self, url: str) -> None:
        """Do nothing."""

    def usage(self) -> None:
        """Tell nothing."""

    def settings(self) -> dict[str, Any]:
        """Tell what the figures depend on."""
        return machine()


class Folder:
    """A folder for files beside the user's own, so that they lie on the same disk."""

    engine, shared = "sqlite", True
    conninfo: str | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL of a new file."""
        with TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as folder:
            yield f"sqlite:///{quote(folder)}/jobs.db"

    def settle(self, url: str) -> None:
        """Do nothing: a file is ready as it is."""

    def usage(self) -> None:
        """Tell nothing."""

    def settings(self) -> dict[str, Any]:
        """Tell what the figures depend on."""
        import apsw

        return {"sqlite_version": apsw.sqlite_lib_version(), "synchronous": "full", **machine()}


class Database:
    """Schemas in the user's database."""

    engine, shared = "postgresql", True

    def __init__(self, url: str, conninfo: str, purpose: str) -> None:
        self._url = url
        self._purpose = purpose
        self.conninfo: str | None = conninfo
        self._at = conninfo

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL of a new schema, made by the store itself."""
        from holdfast.bench import server

        name = server.new_schema(self._purpose)
        parts = urlsplit(self._url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        options |= {"schema": name, "application_name": f"holdfast_{self._purpose}"}
        try:
            yield urlunsplit(parts._replace(query=urlencode(options)))
        finally:
            server.drop(self._at, name)

    def settle(self, url: str) -> None:
        """Vacuum what was loaded."""
        from holdfast.bench import server

        server.settle(self._at, dict(parse_qsl(urlsplit(url).query))["schema"])

    def usage(self) -> "Usage":
        """Read the server's counters."""
        from holdfast.bench import server

        server.wait_for_quiet(self._at, application=f"holdfast_{self._purpose}")
        return server.usage(self._at)

    def settings(self) -> dict[str, Any]:
        """Tell what the figures depend on."""
        import psycopg

        from holdfast.bench import server

        return {**server.settings(self._at), "psycopg": psycopg.__version__, **machine()}


@contextmanager
def _beside_file(url: str, purpose: str) -> Iterator[Path]:
    from holdfast.stores.sqlite.connection import path_of

    folder = path_of(url).resolve().parent
    try:
        made = TemporaryDirectory(prefix=f"holdfast-{purpose}-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        msg = f"Nothing can be written beside {path_of(url)}: {(error.strerror or str(error)).lower()}."
        raise StoreUnusable(msg) from error
    with made as name:
        yield Path(name)


@contextmanager
def _in_database(url: str, purpose: str) -> Iterator[Database]:
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo

        from holdfast.bench import server
        from holdfast.stores.postgres import address, trouble
    except ModuleNotFoundError as error:
        msg = f"PostgreSQL needs {error.name}; install it with: pip install 'holdfast[postgres]'"
        raise BadInput(msg) from error
    where = address.parse(url)
    conninfo = make_conninfo(where.conninfo, application_name=f"holdfast_{purpose}_driver")
    try:
        with server.schema(conninfo):  # says at once whether we may
            pass
        yield Database(url, conninfo, purpose)
    except psycopg.Error as error:
        raise trouble.translate(error, where, sent=False) from error
