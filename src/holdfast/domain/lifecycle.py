"""The lifecycle: every rule about how a job moves from state to state, and nothing else.

Each verb is a function that looks at a record and *decides* a `Move`: the new state, what else changes, and the guard
under which it may be written. Durations in a move are relative, because only the store knows what time it is; `apply`
turns a move and the store's time into the next record, and `holds` says whether the guard still stands. Stores write
moves; they never
decide them. `claim` and `heartbeat` act on many jobs at once, so SQL stores fold them into one statement, which the
differential
tests compare with the functions here.

Total over state x verb: `LEGAL` names the states each verb accepts, and every other pair raises `IllegalMove`.
"""

from enum import StrEnum
from typing import NamedTuple

from holdfast.domain import codec, retry
from holdfast.domain.errors import IllegalMove, KeyConflict
from holdfast.domain.job import (
    CLAIMABLE,
    TERMINAL,
    WAITING,
    AttemptRecord,
    Cause,
    Failure,
    JobRecord,
    NewJob,
    Retention,
    State,
)
from holdfast.domain.moments import Micros


class Verb(StrEnum):
    """Everything that can be done to a job."""

    CREATE = "create"
    SUBMIT = "submit"
    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    CHECKPOINT = "checkpoint"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    SNOOZE = "snooze"
    REAP = "reap"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    PURGE = "purge"


_RUNNING = frozenset({State.RUNNING})

LEGAL: dict[Verb, frozenset[State]] = {
    Verb.CREATE: frozenset(),
    Verb.SUBMIT: frozenset({State.CREATED}),
    Verb.CLAIM: CLAIMABLE,
    Verb.START: _RUNNING,
    Verb.HEARTBEAT: _RUNNING,
    Verb.CHECKPOINT: _RUNNING,
    Verb.COMPLETE: _RUNNING,
    Verb.FAIL: _RUNNING,
    Verb.RELEASE: _RUNNING,
    Verb.SNOOZE: _RUNNING,
    Verb.REAP: CLAIMABLE | _RUNNING,
    Verb.CANCEL: WAITING | _RUNNING,
    Verb.REDRIVE: frozenset({State.DEAD}),
    Verb.PURGE: TERMINAL,
}
"""The states each verb accepts. `create` accepts none: it makes a job where there was no state at all."""

TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.CREATED, State.QUEUED),
        (State.CREATED, State.CANCELLED),
        (State.QUEUED, State.RUNNING),
        (State.QUEUED, State.CANCELLED),
        (State.QUEUED, State.DEAD),
        (State.RETRYING, State.RUNNING),
        (State.RETRYING, State.CANCELLED),
        (State.RETRYING, State.DEAD),
        (State.RUNNING, State.RUNNING),
        (State.RUNNING, State.RETRYING),
        (State.RUNNING, State.SUCCEEDED),
        (State.RUNNING, State.DEAD),
        (State.RUNNING, State.CANCELLED),
        (State.DEAD, State.QUEUED),
    }
)
"""Every pair of (old, new) states a journal may show."""

LEASE_EXPIRED = "lease_expired"
EXPIRED = "expired"


class Held(NamedTuple):
    """Guard of the lease's holder: the job is running under exactly this token and lease id."""

    token: int
    lease_id: str


class Seen(NamedTuple):
    """Guard of everyone else: the job has not changed since this version was read."""

    version: int


class Move(NamedTuple):
    """One decided transition. `None` for a duration leaves the time it would set unset."""

    verb: Verb
    id: str
    queue: str
    """The job's queue, so that a store can keep its counters without reading the job."""
    guard: Held | Seen
    state: State
    attempt: int
    crashes: int
    generation: int
    delay: Micros | None = None
    """Sets `available_at` to the store's now plus this."""
    purge_after: Micros | None = None
    """Set on terminal moves: `finished_at` becomes now and `purge_at` now plus this."""
    cause: Cause | None = None
    failure: Failure | None = None
    traceback: str | None = None
    result: str | None = None
    step: str | None = None
    cancel_requested: bool = False
    yields: bool = False
    """Refused once a cancellation has been asked for: the holder must settle that first."""


class Answer(StrEnum):
    """What a store says to a move. The two refusals are the words of the delivery contract."""

    OK = "ok"
    ALREADY_CLAIMED = "already-claimed"
    NO_OP_TERMINAL = "no-op-terminal"
    CANCEL_REQUESTED = "cancel-requested"
    ABSENT = "absent"
    UNWRITABLE = "unwritable"
    """The store cannot keep what this move carries; the rest of its batch was not held up by it."""


