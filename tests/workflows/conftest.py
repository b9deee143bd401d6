"""What the tests of workflows share: an application on every store, with real workers beside the test."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.workers import LONG

Until = Callable[[Callable[[], object]], None]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case _:
            return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def app(url: str, tmp_path: Path) -> Iterator[Holdfast]:
    """An application with short leases on each store."""
    app = Holdfast(url, lease=2, heartbeat=0.2, grace=5, upkeep=0.05, artifacts=f"file://{tmp_path}/artifacts")
    yield app
    app.close()


@pytest.fixture
def until() -> Until:
    """Give a way to wait for something that a worker brings about."""

    def wait(condition: Callable[[], object]) -> None:
        pause = threading.Event()
        for _ in range(int(LONG / 0.01)):
            if condition():
                return
            pause.wait(0.01)
        pytest.fail("it did not happen")

    return wait
