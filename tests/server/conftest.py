"""What the tests of the server share: an application without kinds of its own, and a caller of its server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from tests.server.calling import called


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


@pytest.fixture
def caller(app: Holdfast) -> Iterator[httpx.Client]:
    with called(app) as caller:
        yield caller
