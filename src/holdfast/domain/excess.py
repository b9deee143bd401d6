"""What becomes of jobs that find a limit full, where they are not just to wait."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, JobRecord, Retention, State
from holdfast.domain.limits import Limit
from holdfast.domain.move import Move

DROPPED = "limit"
"""The failure code of a job that found its limit full."""
SUPERSEDED = "superseded"
"""The failure code of a job that gave way to a newer one."""
_TEXTS = {DROPPED: "as many jobs were running as may run at once", SUPERSEDED: "a newer job took its place"}
SHED = frozenset(_TEXTS)
"""The failure codes of jobs that were cancelled because of a limit."""


class Excess(NamedTuple):
    """A job that is to go, and why."""

    job: JobRecord
    why: str


def beyond(limit: Limit, running: Sequence[JobRecord], waiting: Sequence[JobRecord]) -> list[Excess]:
    """Name the jobs of one subject that are to go: those that wait at a full limit or, if they are to replace the
    oldest that runs, all of them but the newest, and that one.
    """
    if limit.concurrency is None or len(running) < limit.concurrency or not waiting:
        return []
    if limit.full == "drop":
        return [Excess(job, DROPPED) for job in waiting]
    newest = max(waiting, key=_age)
    gone = [Excess(job, SUPERSEDED) for job in waiting if job is not newest]
    if not any(job.cancel_requested or lifecycle.undoing(job) for job in running):
        gone.append(Excess(min(running, key=_age), SUPERSEDED))
    return gone


def decide(excess: Excess, retention: Retention) -> Move:
    """Decide how such a job goes: at once while it waits, by asking its worker while it runs."""
    move = lifecycle.cancel(excess.job, retention)
    if excess.job.state is State.RUNNING:
        return move
    return move._replace(failure=Failure(excess.why, _TEXTS[excess.why], retryable=False))


def _age(job: JobRecord) -> tuple[int, str]:
    return job.created_at, job.id
