"""The engines Holdfast can run on, and the one place that knows which URL opens which."""

from holdfast.domain.errors import BadInput
from holdfast.port.clock import Clock
from holdfast.port.store import Store

KNOWN = ("sqlite:///path/to/file.db", "postgresql://host/database", "memory://")


def open_store(url: str, clock: Clock | None = None) -> Store:
    """Open the store a URL names; engines are imported only when they are asked for."""
    scheme, separator, _ = url.partition("://")
    match scheme if separator else "":
        case "sqlite":
            from holdfast.stores.sqlite import SqliteStore

            return SqliteStore(url, clock)
        case "postgresql" | "postgres":
            try:
                from holdfast.stores.postgres import PostgresStore
            except ModuleNotFoundError as error:
                raise not_installed(error) from error

            return PostgresStore(url, clock)
        case "memory":
            from holdfast.stores.memory import MemoryStore

            return MemoryStore(url, clock)
        case _:
            msg = f"{_masked(url)!r} is not a store URL that Holdfast knows; use one of: {', '.join(KNOWN)}."
            raise BadInput(msg)


def not_installed(error: ModuleNotFoundError) -> BadInput:
    """Say what PostgreSQL needs."""
    return BadInput(f"PostgreSQL needs {error.name}; install it with: pip install 'holdfast[postgres]'.")


def _masked(url: str) -> str:
    """Leave out what may be a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if "@" in rest else url
