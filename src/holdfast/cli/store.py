"""Which store a command works on: `--url`, else HOLDFAST_URL, else the file in this folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.app import DEFAULT_URL, Holdfast
from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.redaction import without_password
from holdfast.stores import not_installed

if TYPE_CHECKING:
    from holdfast.stores.postgres.pool import Pool

F = TypeVar("F", bound=Callable[..., Any])
_LOCAL = ("sqlite", "memory")


def url_option(command: F) -> F:
    """Let a command be told which store to use."""
    return click.option(
        "--url", envvar="HOLDFAST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The store."
    )(command)


def json_option(command: F) -> F:
    """Let a command answer in JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")(command)


@contextmanager
def opened(url: str) -> Iterator[Holdfast]:
    """Open a store that must be there already: looking around never makes one."""
    require_existing(url)
    app = Holdfast(url)
    try:
        yield app
    finally:
        app.close()


def require_existing(url: str) -> None:
    """Refuse a store that holds nothing because it is not there."""
    if url.startswith("memory:"):
        msg = "memory:// lives inside one process, so there is nothing of it to see from here; name a store with --url."
        raise BadInput(msg)
    if url.startswith("sqlite://"):
        from holdfast.stores.sqlite.connection import path_of

        path = path_of(url)
        if not path.exists():
            msg = f"There is no database at {path}; name another, or make it with: holdfast migrate --url {url}."
            raise StoreError(msg)
    if is_postgresql(url):
        with reached(url) as pool:
            from holdfast.stores.postgres import schema, trouble

            have, _ = schema.plan(pool)
            if have is None:
                raise trouble.missing(pool.address)


def is_postgresql(url: str) -> bool:
    """Tell whether a URL names a PostgreSQL server."""
    return url.startswith(("postgresql://", "postgres://"))


@contextmanager
def reached(url: str) -> "Iterator[Pool]":
    """Reach a PostgreSQL server without making anything there."""
    try:
        from holdfast.stores.postgres import address
        from holdfast.stores.postgres.pool import Pool
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    pool = Pool(address.parse(url))
    try:
        yield pool
    finally:
        pool.close()


def masked(url: str) -> str:
    """Show a URL without its password."""
    return url if url.partition("://")[0] in _LOCAL else without_password(url)
