"""When each loop of a server last got through a round, and whether the server can do its work."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.domain.errors import StoreError
from holdfast.port.store import Store

STUCK = 15.0
"""Seconds after which a loop that has not got through a round counts as stuck, besides those that it rests."""
_FRESH = 1.0
"""Seconds for which an answer is good, however many ask."""


class Pulse:
    """The loops of one server."""

    def __init__(self) -> None:
        self._beats: dict[str, float] = {}
        self._followed: dict[str, Callable[[], float]] = {}
        self._rests: dict[str, float] = {}

    def beat(self, loop: str) -> None:
        """Say that a loop got through a round."""
        self._beats[loop] = time.monotonic()

    def rest(self, loop: str) -> None:
        """Say that a loop has nothing to do for now."""
        self._beats.pop(loop, None)

    def follow(self, loop: str, reached: Callable[[], float], rests: float) -> None:
        """Ask a loop that is always there, by the monotonic clock, when it last got through a round; it rests so many
        seconds between two.
        """
        self._followed[loop] = reached
        self._rests[loop] = rests

    def ages(self) -> dict[str, float]:
        """Give the seconds since each running loop last got through a round."""
        now = time.monotonic()
        beats = self._beats | {loop: reached() for loop, reached in self._followed.items()}
        return {loop: now - beat for loop, beat in sorted(beats.items())}

    def stuck(self, ages: Mapping[str, float]) -> bool:
        """Tell whether a loop should have got through a round by now."""
        return any(age >= STUCK + self._rests.get(loop, 0.0) for loop, age in ages.items())


class Readiness:
    """Whether one server can do its work: the store answers, and no loop is stuck."""

    def __init__(self, store: Callable[[], Store], pulse: Pulse) -> None:
        self._store = store
        self._pulse = pulse
        self._asking = threading.Lock()
        self._asked = -_FRESH
        self._workers: int | None = None

    def told(self) -> dict[str, Any]:
        """Say how things stand. Blocks."""
        with self._asking:
            if time.monotonic() - self._asked >= _FRESH:
                self._workers = self._count()
                self._asked = time.monotonic()
            workers = self._workers
        ages = self._pulse.ages()
        well = workers is not None and not self._pulse.stuck(ages)
        return {
            "status": "ready" if well else "not-ready",
            "store": "unreachable" if workers is None else "reachable",
            "loops": {loop: round(age, 3) for loop, age in ages.items()},
            "workers": workers,
        }

    def _count(self) -> int | None:
        try:
            return len(self._store().workers())
        except StoreError:
            return None