def refusal(state: State | None) -> Answer:
    """Say why nothing can be done for whoever does not hold a job in this state; no state means no job."""
    if state is None:
        return Answer.ABSENT
    return Answer.NO_OP_TERMINAL if state in TERMINAL else Answer.ALREADY_CLAIMED


def require(job: JobRecord, verb: Verb) -> None:
    """Raise `IllegalMove` unless the verb is legal in the job's state."""
    if job.state not in LEGAL[verb]:
        msg = f"A job that is {job.state} cannot {verb}."
        raise IllegalMove(msg, reason=refusal(job.state))


def create(id: str, new: NewJob, now: Micros) -> JobRecord:  # noqa: A002 - the record's own word
    """Make the first record of a job."""
    available_at, expires_at = due(new, now)
    return JobRecord(
        id, new.kind, new.queue, new.tenant, new.user, new.priority, new.payload, new.retry, new.max_attempts,
        new.crash_cap, new.trigger, new.trace_id, new.key, now, expires_at, new.steps_total, new.state,
        1, 1, 0, 0, available_at, 0,
        None, None, None, None, None, None, None, now, None, None, None, None, None, False, 0, None,
    )  # fmt: skip


def due(new: NewJob, now: Micros) -> tuple[Micros, Micros | None]:
    """Give the instants when a new job may first start, and by when it must have."""
    available_at = new.run_at if new.run_at is not None else now + new.delay
    return available_at, None if new.expires_after is None else max(available_at, now) + new.expires_after


def same_request(job: JobRecord, new: NewJob) -> bool:
    """Tell whether a job that owns a key is what is now being asked for under it."""
    return job.kind == new.kind and codec.same(job.payload, new.payload)


def key_conflict(new: NewJob, owner: JobRecord) -> KeyConflict:
    """Say that a key is taken."""
    what = "another payload" if owner.kind == new.kind else f"the kind {owner.kind!r}"
    return KeyConflict(f"The key {new.key!r} already belongs to job {owner.id} with {what}; nothing was enqueued.")


def submit(job: JobRecord) -> Move:
    """Hand a created job to delivery."""
    require(job, Verb.SUBMIT)
    return Move(
        Verb.SUBMIT, job.id, job.queue, Seen(job.version), State.QUEUED, job.attempt, job.crashes, job.generation
    )


def runnable(job: JobRecord, now: Micros) -> bool:
    """Tell whether a claim may take this job now."""
    return job.state in CLAIMABLE and job.available_at <= now and not overdue(job, now)


def overdue(job: JobRecord, now: Micros) -> bool:
    """Tell whether the job was to start by a time that has passed."""
    return job.expires_at is not None and job.expires_at <= now


def order(job: JobRecord) -> tuple[int, Micros, Micros, str]:
    """Sort key of a queue: priority (higher first), then available_at, then age."""
    return (-job.priority, job.available_at, job.created_at, job.id)


def claim(job: JobRecord, *, lease_id: str, owner: str, lease: Micros, now: Micros) -> JobRecord:
    """Lease a runnable job. Attempts count here, so a job that kills its worker is bounded too."""
    require(job, Verb.CLAIM)
    if not runnable(job, now):
        msg = "A job that is not due cannot be claimed."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    return job._replace(
        state=State.RUNNING,
        version=job.version + 1,
        attempt=job.attempt + 1,
        token=job.token + 1,
        lease_id=lease_id,
        lease_owner=owner,
        lease_expires_at=now + lease,
        claimed_at=now,
        begun_at=None,
        started_at=job.started_at or now,
        updated_at=now,
    )


def must_record_start(job: JobRecord) -> bool:
    """Tell whether the start of this attempt must be on record before its handler runs.

    A worker's death takes down every job it holds, though most had not begun. A job that has been through such a
    death before, or
    that has no attempt left, gets its start written first, so that `reap` can tell a culprit from a bystander.
    """
    return job.crashes > 0 or one_crash_left(job) or job.attempt >= job.max_attempts


def one_crash_left(job: JobRecord) -> bool:
    """Tell whether another crash would end the job: a worker runs such jobs one at a time, lest one die of another."""
    return job.crashes + 1 >= job.crash_cap


def start(job: JobRecord) -> Move:
    """Record that the handler is about to run."""
    return _held(job, Verb.START, State.RUNNING, yields=True)


