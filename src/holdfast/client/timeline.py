"""What has happened to a job, oldest first, told from its record, its attempts, its steps and its signals."""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.domain.job import TERMINAL, AttemptRecord, JobRecord, SignalRecord, StepRecord
from holdfast.domain.moments import Micros


class Happening(NamedTuple):
    """One thing that happened."""

    at: Micros
    what: str
    """`created`, `claimed`, `step`, `signal`, the verb that ended an attempt (`fail`, `release`, …), or the state in
    which the job ended."""
    generation: int | None = None
    attempt: int | None = None
    name: str | None = None
    """The step's or the signal's."""
    code: str | None = None
    message: str | None = None
    owner: str | None = None


def timeline(
    job: JobRecord,
    attempts: Iterable[AttemptRecord],
    steps: Iterable[StepRecord],
    signals: Iterable[SignalRecord],
) -> list[Happening]:
    """Put all of it in order."""
    told = [Happening(job.created_at, "created")]
    for each in attempts:
        which = Happening(each.claimed_at or 0, "claimed", each.generation, each.attempt, owner=each.owner)
        if each.claimed_at is not None:
            told.append(which)
        if each.ended_at is not None:
            told.append(which._replace(at=each.ended_at, what=each.outcome, code=each.code, message=each.message))
    told += [Happening(step.recorded_at, "step", name=step.name) for step in steps]
    told += [Happening(signal.sent_at, "signal", name=signal.name) for signal in signals]
    told.sort(key=lambda each: each.at)
    if job.state in TERMINAL and job.finished_at is not None:
        told.append(Happening(job.finished_at, job.state.value, job.generation, job.attempt, code=job.cause))
    return told
