"""The engines Holdfast can run on, and the one place that knows which URL opens which."""

from holdfast.domain.errors import BadInput
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


def not_installed(error: ModuleNotFoundError) -> BadInput:
    """Say what PostgreSQL needs."""
    return BadInput(f"PostgreSQL needs {error.name}; install it with: pip install 'holdfast[postgres]'.")