def beat(job: JobRecord, *, lease: Micros, begun: bool, now: Micros) -> JobRecord:
    """Extend the lease of a running job; the record a heartbeat leaves behind."""
    require(job, Verb.HEARTBEAT)
    return job._replace(
        version=job.version + 1,
        lease_expires_at=now + lease,
        begun_at=job.begun_at if job.begun_at is not None or not begun else now,
        updated_at=now,
    )


def checkpoint(job: JobRecord, step: str, result: str | None) -> Move:
    """Record a step's result and move the cursor past it, together."""
    return _held(job, Verb.CHECKPOINT, State.RUNNING, step=step, result=result, yields=True)


def complete(job: JobRecord, result: str | None, retention: Retention) -> Move:
    """End a job as succeeded."""
    require(job, Verb.COMPLETE)
    guard = Held(job.token, job.lease_id or "")
    return Move(
        Verb.COMPLETE, job.id, job.queue, guard, State.SUCCEEDED, job.attempt, 0, job.generation,
        None, retention.succeeded, None, None, None, result,
    )  # fmt: skip


def fail(job: JobRecord, failure: Failure, *, draw: float, retention: Retention, traceback: str | None = None) -> Move:
    """Record a failed attempt: retry after the policy's delay, or end as dead."""
    require(job, Verb.FAIL)
    if not failure.retryable:
        cause = Cause.REJECTED
    elif job.attempt >= job.max_attempts:
        cause = Cause.EXHAUSTED
    else:
        delay = retry.parse(job.retry, job.max_attempts).delay(job.attempt, draw)
        move = _held(job, Verb.FAIL, State.RETRYING, delay=delay, failure=failure, traceback=traceback, yields=True)
        return move._replace(crashes=0)
    move = _held(job, Verb.FAIL, State.DEAD, failure=failure, cause=cause, traceback=traceback, yields=True)
    return move._replace(crashes=0, purge_after=retention.dead)


def release(job: JobRecord) -> Move:
    """Give a job back unrun; the attempt is returned."""
    return _held(job, Verb.RELEASE, State.RETRYING, delay=0, yields=True)._replace(attempt=job.attempt - 1)


def snooze(job: JobRecord, delay: Micros) -> Move:
    """Put a job off at its handler's wish; the attempt is returned."""
    return _held(job, Verb.SNOOZE, State.RETRYING, delay=delay, yields=True)._replace(attempt=job.attempt - 1)


def reap(job: JobRecord, now: Micros, retention: Retention) -> Move:
    """End what time has run out on: a lease that expired, or a waiting job past the time it was to start by.

    A lost lease is decided like a failure with code `lease_expired`, but without a delay: the job waited out the
    lease already.
    """
    require(job, Verb.REAP)
    if job.state is not State.RUNNING:
        if not overdue(job, now):
            msg = "A waiting job that is not overdue cannot be reaped."
            raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
        failure = Failure(EXPIRED, "not started before it expired", retryable=False)
        return _seen(job, Verb.REAP, State.DEAD, retention, failure=failure, cause=Cause.EXPIRED)
    if job.lease_expires_at is not None and job.lease_expires_at > now:
        msg = "A job whose lease is still in force cannot be reaped."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    if job.cancel_requested:
        return _seen(job, Verb.REAP, State.CANCELLED, retention, cancel_requested=True)
    failure = Failure(LEASE_EXPIRED, "the worker was lost before it reported an outcome", retryable=True)
    if must_record_start(job) and job.begun_at is None:
        move = _seen(job, Verb.REAP, State.RETRYING, retention, failure=failure, delay=0)
        return move._replace(attempt=job.attempt - 1)
    crashes = job.crashes + 1
    if crashes >= job.crash_cap:
        move = _seen(job, Verb.REAP, State.DEAD, retention, failure=failure, cause=Cause.CRASHED)
    elif job.attempt >= job.max_attempts:
        move = _seen(job, Verb.REAP, State.DEAD, retention, failure=failure, cause=Cause.EXHAUSTED)
    else:
        move = _seen(job, Verb.REAP, State.RETRYING, retention, failure=failure, delay=0)
    return move._replace(crashes=crashes)


def cancel(job: JobRecord, retention: Retention) -> Move:
    """Stop a job on request: at once while it waits, by asking its worker while it runs."""
    require(job, Verb.CANCEL)
    state = State.RUNNING if job.state is State.RUNNING else State.CANCELLED
    return _seen(job, Verb.CANCEL, state, retention, cancel_requested=True)


