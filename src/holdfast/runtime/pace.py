"""How much work a worker takes in hand: enough to stay busy, never more than it will get to in a moment.

Quick jobs are claimed by the hundred, slow ones one per free slot, and nobody has to tune it: what is in hand beyond
the free slots is what the last moments' rate will use up within `HORIZON`. So a prefetched job waits some hundredths of
a second at the most, and a worker that dies takes few bystanders with it.
"""

HORIZON = 0.05
MOST = 1_000
_WINDOW = 0.01
"""Seconds over which a rate is measured: jobs finish in bursts, and a shorter look would take a burst for the rate."""
_TIMES = 4
"""The part of the time that counts for them at the least: where the store is what takes long, much that is in hand
would wait for it."""
_WEIGHT = 0.5
_QUICK = 5
_LONG_TRIP = 0.01
"""Seconds that a trip takes where calls go far. Before such a trip it pays to wait for a part of what it takes."""
_LONG_FOR_ONE = 0.001
_PART = 0.1
_AWAY, _LONGEST_AWAY = 0.1, 5.0


class Pace:
    """Watches how fast jobs finish and says how many to hold."""

    def __init__(self, concurrency: int, now: float, *, prefetch: bool, trips: int = 1) -> None:
        self._trips = trips
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._rate = 0.0
        self._jobs = 0
        self._since = now
        self._dry = 0.0
        """Seconds since then in which there was nothing in hand."""
        self._dry_since: float | None = None
        self._rested = True
        """There was nothing to take."""
        self._trip = 0.0
        self.away = 0.0
        """For how many seconds not to ask for jobs, unless called: too many others are at it."""

    def ran_dry(self, now: float) -> None:
        """Learn that there is nothing in hand."""
        if self._dry_since is None:
            self._dry_since = now

    def rested(self) -> None:
        """Learn that there is nothing to take, and nothing in hand: how long that lasts says nothing about jobs."""
        self._rested = True

    def fed(self, now: float) -> None:
        """Learn that there is something again: how long the store took for that says nothing about the jobs."""
        if self._rested:
            self._rested, self._dry_since = False, None
            self._jobs, self._since, self._dry = 0, now, 0.0
        elif self._dry_since is not None:
            self._dry += self._dry_until(now)
            self._dry_since = None

    def finished(self, jobs: int, now: float) -> None:
        """Learn that so many more jobs are finished."""
        self._jobs += jobs
        seconds = now - self._since
        if jobs and seconds >= _WINDOW:
            rate = self._jobs / max(seconds - self._dry - self._dry_until(now), seconds / _TIMES)
            self._rate += (_WEIGHT if self._rate else 1.0) * (rate - self._rate)
            self._jobs, self._since, self._dry = 0, now, 0.0

    def _dry_until(self, now: float) -> float:
        return 0.0 if self._dry_since is None else max(now - max(self._dry_since, self._since), 0.0)

    def travelled(self, seconds: float, jobs: int = 0) -> None:
        """Learn how long a trip took, and how many jobs it carried: many may take long where calls do not go far."""
        self._trip = seconds if seconds > jobs * _LONG_FOR_ONE else 0.0

    def asked(self, *, admitted: bool) -> None:
        """Learn whether a claim was admitted: who is turned away again stays away for twice as long."""
        self.away = 0.0 if admitted else min(max(2 * self.away, _AWAY), _LONGEST_AWAY)

    @property
    def patience(self) -> float:
        """For how many seconds a trip may wait for jobs that were begun a moment ago."""
        return self._trip * _PART if self._trip > _LONG_TRIP else 0.0

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
