"""Real workers beside a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast import Holdfast
from holdfast.runtime.service import Service

LONG = 20.0
"""Seconds after which something that should have happened counts as not happening."""

Working = Callable[..., AbstractContextManager[Service]]


@contextmanager
def running(app: Holdfast, **options: Any) -> Iterator[Service]:
    """Run a worker in a thread; it is gone at the end, or the test fails."""
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
