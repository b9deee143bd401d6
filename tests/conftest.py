"""Fixtures that every folder of tests may ask for."""

import signal
from collections.abc import Iterator

import pytest

from tests import postgres
from tests.aws import emulator
from tests.aws.swept import AT_ONCE
from tests.workers import Working, running


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let what tests start hear Ctrl-C, also where they run in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Give the address of a running PostgreSQL."""
    with postgres.server() as address:
        yield address


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Give the URL of an empty store in PostgreSQL."""
    url = postgres.schema_of(postgres_server)
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """Give the endpoint of a running emulator of AWS."""
    with emulator.server() as endpoint:
        yield endpoint


@pytest.fixture
def dynamodb_url(aws_endpoint: str) -> Iterator[str]:
    """Give the URL of an empty store in DynamoDB."""
    url = emulator.table_of(aws_endpoint)
    yield url
    emulator.drop(url)


@pytest.fixture
def contract_url(aws_endpoint: str) -> Iterator[str]:
    """Give the URL of an empty store of the contract, whose upkeep waits for nothing."""
    url = emulator.contract_of(aws_endpoint, **AT_ONCE)
    yield url
    emulator.drop(url)


@pytest.fixture
def working() -> Working:
    """Give a way to run a worker beside the test."""
    return running
