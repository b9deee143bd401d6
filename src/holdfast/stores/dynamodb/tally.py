"""Numbers of jobs that are to be written: at once if none were for a while, and then together, once in a second.

They need not be exact, and a write for each enqueued job costs a unit. What a process that dies has not written yet is
missing until jobs are counted anew.
"""

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from holdfast.domain.errors import StoreError
from holdfast.domain.job import State

Numbers = Mapping[tuple[str, State], int]
"""By how much the number of jobs has changed, by queue and state."""
_PAUSE = 1.0
"""Seconds between two writes."""


class Tally:
    """The numbers that this process has not written yet: one tally for all its stores on one table."""

    def __init__(self, write: Callable[[Numbers], None]) -> None:
        self._write = write
        self._left: Counter[tuple[str, State]] = Counter()
        self._last = float("-inf")
        self._timer: threading.Timer | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def add(self, numbers: Numbers) -> None:
        """Take numbers up, and write them soon."""
        with self._lock:
            if self._pid != os.getpid():  # what was left at a fork is the parent's
                self._pid, self._timer = os.getpid(), None
                self._left.clear()
            self._left.update(numbers)
            wait = self._last + _PAUSE - time.monotonic()
            if wait > 0:
                if self._timer is None:
                    self._timer = threading.Timer(wait, self.flush)
                    self._timer.daemon = True
                    self._timer.start()
                return
        self.flush()

    def flush(self) -> None:
        """Write what is left. If that fails it is let go: numbers are not worth failing for."""
        with self._lock:
            numbers = {what: number for what, number in self._left.items() if number}
            mine, timer = self._pid == os.getpid(), self._timer
            self._left.clear()
            self._timer, self._last = None, time.monotonic()
        if timer is not None:
            timer.cancel()
        if numbers and mine:
            with suppress(StoreError):
                self._write(numbers)


_TALLIES: "weakref.WeakValueDictionary[tuple[str | None, str], Tally]" = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def tally_of(endpoint: str | None, table: str, write: Callable[[Numbers], None]) -> Tally:
    """Give the tally of a table; `write` writes numbers there."""
    with _LOCK:
        tally = _TALLIES.get((endpoint, table))
        if tally is None:
            tally = _TALLIES[endpoint, table] = Tally(write)
        return tally
