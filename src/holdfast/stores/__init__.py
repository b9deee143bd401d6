"""The engines Holdfast can run on, and the one place that knows which URL opens which."""

from holdfast.domain.errors import BadInput, HoldfastError
from holdfast.domain.redaction import without_person
from holdfast.port.clock import Clock
from holdfast.port.store import Store

KNOWN = (
    "sqlite:///path/to/file.db",
    "postgresql://host/database",
    "dynamodb://TABLE?region=REGION",
    "dynamodb+sqs://TABLE/QUEUE?region=REGION",
    "memory://",
)


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
        case "dynamodb" | "dynamodb+sqs":
            try:
                from holdfast.stores.dynamodb import ContractStore, DynamoStore
            except ModuleNotFoundError as error:
                msg = f"DynamoDB needs {error.name}; install it with: pip install 'holdfast[aws]'."
                raise BadInput(msg) from error

            return DynamoStore(url, clock) if scheme == "dynamodb" else ContractStore(url, clock)
        case "memory":
            from holdfast.stores.memory import MemoryStore

            return MemoryStore(url, clock)
        case _:
            msg = f"{without_person(url)!r} is not a store URL that Holdfast knows; use one of: {', '.join(KNOWN)}."
            raise BadInput(msg)


def anchored(url: str) -> str:
    """Give the URL that leads to the same store from any folder: a relative path of a SQLite file is made absolute."""
    if not url.startswith("sqlite://"):
        return url
    from holdfast.stores.sqlite.connection import path_of

    try:
        path = path_of(url)
        return url if path.is_absolute() else f"sqlite:///{_quoted(str(path.absolute()))}"
    except (HoldfastError, OSError):
        return url  # whoever opens the store says what is wrong with it


def _quoted(path: str) -> str:
    """Write a path so that a URL means it; no more is quoted, because a folder's name may be no text at all."""
    return path.replace("%", "%25").replace("?", "%3F")


def not_installed(error: ModuleNotFoundError) -> BadInput:
    """Say what PostgreSQL needs."""
    return BadInput(f"PostgreSQL needs {error.name}; install it with: pip install 'holdfast[postgres]'.")
