"""Where a worker's claims stopped, lane by lane, so that the next one need not pass over what is gone.

Deleted rows stay in an index until vacuum may remove them, which a long transaction anywhere in the database prevents;
a claim that starts at the front then passes over every job that was ever taken. So a worker that takes hundreds at a
time goes on from its marks. What comes to stand behind them (committed late, given an old due time, of a new priority)
is found by a look from the front: four times a second, or, if a look is dear, so seldom that looks take up a twentieth
of the time. Whoever takes few jobs looks from the front each time, as long as that is cheap.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros

MANY = 100
"""Whoever takes so many at once reckons with some being out of order for a moment."""
_LOOK = 0.25
_SHARE = 20
_FREE = 0.01
"""Seconds by which a look may take longer than usual and still cost nothing."""
_TIMES = 4
"""So many dear looks in a row are no accident."""
_PER_JOB = 0.0001
_OVERHEAD = 20
"""A trip takes as long as so many jobs, besides those it brings."""
_APART = 1.0
"""Seconds for which a lane that turned out not to be the only one, or to be in vain, is not taken for that again."""
_VAIN = 3
"""So many claims in vain in a row may be an accident: what one was called for, the one before has brought."""
_CAREFUL = 16
"""Of so many claims in a crowd, one also tries what seems to be in somebody's hands."""


class Lane(NamedTuple):
    """Jobs of one queue and one priority."""

    queue: str
    rank: int


class Mark(NamedTuple):
    """The last job that was taken from a lane."""

    at: Micros
    id: str


START = Mark(-(2**63), "00000000-0000-0000-0000-000000000000")


class Marks:
    """The marks of one worker."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, Mark] = {}
        self._cost = 0.0
        self._looked = 0.0
        self._dear = 0
        self._many = False
        self._per_job = _PER_JOB
        self._alone: Lane | None = None
        self._not_alone = 0.0
        self._vain = 0
        """How often in a row the only lane gave nothing, and nothing else did."""
        self._until_careful = 0

    def lanes(self, now: float) -> dict[Lane, Mark] | None:
        """Give the lanes to read and where to start; `None` asks for a look from the front."""
        since = now - self._looked
        front = since >= self._cost * _SHARE and (not self._many or since >= _LOOK)
        return None if front else self._lanes.copy()  # another trip may be learning meanwhile

    def looks(self, now: float) -> None:
        """Learn that a look from the front begins: where two trips are under way, the other need not look as well."""
        self._looked = now

    def alone(self, now: float) -> Lane | None:
        """Give the lane that may be the only one: the last look from the front took jobs of it alone."""
        return self._alone if now - self._not_alone >= _APART else None

    def in_vain(self, jobs: Sequence[JobRecord], now: float) -> None:
        """Learn that it gave nothing, and what a look round found then. Whoever finds nothing again and again is one of
        many who are called for the same job, and had better look once.
        """
        self._vain += 1
        if self._vain > _VAIN or any(_lane(job) != self._alone for job in jobs):
            self.not_alone(now)

    def answered(self) -> None:
        """Learn that it gave what somebody was called for."""
        self._vain = 0

    def not_alone(self, now: float) -> None:
        """Learn that it is not the only one, or of no use."""
        self._alone, self._not_alone, self._vain = None, now, 0

    def careful(self) -> bool:
        """Tell whether it is time to try every job: the first time, now and then, and after a failure."""
        self._until_careful = (self._until_careful or _CAREFUL) - 1
        return self._until_careful == _CAREFUL - 1

    def found_nothing(self) -> None:
        """Learn that nothing was free: the next claim also tries what is not."""
        self._until_careful = 0

    def failed(self) -> None:
        """Learn that a claim failed: what it held looks as if somebody had it, and what it saw is not known."""
        self._until_careful = 0
        self._looked = 0.0

    def took(self, jobs: Sequence[JobRecord], limit: int, seconds: float, *, front: bool) -> None:
        """Learn what a claim took, best first, and how long: what a look from the front took beyond the usual is its
        cost.
        """
        if jobs and _mark(jobs[0]) < self._lanes.get(_lane(jobs[0]), START):
            self._until_careful = 0  # somebody gave up what he held; there may be more of it
        last = {(job.queue, job.priority): job for job in jobs}
        for job in last.values():
            lane, mark = _lane(job), _mark(job)
            if mark > self._lanes.get(lane, START):
                self._lanes[lane] = mark
        self._many = len(jobs) >= max(limit, MANY)
        size = len(jobs) + _OVERHEAD
        if not front:
            self._per_job += 0.1 * (min(seconds / size, _PER_JOB) - self._per_job)
            return
        if last:
            one, *others = last.values()
            self._alone = None if others else _lane(one)
            self._vain = 0
        extra = seconds - self._per_job * size
        self._dear = self._dear + 1 if extra > _FREE else 0
        self._cost = extra if self._dear >= (1 if self._many else _TIMES) else 0.0
        self._looked = time.monotonic()


def _lane(job: JobRecord) -> Lane:
    return Lane(job.queue, -job.priority)


def _mark(job: JobRecord) -> Mark:
    return Mark(job.available_at, job.id)
