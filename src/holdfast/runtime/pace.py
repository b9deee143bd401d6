"""How much work a worker takes in hand: enough to stay busy, never more than it will get to in a moment.

Quick jobs are claimed by the hundred, slow ones one per free slot, and nobody has to tune it: what is in hand beyond
the free slots is what the last moments' rate will use up within `HORIZON`. So a prefetched job waits some hundredths of
a second at the most, and a worker that dies takes few bystanders with it.
"""

HORIZON = 0.05
MOST = 1_000
_WINDOW = 0.01
"""Seconds over which a rate is measured: jobs finish in bursts, and a shorter look would take a burst for the rate."""
_WEIGHT = 0.5
_QUICK = 5


class Pace:
    """Watches how fast jobs finish and says how many to hold."""

    def __init__(self, concurrency: int, now: float, *, prefetch: bool, trips: int = 1) -> None:
        self._trips = trips
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._rate = 0.0
        self._jobs = 0
        self._since = now

    def finished(self, jobs: int, now: float) -> None:
        """Learn that so many more jobs are finished."""
        self._jobs += jobs
        seconds = now - self._since
        if seconds >= _WINDOW:
            self._rate += (_WEIGHT if self._rate else 1.0) * (self._jobs / seconds - self._rate)
            self._jobs, self._since = 0, now

    def misjudged(self) -> None:
        """Learn that jobs in hand had to wait: take one per slot until the rate is known again."""
        self._rate = 0.0

    @property
    def quick(self) -> bool:
        """Whether jobs are so quick that going to and fro takes longer than they do."""
        return self._prefetch and self._rate * HORIZON > _QUICK * self._concurrency

    @property
    def hold(self) -> int:
        """How many jobs to hold, running ones included."""
        if not self._prefetch:
            return self._concurrency
        return self._concurrency + min(MOST, int(self._rate * HORIZON)) * self._trips
