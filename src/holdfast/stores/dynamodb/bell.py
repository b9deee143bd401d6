"""Waking waiters: at once within a process, and by a look at the table every so often for what others do."""

import threading
import weakref
from collections.abc import Callable

_BELLS: "weakref.WeakValueDictionary[tuple[str | None, str], Bell]" = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


class Bell:
    """One bell for all stores of a process on one table."""

    def __init__(self) -> None:
        self._rung = threading.Condition()
        self._times = 0

    def ring(self) -> None:
        """Wake everybody."""
        with self._rung:
            self._times += 1
            self._rung.notify_all()

    @property
    def times(self) -> int:
        """How often it has rung."""
        return self._times

    def heard(self, seen: int, timeout: float, left: Callable[[], bool]) -> bool:
        """Wait until it has rung since `seen`, or whoever waits has left."""
        with self._rung:
            return self._rung.wait_for(lambda: self._times != seen or left(), timeout)


def bell_of(endpoint: str | None, table: str) -> Bell:
    """Give the bell of a table."""
    with _LOCK:
        bell = _BELLS.get((endpoint, table))
        if bell is None:
            bell = _BELLS[endpoint, table] = Bell()
        return bell
