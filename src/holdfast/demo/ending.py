"""How the demo ends when it does not end by itself: nothing is left behind then either."""

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from holdfast.demo.crew import Crew

LAST_RESORT = 38.0
"""Seconds after which the demo ends whatever is the matter."""


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, end the demo as Ctrl-C does: with everything cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def last_resort(crew: Crew, folder: Path) -> Iterator[None]:
    """End the whole process if the demo hangs, workers and folder included."""

    def give_up() -> None:
        sys.stderr.write(f"\nThe demo did not end within {LAST_RESORT:.0f} seconds; a promise is broken.\n")
        sys.stderr.flush()
        for worker in crew.alive:
            worker.process.kill()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    timer = threading.Timer(LAST_RESORT, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
