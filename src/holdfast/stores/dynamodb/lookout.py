"""When a worker that nobody calls looks at the table: often after something has happened, ever more rarely then.

A look costs a read of each shard, so a worker that has been idle for long looks only every so often. Until then it
goes without one for a tenth of the time that it has been idle.
"""

from holdfast.domain.moments import SECOND, Micros
from holdfast.port.clock import Clock

_SOONEST = 1.0
"""Seconds between two looks while things happen."""
_SHORTEST = 0.05
"""Nobody looks more often, whatever the URL says."""
_SHARE = 10


class Lookout:
    """The looks of one store; `longest` is the most seconds between two."""

    def __init__(self, clock: Clock, longest: float) -> None:
        self._clock = clock
        self._longest = max(longest, _SHORTEST)
        self.stir()

    @property
    def left(self) -> float:
        """The seconds until the next look."""
        return max(self._next - self._clock.monotonic(), 0.0)

    def stir(self) -> None:
        """Look more often from now on: something has happened."""
        self._quiet_since = self._clock.monotonic()
        self._next = self._quiet_since + min(_SOONEST, self._longest)

    def looked(self, due_in: Micros | None) -> None:
        """Put the next look off: until a job is due, if none comes before it."""
        now = self._clock.monotonic()
        pause = min(max((now - self._quiet_since) / _SHARE, _SOONEST), self._longest)
        self._next = now + (pause if due_in is None else min(pause, due_in / SECOND))
