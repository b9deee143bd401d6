"""What the errors of DynamoDB, of SQS and of their client mean to whoever called a store."""

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from holdfast.domain.errors import CommitUnknown, StoreError, StoreUnavailable, StoreUnreachable, StoreUnusable
from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.items import Item

TROUBLE = (ClientError, BotoCoreError)
"""Everything that a call may raise."""
_PASSING = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "ThrottlingError",
        "ProvisionedThroughputExceeded",
        "TransactionConflictException",
        "TransactionConflict",
        "TransactionInProgressException",
        "LimitExceededException",
        "RequestThrottled",
        "OverLimit",
        "KmsThrottled",
    }
)
"""Refused, and nothing written: the same call may go through a moment later."""
_UNSURE = frozenset({"InternalServerError", "InternalFailure", "ServiceUnavailable", "500", "502", "503", "504"})
"""It may have been written."""
_CREDENTIALS = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "ExpiredTokenException",
        "MissingAuthenticationTokenException",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
    }
)
_CONDITION = "ConditionalCheckFailed"
_NO_QUEUE = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
_TOO_LARGE = "item size"


class Failed(Exception):
    """A condition did not hold. For each part of the write: whether its condition failed, and the item found there."""

    def __init__(self, parts: Sequence[tuple[bool, Item | None]]) -> None:
        super().__init__("a condition did not hold")
        self.parts = parts

    def own(self, op: str) -> bool:
        """Tell whether a write failed against its own success: the item found there carries its token."""
        return any(item is not None and item.get("op_token", {}).get("S") == op for _, item in self.parts)


class TooLarge(Exception):
    """What was to be written is more than the engine keeps in one item."""


def passing(error: Exception) -> bool:
    """Tell whether the same call may go through a moment later."""
    if isinstance(error, ClientError):
        return _code(error) in _PASSING or _code(error) in _UNSURE or _conflicts(error)
    return isinstance(error, HTTPClientError) and not unreached(error)


def unsure(error: Exception) -> bool:
    """Tell whether a write that ended so may have been applied."""
    if isinstance(error, ClientError):
        return _code(error) in _UNSURE
    return isinstance(error, HTTPClientError) and not unreached(error)


def unreached(error: Exception) -> bool:
    """Tell whether a call never came to the server."""
    return isinstance(error, (EndpointConnectionError, ConnectTimeoutError))


def translate(error: Exception, address: Address, service: str) -> Exception:
    """Say in one sentence what went wrong for good."""
    shown = address.shown
    match error:
        case EndpointConnectionError() | ConnectTimeoutError():
            hint = "" if address.endpoint else f"; is the region {address.region or 'of your AWS settings'} right?"
            return StoreUnreachable(f"{service} cannot be reached for {shown}: nobody answers there{hint or '.'}")
        case NoCredentialsError() | PartialCredentialsError():
            return StoreUnusable(f"There are no AWS credentials for {shown}; set them, or give this process a role.")
        case NoRegionError():
            return StoreUnusable(f"There is no AWS region for {shown}; name it with ?region=.")
        case ClientError():
            return _said(error, _code(error), address, service)
        case _:
            return StoreUnusable(f"{service} cannot be asked for {shown}: {_sentence(error)}.")


def _said(error: Any, code: str, address: Address, service: str) -> Exception:
    shown = address.shown
    if code == "ConditionalCheckFailedException":
        return Failed([(True, error.response.get("Item"))])
    if code == "TransactionCanceledException":
        reasons = error.response.get("CancellationReasons", ())
        if any(reason.get("Code") == "ValidationError" for reason in reasons):
            return TooLarge(_sentence(error))
        return Failed([(reason.get("Code") == _CONDITION, reason.get("Item")) for reason in reasons])
    if code == "ValidationException" and _TOO_LARGE in str(error).lower():
        return TooLarge(_sentence(error))
    if code == "ResourceNotFoundException":
        return missing(address)
    if code in _NO_QUEUE:
        return no_queue(address, str(address.queue))
    if code in _CREDENTIALS:
        return StoreUnusable(f"AWS does not accept the credentials for {shown}.")
    if code in ("AccessDeniedException", "AccessDenied"):
        return StoreUnusable(f"The credentials do not allow this on {shown}: {_sentence(error)}.")
    return StoreError(f"{service} refused: {_sentence(error)}.")


def missing(address: Address) -> StoreUnusable:
    """Say that there is no table, or not both."""
    tables = repr(address.table) if address.side == address.table else f"{address.table!r} or no {address.side!r}"
    return StoreUnusable(
        f"There is no table {tables} in {address.region or 'the region in use'}; "
        "make it with `holdfast init aws`, or name another table or ?region=."
    )


def no_queue(address: Address, queue: str) -> StoreUnusable:
    """Say that there is no queue of this name."""
    return StoreUnusable(
        f"There is no queue {queue!r} in {address.region or 'the region in use'}; "
        "make it with `holdfast init aws`, or name another queue or ?region=."
    )


def busy(address: Address, service: str) -> StoreUnavailable:
    """Say that a call was refused for too long."""
    return StoreUnavailable(f"{service} refuses more work for {address.shown} at present.")


def unknown(address: Address) -> CommitUnknown:
    """Say that nobody knows whether a write was applied."""
    return CommitUnknown(f"The reply of {address.shown} was lost while writing; it is safe to ask again.")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _conflicts(error: Any) -> bool:
    """Tell whether a transaction gave way to another, or was throttled, and no condition failed."""
    codes = {reason.get("Code") for reason in error.response.get("CancellationReasons", ())} - {"None", None}
    return bool(codes) and codes <= _PASSING


def _sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].strip().removesuffix(".")