def settle_cancel(job: JobRecord, retention: Retention) -> Move:
    """Answer a cancellation as the lease's holder."""
    move = _held(job, Verb.CANCEL, State.CANCELLED)
    return move._replace(purge_after=retention.cancelled, cancel_requested=True)


def redrive(job: JobRecord) -> Move:
    """Open a new generation of a dead job: attempts start again, steps and history stay."""
    require(job, Verb.REDRIVE)
    return Move(Verb.REDRIVE, job.id, job.queue, Seen(job.version), State.QUEUED, 0, 0, job.generation + 1, delay=0)


def purgeable(job: JobRecord, now: Micros) -> bool:
    """Tell whether a finished job has been kept long enough."""
    return job.state in LEGAL[Verb.PURGE] and job.purge_at is not None and job.purge_at <= now


def holds(job: JobRecord, move: Move) -> bool:
    """Tell whether a move's guard still stands against the stored record."""
    if job.state not in LEGAL[move.verb]:
        return False
    if isinstance(move.guard, Seen):
        return job.version == move.guard.version
    if (job.token, job.lease_id) != move.guard:
        return False
    return not (move.yields and job.cancel_requested)


def answer(job: JobRecord | None, move: Move) -> Answer:
    """Say why a move whose guard does not hold is refused; or that it was this very move which went through before.

    The lease id stays on a record that its holder settled and leaves it when anyone else ends the lease, so a holder
    who asks
    again after a lost reply recognises its own write, and a late one never does.
    """
    if job is None:
        return Answer.ABSENT
    if isinstance(move.guard, Held) and (job.token, job.lease_id) == move.guard:
        if move.yields and job.state is State.RUNNING and job.cancel_requested:
            return Answer.CANCEL_REQUESTED
        if job.state is move.state and move.verb is not Verb.CHECKPOINT:
            return Answer.OK
    return refusal(job.state)


def apply(job: JobRecord, move: Move, now: Micros) -> JobRecord:
    """Give the record a move leaves behind."""
    reopened = move.verb is Verb.REDRIVE
    settled = move.state is not State.RUNNING
    failure = move.failure or (None if reopened or move.verb is Verb.COMPLETE else job.failure)
    return job._replace(
        state=move.state,
        version=job.version + 1,
        generation=move.generation,
        attempt=move.attempt,
        crashes=move.crashes,
        available_at=job.available_at if move.delay is None else now + move.delay,
        lease_id=None if settled and isinstance(move.guard, Seen) else job.lease_id,
        lease_expires_at=None if settled else job.lease_expires_at,
        begun_at=now if move.verb is Verb.START else job.begun_at,
        finished_at=None if reopened else job.finished_at if move.purge_after is None else now,
        updated_at=now,
        purge_at=None if move.purge_after is None else now + move.purge_after,
        expires_at=None if reopened else job.expires_at,
        cause=move.cause,
        failure_code=failure.code if failure else None,
        failure_message=failure.message if failure else None,
        failure_retryable=failure.retryable if failure else None,
        cancel_requested=False if reopened else job.cancel_requested or move.cancel_requested,
        step_cursor=job.step_cursor + (move.verb is Verb.CHECKPOINT),
        result=move.result if move.verb is Verb.COMPLETE else job.result,
    )


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


def _held(
    job: JobRecord,
    verb: Verb,
    state: State,
    *,
    delay: Micros | None = None,
    failure: Failure | None = None,
    cause: Cause | None = None,
    traceback: str | None = None,
    result: str | None = None,
    step: str | None = None,
    yields: bool = False,
) -> Move:
    require(job, verb)
    return Move(
        verb, job.id, job.queue, Held(job.token, job.lease_id or ""), state, job.attempt, job.crashes, job.generation,
        delay, None, cause, failure, traceback, result, step, cancel_requested=False, yields=yields,
    )  # fmt: skip


def _seen(
    job: JobRecord,
    verb: Verb,
    state: State,
    retention: Retention,
    *,
    delay: Micros | None = None,
    failure: Failure | None = None,
    cause: Cause | None = None,
    cancel_requested: bool = False,
) -> Move:
    purge_after = retention.of(state) if state in TERMINAL else None
    return Move(
        verb, job.id, job.queue, Seen(job.version), state, job.attempt, job.crashes, job.generation,
        delay, purge_after, cause, failure, None, None, None, cancel_requested,
    )  # fmt: skip
