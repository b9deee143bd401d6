"""What the tests of the client share: an application on each store, under a clock that the test moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    app = Holdfast(url, clock=clock)
    yield app
    app.close()
