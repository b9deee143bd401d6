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
_REFUSALS = (
    ("password authentication failed", "refused the user or the password"),
    ("no password supplied", "asks for a password, and the URL has none"),
    ("no pg_hba.conf entry", "lets nobody in from here (see its pg_hba.conf)"),
    ("pg_hba.conf rejects", "lets nobody in from here (see its pg_hba.conf)"),
    ("is not permitted to log in", "does not let this user log in"),
    ("server does not support ssl", "does not speak TLS, and the URL asks for it"),
    ("certificate verify failed", "has a certificate that cannot be trusted"),
)
"""How a server turns somebody away for good. An error at the door has no code, only a text."""
_REASONS = (
    ("session is read-only", "no server there takes changes"),
    ("server is in hot standby mode", "no server there takes changes"),
    ("too many clients", "it has no connection left"),
    ("connection slots are reserved", "it has no connection left"),
    ("too many connections", "it has no connection left"),
    ("starting up", "it is starting up"),
    ("shutting down", "it is shutting down"),
    ("in recovery mode", "it is starting up"),
    ("not yet accepting connections", "it is starting up"),
    ("connection refused", "the connection was refused"),
    ("no such file or directory", "nobody listens there"),
    ("translate host name", "the host is not known"),
    ("name or service not known", "the host is not known"),
    ("name resolution", "the host is not known"),
    ("timeout", "it did not answer in time"),
    ("timed out", "it did not answer in time"),
)


def broken(error: psycopg.Error, connection: psycopg.Connection | None) -> bool:
    """Tell whether an error means that the connection is gone, and not that the statement is wrong."""
    if isinstance(
        error, (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleSessionTimeout)
    ):
        return True
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and (
        connection is None or connection.closed or error.sqlstate is None
    )


def translate(error: Exception, address: Address, *, sent: bool) -> StoreError:  # noqa: C901, PLR0912 - one case per error
    """Say in one sentence what went wrong; `sent` tells that a change may have been committed."""
    where = address.shown
    match error:
        case PoolClosed():
            return StoreUnavailable(f"The store on {where} is closed.")
        case PoolTimeout() if sent:
            return _unknown(address)
        case PoolTimeout() | TooManyRequests():
            return StoreUnreachable(f"PostgreSQL at {where} cannot be reached: it gave no connection in time.")
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return StoreUnusable(f"PostgreSQL at {where} refused the user or the password.")
        case errors.InvalidCatalogName():
            return _no_database(address)
        case (
            errors.UndefinedTable() | errors.InvalidSchemaName() | errors.UndefinedFunction() | errors.UndefinedObject()
        ):
            return missing(address)
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"PostgreSQL at {where} takes no changes: it is a read-only replica, or was set read-only; "
                "give the address of the primary."
            )
        case errors.InsufficientPrivilege():
            return StoreUnusable(
                f"The user has not the right to do this in the schema {address.schema!r} of {where} "
                f"({_first_line(error)}); grant it, or give another user."
            )
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable(f"PostgreSQL at {where} did not answer in time.")
        case errors.DiskFull() | errors.InsufficientResources() | errors.OutOfMemory():
            return StoreUnavailable(f"PostgreSQL at {where} is out of disk space, memory or connections.")
        case psycopg.Error() if broken(error, None):
            if sent:
                return _unknown(address)
            return _unreachable(error, address)
        case _:
            return StoreError(f"PostgreSQL refused: {_first_line(error)}.")


def _unknown(address: Address) -> CommitUnknown:
    return CommitUnknown(f"The connection to {address.shown} broke while committing; it is safe to ask again.")


def missing(address: Address) -> StoreUnusable:
    """Say that the schema has not been made yet."""
    return StoreUnusable(
        f"There is no Holdfast schema {address.schema!r} in {address.shown}; name another with --url or ?schema=, or "
        "make it with: holdfast migrate."
    )


def _no_database(address: Address) -> StoreUnusable:
    return StoreUnusable(f"There is no database {address.shown}; create it first, or name another.")


def _unreachable(error: Exception, address: Address) -> StoreError:
    text = str(error).lower()
    for sign, refusal in _REFUSALS:
        if sign in text:
            return StoreUnusable(f"PostgreSQL at {address.shown} {refusal}.")
    if "does not exist" in text:
        if 'role "' in text:
            return StoreUnusable(f"PostgreSQL at {address.shown} refused the user or the password.")
        return _no_database(address)
    reason = next((reason for sign, reason in _REASONS if sign in text), _first_line(error).rpartition("failed: ")[2])
    return StoreUnreachable(f"PostgreSQL at {address.shown} cannot be reached: {reason}.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().removesuffix(".")
