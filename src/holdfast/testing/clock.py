"""A clock that stands still until a test moves it."""

import threading
from datetime import UTC, datetime, timedelta

from holdfast.domain.moments import Micros, instant

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Both clocks of the `Clock` protocol in one; safe to move from any thread."""

    def __init__(self, start: datetime = START) -> None:
        self._lock = threading.Lock()
        self._start = instant(start, "start")
        self._passed: Micros = 0

    def now(self) -> Micros:
        """Give the present instant in microseconds since 1970."""
        with self._lock:
            return self._start + self._passed

    def monotonic(self) -> float:
        """Give the seconds that have passed since the clock was made."""
        with self._lock:
            return self._passed / 1_000_000

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
        microseconds: float = 0,
    ) -> Micros:
        """Let time pass, as much as a `timedelta` of the same arguments; give the new present."""
        span = timedelta(
            days=days,
            hours=hours,
            minutes=minutes,
            seconds=seconds,
            milliseconds=milliseconds,
            microseconds=microseconds,
        )
        if span < timedelta(0):
            msg = f"Time does not run backwards; the clock was to advance by {span}."
            raise ValueError(msg)
        with self._lock:
            self._passed += span // timedelta(microseconds=1)
            return self._start + self._passed
