"""A job's result: how long to wait between looks at a job that has not ended, and what to make of one that has."""

import math
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast.client.registry import Registry
from holdfast.domain import codec
from holdfast.domain.errors import BadInput, JobCancelled, JobDead, ResultTimeout
from holdfast.domain.job import JobRecord, State

_FIRST_LOOK, _LAST_LOOK = 0.002, 0.05


class Patience:
    """How long one caller waits for a result. It looks often at first, and less often the longer it takes."""

    def __init__(self, timeout: float | timedelta | None) -> None:
        self._timeout = math.inf if timeout is None else _seconds(timeout)
        self._end = time.monotonic() + self._timeout
        self._pause = _FIRST_LOOK

    def pause(self, record: JobRecord) -> float:
        """Say how many seconds to wait before the next look; raises `ResultTimeout` if there was enough of it."""
        left = self._end - time.monotonic()
        if left <= 0:
            msg = f"Job {record.id} is still {record.state} after {self._timeout} s."
            raise ResultTimeout(msg)
        pause, self._pause = self._pause, min(self._pause * 1.5, _LAST_LOOK)
        return min(pause, left)


def result_of(record: JobRecord, registry: Registry, load: Callable[[str], str]) -> object:
    """Read the result of a job that has ended; raises `JobDead` or `JobCancelled` if it did not succeed."""
    if record.state is State.CANCELLED:
        msg = f"Job {record.id} was cancelled."
        raise JobCancelled(msg)
    if record.state is State.DEAD:
        why = ", ".join(filter(None, (record.failure_code, record.failure_message)))
        msg = f"Job {record.id} is dead ({record.cause}): {why.removesuffix('.')}."
        raise JobDead(msg)
    if record.result is None:
        return None
    kind, stored = registry.get(record.kind), load(record.result)
    return codec.decode(stored) if kind is None else kind.read_result(stored)


def _seconds(timeout: float | timedelta) -> float:
    """A time that is over already is as good as none at all: callers share one deadline between several waits."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        msg = f"timeout must be a number of seconds or a timedelta, not {timeout!r}."
        raise BadInput(msg)
    return seconds
