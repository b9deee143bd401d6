"""Signals: being told to stop by them, and saying which one ended a process."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType

_TURN = 0.5


@contextlib.contextmanager
def stopping_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGTERM and SIGINT, where this is the main thread; elsewhere signals are not ours.

    On a thread of its own: a signal handler runs in the middle of whatever the main thread does, and would wait for
    ever for a lock that the main thread holds. Putting into this queue is the one thing that is safe there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: SimpleQueue[bool] = SimpleQueue()

    def heed() -> None:
        while asked.get():
            stop()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        asked.put(True)

    threading.Thread(target=heed, name="holdfast-signals", daemon=True).start()
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.put(False)


def wait_heedful(event: threading.Event) -> None:
    """Wait in the main thread, never for long at a time: a signal that slips in just before a wait, or that the system
    gives to another thread, does not end it, and Python heeds it only when the main thread goes on.
    """
    while not event.wait(_TURN):
        pass


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, end a command as Ctrl-C does: with everything cleaned up."""
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


def ending(code: int) -> str:
    """Say how a process ended, from its return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
