"""Calls to the services of AWS that hold what a store needs, with their errors in one sentence each."""

import time
from typing import Any

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    InvalidRegionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from holdfast.aws.desired import Account
from holdfast.aws.session import client
from holdfast.domain.errors import BadInput, HoldfastError, StoreError, StoreUnreachable, StoreUnusable

_MISSING = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchEntity",
        "NotFound",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
    }
)
_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"})
_EARLY = frozenset({"ContinuousBackupsUnavailableException", "ResourceInUseException"})
_LOOKS, _PAUSE = 300, 2.0
"""How often, and with how many seconds between, something that AWS takes its time for is looked at."""


class Calls:
    """One account's services, in a region and at an endpoint."""

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        self._region = region
        self._endpoint = endpoint
        self._clients: dict[str, Any] = {}

    def account(self) -> Account:
        """Learn whose credentials these are, and where they lead."""
        number = str(self.tell("sts", "get_caller_identity")["Account"])
        meta = self._client("dynamodb").meta
        return Account(number, str(meta.region_name), str(meta.partition))

    def tell(self, service: str, operation: str, **arguments: Any) -> Any:
        """Make a call; again if what it is about is still being made."""
        for left in reversed(range(_LOOKS)):
            try:
                return getattr(self._client(service), operation)(**arguments)
            except (ClientError, BotoCoreError) as error:
                if not left or not isinstance(error, ClientError) or _code(error) not in _EARLY:
                    raise self._said(error, service, operation) from error
            time.sleep(_PAUSE)
        raise AssertionError

    def ask(self, service: str, operation: str, **arguments: Any) -> Any:
        """Make a call about something that may not be there; None if it is not."""
        try:
            return getattr(self._client(service), operation)(**arguments)
        except ClientError as error:
            if _code(error) in _MISSING:
                return None
            raise self._said(error, service, operation) from error
        except BotoCoreError as error:
            raise self._said(error, service, operation) from error

    def await_table(self, name: str) -> None:
        """Wait until a table can be used, and its indexes are filled."""
        for _ in range(_LOOKS):
            table = self.tell("dynamodb", "describe_table", TableName=name)["Table"]
            parts = [table["TableStatus"], *(one["IndexStatus"] for one in table.get("GlobalSecondaryIndexes", ()))]
            if set(parts) == {"ACTIVE"}:
                return
            time.sleep(_PAUSE)
        msg = f"The table {name!r} is not ready yet; ask again later, what is done is not done twice."
        raise StoreError(msg)

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            try:
                self._clients[service] = client(service, self._region, self._endpoint)
            except HoldfastError:
                raise
            except (BotoCoreError, ValueError) as error:
                raise self._said(error, service, "connect") from error
        return self._clients[service]

    def _said(self, error: Exception, service: str, operation: str) -> HoldfastError:
        where = f"{service} in {self._region}" if self._region else service
        match error:
            case NoCredentialsError() | PartialCredentialsError():
                return StoreUnusable(
                    "There are no AWS credentials; set them, or take a profile or a role that has some."
                )
            case ProfileNotFound():
                return StoreUnusable(f"{_sentence(error)}; set AWS_PROFILE to one that is there.")
            case InvalidRegionError():
                return BadInput(f"{self._region!r} is not a region of AWS; name one with --region.")
            case EndpointConnectionError() | ConnectTimeoutError():
                return StoreUnreachable(f"Nobody answers for {where}; is the region right, and the endpoint?")
            case ClientError():
                return _refused(error, where, operation)
            case ValueError():
                return BadInput(f"{self._endpoint!r} is not an endpoint; write --endpoint http://HOST:PORT.")
            case _:
                return StoreError(f"{where} could not be asked: {_sentence(error)}.")


def _refused(error: Any, where: str, operation: str) -> HoldfastError:
    if _code(error) in _CREDENTIALS:
        return StoreUnusable("AWS does not accept the credentials; they may have expired.")
    if _code(error) in _DENIED:
        return StoreUnusable(f"The credentials do not allow {operation} on {where}: {_sentence(error)}.")
    return StoreError(f"{where} refused {operation}: {_sentence(error)}.")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].strip().removesuffix(".")
