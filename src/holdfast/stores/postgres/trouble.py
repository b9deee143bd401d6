"""What PostgreSQL's errors mean to whoever called a store."""

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast.domain.errors import CommitUnknown, StoreError, StoreUnavailable, StoreUnreachable, StoreUnusable
from holdfast.stores.postgres.address import Address

AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)
"""Somebody had to give way; the same call goes through when asked again."""
BAD_ROW = (psycopg.DataError, psycopg.IntegrityError, errors.RaiseException, errors.ProgramLimitExceeded)
"""One row of a batch that the server will not take, whoever else is in it."""


def broken(error: psycopg.Error, connection: psycopg.Connection | None) -> bool:
    """Tell whether an error means that the connection is gone, and not that the statement is wrong."""
    if isinstance(
        error, (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleSessionTimeout)
    ):
        return True
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and (
        connection is None or connection.closed or error.sqlstate is None
    )


def translate(error: Exception, address: Address, *, sent: bool) -> StoreError:  # noqa: C901 - one case per error
    """Say in one sentence what went wrong; `sent` tells that a change may have been committed."""
    where = address.shown
    match error:
        case PoolClosed():
            return StoreUnavailable(f"The store on {where} is closed.")
        case PoolTimeout() | TooManyRequests():
            return StoreUnreachable(f"PostgreSQL at {where} cannot be reached.")
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return StoreUnusable(f"PostgreSQL at {where} refused the user or the password.")
        case errors.InvalidCatalogName():
            return StoreUnusable(f"PostgreSQL has no database for {where}; create it first.")
        case (
            errors.UndefinedTable() | errors.InvalidSchemaName() | errors.UndefinedFunction() | errors.UndefinedObject()
        ):
            return missing(address)
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(f"PostgreSQL at {where} is a read-only replica; give the address of the primary.")
        case errors.InsufficientPrivilege():
            return StoreUnusable(f"The user may not do this in the schema {address.schema!r} of {where}.")
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable(f"PostgreSQL at {where} did not answer in time.")
        case errors.DiskFull() | errors.InsufficientResources() | errors.OutOfMemory():
            return StoreUnavailable(f"PostgreSQL at {where} is out of disk space, memory or connections.")
        case psycopg.Error() if broken(error, None):
            if sent:
                return CommitUnknown(f"The connection to {where} broke while committing; it is safe to ask again.")
            return _unreachable(where, error)
        case _:
            return StoreError(f"PostgreSQL refused: {_first_line(error)}.")


def missing(address: Address) -> StoreUnusable:
    """Say that the schema has not been made yet."""
    return StoreUnusable(
        f"There is no Holdfast schema {address.schema!r} in {address.shown}; make it with: holdfast migrate --url URL"
    )


def _unreachable(where: str, error: Exception) -> StoreError:
    text = str(error).lower()
    if "password authentication failed" in text or "no password supplied" in text:
        return StoreUnusable(f"PostgreSQL at {where} refused the user or the password.")
    if "does not exist" in text:
        return StoreUnusable(f"PostgreSQL at {where} knows no such database or user.")
    for sign, reason in (
        ("refused", ": the connection was refused"),
        ("no such file", ": there is no server at this socket"),
        ("could not translate host name", ": the host is not known"),
        ("name or service not known", ": the host is not known"),
        ("starting up", ": it is starting up"),
        ("shutting down", ": it is shutting down"),
        ("timeout", ": it did not answer in time"),
    ):
        if sign in text:
            return StoreUnreachable(f"PostgreSQL at {where} cannot be reached{reason}.")
    return StoreUnreachable(f"PostgreSQL at {where} cannot be reached.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")
