"""Fixtures that every folder of tests may ask for."""

from collections.abc import Iterator

import pytest

from tests import postgres


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
