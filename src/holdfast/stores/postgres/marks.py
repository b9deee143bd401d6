"""Where a worker's claims stopped, lane by lane, so that the next one need not pass over what is gone.

Deleted rows stay in an index until vacuum may remove them, which a long transaction anywhere in the database prevents;
a claim that starts at the front then passes over every job that was ever taken. So claims start at the mark. What
comes to stand behind it (committed late, given an old due time) is found by a look from the front, which is taken
whenever it is cheap, and when it is not, so seldom that looks take up a twentieth of the time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros

_FREE = 0.01
"""Seconds by which a look may take longer than usual and still cost nothing."""
_TIMES = 4
"""So many dear looks in a row are no accident."""
_SHARE = 20
_MOST_PER_JOB = 0.0001
_OVERHEAD = 20
"""A trip takes as long as so many jobs, besides those it brings."""


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
        self._per_job = _MOST_PER_JOB

    def lanes(self, now: float) -> dict[Lane, Mark] | None:
        """Give the lanes to read and where to start; `None` asks for a look from the front."""
        return None if now - self._looked >= self._cost * _SHARE else self._lanes

    def took(self, jobs: Iterable[JobRecord]) -> None:
        """Learn what was taken."""
        for job in jobs:
            lane, mark = Lane(job.queue, -job.priority), Mark(job.available_at, job.id)
            if mark > self._lanes.get(lane, START):
                self._lanes[lane] = mark

    def looked(self, began: float, ended: float, found: int, *, front: bool) -> None:
        """Learn how long a claim took: what one from the front took beyond the usual is what the look cost."""
        took = ended - began
        extra = took - self._per_job * (found + _OVERHEAD)
        if extra < _FREE:
            self._per_job = min(self._per_job * 1.02, took / (found + _OVERHEAD), _MOST_PER_JOB)
        if front:
            self._dear = self._dear + 1 if extra >= _FREE else 0
            self._cost, self._looked = (extra if self._dear >= _TIMES else 0.0), ended
