"""The server's time, reckoned from this machine's clock between two answers that tell it.

An answer tells what the time was at some moment between asking and hearing: so the server's time lies between what it
told and that much more, and a reckoned time that lies there is left alone. It is never behind what the server has told,
or a job that was claimed because it is due would not seem to be.
"""

import time

from holdfast.domain.moments import SECOND, Micros

_FRESH = 150.0
"""Seconds for which the time is reckoned before the server is asked again."""


class Reckoning:
    """What one store object knows of the server's time."""

    def __init__(self) -> None:
        self._told: tuple[float, float, Micros] | None = None
        """When the server was last asked, and a moment with the server's time at it."""

    def now(self) -> Micros | None:
        """Give the time; none, if the server should be asked."""
        here = time.monotonic()
        return None if self._told is None or here - self._told[0] > _FRESH else self._reckoned(self._told, here)

    def asked(self, began: float, there: Micros) -> Micros:
        """Learn the time from an answer to what was asked at that moment; give it."""
        here = time.monotonic()
        if self._told is not None:
            there = max(there, min(self._reckoned(self._told, here), there + int((here - began) * SECOND)))
        self._told = (here, here, there)
        return there

    def heard(self, there: Micros) -> None:
        """Learn that it is so late, or later."""
        here = time.monotonic()
        if self._told is not None and self._reckoned(self._told, here) < there:
            self._told = (self._told[0], here, there)

    @staticmethod
    def _reckoned(told: tuple[float, float, Micros], here: float) -> Micros:
        _, at, there = told
        return there + int((here - at) * SECOND)
