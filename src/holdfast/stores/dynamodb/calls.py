"""Calls to AWS: sent again with jitter while they are refused for a passing reason, and their errors in our words.

botocore's own retries are off, because only here is it known what a repeated write means: every write carries a token,
and a write that fails against its own success is told by it.
"""

import os
import platform
import random
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import boto3  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from holdfast.stores.dynamodb import trouble
from holdfast.stores.dynamodb.address import Address

THREADS = 16
_TRIES = 9
_PAUSE = 0.025
_LONGEST = 2.0
_SERVICES = {"dynamodb": "DynamoDB", "sqs": "SQS"}
_READ_TIMEOUTS = {"dynamodb": 10, "sqs": 30}
"""In seconds; a receive waits for messages."""


class Calls:
    """One service of AWS."""

    def __init__(self, address: Address, service: str) -> None:
        self.address = address
        self._service = service

    def call(self, operation: str, *, writes: bool = False, **arguments: Any) -> Any:
        """Make one call, again and again for as long as the reason for its refusal may pass."""
        unsure = False
        error: Exception | None = None
        for pause in pauses():
            try:
                return getattr(self.client, operation)(**arguments)
            except trouble.TROUBLE as refused:
                error = refused
                unsure = unsure or (writes and trouble.unsure(refused))
                if not trouble.passing(refused) and not (unsure and trouble.unreached(refused)):
                    raise trouble.translate(refused, self.address, self.name) from refused
            time.sleep(pause)
        raise (trouble.unknown(self.address) if unsure else self.busy()) from error

    def busy(self) -> Exception:
        """Say that a call was refused for too long."""
        return trouble.busy(self.address, self.name)

    @property
    def name(self) -> str:
        """The service as sentences name it."""
        return _SERVICES[self._service]

    @property
    def client(self) -> Any:
        """The client of this process."""
        address = self.address
        return _client(self._service, os.getpid(), address.region, address.endpoint, address.emulated)


@lru_cache
def _client(service: str, pid: int, region: str | None, endpoint: str | None, emulated: bool) -> Any:  # noqa: ARG001, FBT001
    own = botocore.session.Session()
    session = boto3.session.Session(botocore_session=own)
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=4 * THREADS,
        connect_timeout=3,
        read_timeout=_READ_TIMEOUTS[service],
        tcp_keepalive=True,
        parameter_validation=False,  # the server checks them too, and what is written here is ours
        user_agent=_user_agent(own),
    )
    pretended: dict[str, str] = {}
    if emulated:
        region = region or session.region_name or "us-east-1"
        if session.get_credentials() is None:
            pretended = {"aws_access_key_id": "holdfast", "aws_secret_access_key": "holdfast"}
    return session.client(service, region_name=region, endpoint_url=endpoint, config=config, **pretended)


def _user_agent(session: Any) -> str:
    """Say who calls, once: botocore would put it together anew twice for each call, which takes a part of its time that
    shows. It adds its own version.
    """
    app = session.get_config_variable("user_agent_appid")
    return f"holdfast Boto3/{boto3.__version__} Python/{platform.python_version()}" + (f" app/{app}" if app else "")


def pauses() -> Iterator[float]:
    """Give the pauses between tries: longer each time, and never the same for two who met."""
    for number in range(_TRIES):
        yield random.uniform(0, min(_LONGEST, _PAUSE * 2**number))  # noqa: S311 - jitter
