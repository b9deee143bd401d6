"""How a run ends that does not end by itself: nothing is left behind then either."""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.demo.crew import Crew

LAST_RESORT = 38.0
"""Seconds after which the demo ends whatever is the matter."""


@contextlib.contextmanager
def last_resort(crew: Crew, folder: Path, what: str = "demo", seconds: float | None = None) -> Iterator[None]:
    """End the whole process if it hangs, workers and folder included."""
    patience = LAST_RESORT if seconds is None else seconds

    def give_up() -> None:
        sys.stderr.write(f"\nThe {what} did not end within {patience:.0f} seconds; a promise is broken.\n")
        sys.stderr.flush()
        for worker in crew.alive:
            worker.process.kill()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    timer = threading.Timer(patience, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
