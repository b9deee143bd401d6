"""Where time comes from. Stores, workers and tests share one narrow protocol."""

import time
from typing import Protocol

from holdfast.domain.moments import Micros


class Clock(Protocol):
    """A wall clock for instants that are stored, and a monotonic one for durations that are measured."""

    def now(self) -> Micros:
        """Give the present instant in microseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Give seconds on a clock that never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Micros:
        """Give the present instant in microseconds since 1970."""
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)
