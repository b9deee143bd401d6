"""A worker on a real SQLite file, in a thread of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """An application with short leases on a file of its own."""
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db", lease=3, heartbeat=0.3, grace=5, upkeep=0.05)
    yield app
    app.close()
