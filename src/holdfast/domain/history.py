"""The attempts of a job, as its history tells them."""

from holdfast.domain.job import AttemptRecord, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move, Verb


def ended_attempt(job: JobRecord, move: Move, now: Micros) -> AttemptRecord | None:
    """Give the attempt record that a move leaves in the history, if it ends an attempt in any way but success.

    A successful attempt needs no row of its own: the job's record tells all there is to know.
    """
    if job.state is not State.RUNNING or move.state in (State.RUNNING, State.SUCCEEDED):
        return None
    failure = move.failure
    return AttemptRecord(
        job.token, job.generation, job.attempt, job.lease_owner, job.claimed_at, now, move.verb.value,
        failure.code if failure else None, failure.message if failure else None, move.traceback,
    )  # fmt: skip


def last_attempt(job: JobRecord) -> AttemptRecord | None:
    """Give the attempt that is told by the job's own record: the one running now, or the one that succeeded."""
    if job.state not in (State.RUNNING, State.SUCCEEDED) or job.claimed_at is None:
        return None
    outcome = "running" if job.state is State.RUNNING else Verb.COMPLETE.value
    return AttemptRecord(
        job.token,
        job.generation,
        job.attempt,
        job.lease_owner,
        job.claimed_at,
        job.finished_at,
        outcome,
        None,
        None,
        None,
    )
