"""A worker on a real SQLite file, in a thread of the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.runtime.service import Service

LONG = 20.0
"""Seconds after which something that should have happened counts as not happening."""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """An application with short leases on a file of its own."""
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db", lease=3, heartbeat=0.3, grace=5, upkeep=0.05)
    yield app
    app.close()


Working = Callable[..., Any]


@pytest.fixture
def working() -> Working:
    """Give a way to run a worker beside the test."""

    @contextmanager
    def run(app: Holdfast, **options: Any) -> Iterator[Service]:
        service = app.service(**options)
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield service
        finally:
            service.stop()
            service.stop()
            thread.join(LONG)
            assert not thread.is_alive(), "the worker did not stop"

    return run
