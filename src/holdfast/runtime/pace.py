"""How much work a worker takes in hand: enough to stay busy, never more than it will get to in a moment.

Quick jobs are claimed by the hundred, slow ones one per free slot, and nobody has to tune it: what is in hand beyond
the free slots is what the last
moments' rate will use up within `HORIZON`. So a prefetched job waits some hundredths of a second at the most.
"""

HORIZON = 0.05
MOST = 2_000
_WEIGHT = 0.4


class Pace:
    """Watches how fast jobs finish and says how many to hold."""

    def __init__(self, concurrency: int, *, prefetch: bool) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._rate = 0.0

    def finished(self, jobs: int, seconds: float) -> None:
        """Learn that so many jobs were finished in so much busy time."""
        self._rate += _WEIGHT * (jobs / max(seconds, 1e-4) - self._rate)

    @property
    def hold(self) -> int:
        """How many jobs to hold, running ones included."""
        if not self._prefetch:
            return self._concurrency
        return self._concurrency + min(MOST, int(self._rate * HORIZON))
