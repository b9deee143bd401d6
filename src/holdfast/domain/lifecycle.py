"""The lifecycle: every rule about how a job moves from state to state, and nothing else.

Each verb is a function that looks at a record and *decides* a `Move`: the new state, what else changes, and the guard
under which it may be written. Durations in a move are relative, because only the store knows what time it is; `apply`
turns a move and the store's time into the next record, and `holds` says whether the guard still stands. Stores write
moves; they never decide them. `claim` and `heartbeat` act on many jobs at once, so SQL stores fold them into one
statement, which the differential tests compare with the functions here.

Total over state x verb: `LEGAL` names the states each verb accepts, and every other pair raises `IllegalMove`.
"""

from holdfast.domain import codec, retry
from holdfast.domain.errors import IllegalMove, KeyConflict
from holdfast.domain.job import (
    CLAIMABLE,
    MOVING,
    NOTE,
    PLAIN,
    TERMINAL,
    Cause,
    Failure,
    Flow,
    JobRecord,
    NewJob,
    Retention,
    State,
    stepped,
)
from holdfast.domain.moments import HORIZON, Micros
from holdfast.domain.move import LEGAL, NOTHING, Answer, Held, Move, Seen, Verb, held, recording, refusal

LEASE_EXPIRED = "lease_expired"
STARTED = "workflow_run_started"
"""The event that tells of a generation's first attempt; on record in the flow, so that it is told once."""
EXPIRED = "expired"
_RUNNING, _SUCCEEDED, _COMPLETE = State.RUNNING, State.SUCCEEDED, Verb.COMPLETE  # found at once, unlike members


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
        None, None, None, None, None, None, None, now, None, None, None, None, None, False,
        sum(not name.startswith(NOTE) for name, _ in new.steps), None, new.parent, new.code_version, flow_of(new),
    )  # fmt: skip


def flow_of(new: NewJob) -> Flow | None:
    """Give the flow that a job starts out with."""
    return Flow(estimate=new.credits, reserved=new.reserved, group=new.group) if new.credits or new.group else None


def due(new: NewJob, now: Micros) -> tuple[Micros, Micros | None]:
    """Give the instants when a new job may first start, and by when it must have."""
    available_at = new.run_at if new.run_at is not None else now + new.delay
    return available_at, None if new.expires_after is None else max(available_at, now) + new.expires_after


def owns_key(owner: JobRecord, new: NewJob) -> bool:
    """Tell whether the job that took a key still keeps it from a new one."""
    match new.unique:
        case "active":
            return owner.state not in TERMINAL
        case "waiting":
            return owner.state is State.QUEUED
        case _:
            return True


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

    A worker's death takes down every job it holds, though most had not begun. A job that has been through one, or has
    no attempt left, gets its start written first, so that `reap` can tell a culprit from a bystander.
    """
    return job.crashes > 0 or one_crash_left(job) or job.attempt >= job.max_attempts


def one_crash_left(job: JobRecord) -> bool:
    """Tell whether another crash would end the job: a worker runs such jobs one at a time, lest one die of another."""
    return job.crashes + 1 >= job.crash_cap


def start(job: JobRecord) -> Move:
    """Record that the handler is about to run."""
    return _held(job, Verb.START, State.RUNNING, yields=True)


def beat(job: JobRecord, *, lease: Micros, begun: bool, now: Micros, progress: str | None = None) -> JobRecord:
    """Extend the lease of a running job; the record a heartbeat leaves behind."""
    require(job, Verb.HEARTBEAT)
    return job._replace(
        version=job.version + 1,
        lease_expires_at=now + lease,
        begun_at=job.begun_at if job.begun_at is not None or not begun else now,
        updated_at=now,
        flow=job.flow if progress is None else (job.flow or PLAIN)._replace(progress=progress),
    )


def checkpoint(
    job: JobRecord,
    step: str,
    result: str | None,
    *,
    advance: int = 1,
    undoable: bool = False,
    spend: int = 0,
) -> Move:
    """Record a step's result and move the cursor past it, together. A job that gets on is no crash loop: crashes are
    counted anew. What can be undone is recorded even if the job is to be cancelled, so that it is undone.
    """
    require(job, Verb.CHECKPOINT)
    return recording(
        job, step, result, advance, undoable=undoable, yields=not undoable and not undoing(job), spend=spend
    )


def note(job: JobRecord, step: str, result: str | None) -> Move:
    """Record something beside the steps: the cursor stays."""
    return checkpoint(job, step, result, advance=0)


def complete(job: JobRecord, result: str | None, retention: Retention, *, spend: int = 0) -> Move:
    """End a job as succeeded."""
    if job.state is not _RUNNING:
        require(job, Verb.COMPLETE)
    move = tuple.__new__(Move, (  # as `Move(...)` would at several times the cost
        _COMPLETE, job.id, job.queue, held(job.token, job.lease_id or ""), _SUCCEEDED, job.attempt, 0, job.generation,
        None, retention.succeeded, None, None, None, result, *NOTHING,
    ))  # fmt: skip
    return _charged(job, move._replace(spend=spend)) if spend or job.flow is not None else move


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
    return _ended(job, move._replace(crashes=0, purge_after=retention.dead))


def release(job: JobRecord) -> Move:
    """Give a job back unrun; the attempt is returned."""
    return _held(job, Verb.RELEASE, State.RETRYING, delay=0, yields=True)._replace(attempt=job.attempt - 1)


def snooze(job: JobRecord, delay: Micros) -> Move:
    """Put a job off at its handler's wish; the attempt is returned."""
    return _held(job, Verb.SNOOZE, State.RETRYING, delay=delay, yields=True)._replace(attempt=job.attempt - 1)


def suspend(
    job: JobRecord,
    step: str,
    result: str | None,
    *,
    delay: Micros = HORIZON,
    advance: int = 0,
    awaits: str | None = None,
    heard: int = 0,
    children: tuple[tuple[str, NewJob], ...] = (),
    spend: int = 0,
) -> Move:
    """Put a workflow off until a time or a signal, and record what it waits for; slot and lease are free meanwhile."""
    return snooze(job, delay)._replace(
        crashes=0,
        step=step,
        result=result,
        advance=advance,
        awaits=awaits,
        heard=heard,
        children=children,
        spend=spend,
        charged=spend > 0 or any(new.credits for _, new in children),
    )


def signal(job: JobRecord, id: str, name: str, payload: str | None) -> Move:  # noqa: A002 - the record's own word
    """Send a job a signal; one that waits for it runs at once."""
    require(job, Verb.SIGNAL)
    _unending(job, Verb.SIGNAL)
    awaited = job.state is State.RETRYING and job.flow is not None and job.flow.awaits == name
    return Move(
        Verb.SIGNAL, job.id, job.queue, Seen(job.version), job.state, job.attempt, job.crashes, job.generation,
        delay=0 if awaited else None, signal=(id, name, payload), cause=None,
    )  # fmt: skip


def postpone(job: JobRecord, delay: Micros) -> Move:
    """Let a job that waits for its first attempt wait for this long from now."""
    require(job, Verb.POSTPONE)
    _unending(job, Verb.POSTPONE)
    return Move(
        Verb.POSTPONE, job.id, job.queue, Seen(job.version), job.state, job.attempt, job.crashes, job.generation, delay
    )


def undo(job: JobRecord, retention: Retention) -> Move:
    """Bring a job whose steps have been undone to the end it was to come to."""
    require(job, Verb.UNDO)
    if job.flow is None or job.flow.ending is None:
        msg = "A job that is not ending cannot undo."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    state, _, cause = job.flow.ending.partition(":")
    move = _held(job, Verb.UNDO, State(state), cause=Cause(cause) if cause else None)
    cancelled = move.state is State.CANCELLED
    return _charged(job, move._replace(crashes=0, purge_after=retention.of(move.state), cancel_requested=cancelled))


def undoing(job: JobRecord) -> bool:
    """Tell whether all that is left to do for a job is to undo its steps."""
    return job.flow is not None and job.flow.ending is not None


def reap(job: JobRecord, now: Micros, retention: Retention) -> Move:
    """End what time has run out on: a lease that expired, or a waiting job past the time it was to start by.

    A lost lease is like a failure with code `lease_expired`, but without a delay: the job waited out the lease already.
    """
    require(job, Verb.REAP)
    if job.state is not State.RUNNING:
        if not overdue(job, now):
            msg = "A waiting job that is not overdue cannot be reaped."
            raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
        failure = Failure(EXPIRED, "not started before it expired", retryable=False)
        return _ended(job, _seen(job, Verb.REAP, State.DEAD, retention, failure=failure, cause=Cause.EXPIRED))
    if job.lease_expires_at is not None and job.lease_expires_at > now:
        msg = "A job whose lease is still in force cannot be reaped."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    if job.cancel_requested and not undoing(job):
        return _ended(job, _seen(job, Verb.REAP, State.CANCELLED, retention, cancel_requested=True))
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
    return _ended(job, move._replace(crashes=crashes))


def cancel(job: JobRecord, retention: Retention) -> Move:
    """Stop a job on request: at once while it waits, by asking its worker while it runs."""
    require(job, Verb.CANCEL)
    _unending(job, Verb.CANCEL)
    state = State.RUNNING if job.state is State.RUNNING else State.CANCELLED
    return _ended(job, _seen(job, Verb.CANCEL, state, retention, cancel_requested=True))


def settle_cancel(job: JobRecord, retention: Retention) -> Move:
    """Answer a cancellation as the lease's holder."""
    move = _held(job, Verb.CANCEL, State.CANCELLED)
    return _ended(job, move._replace(purge_after=retention.cancelled, cancel_requested=True))


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
    who asks again after a lost reply recognises its own write, and a late one never does.
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
    if move.restores is not None:
        return move.restores._replace(version=job.version + 1, updated_at=move.restores.finished_at or now)
    reopened = move.verb is Verb.REDRIVE
    settled = move.state is not State.RUNNING
    overcome = move.verb is Verb.COMPLETE or (reopened and not undoing(job))
    hidden = undoing(job) and move.state is State.RETRYING  # an undo's own failure does not hide what ended the job
    failure = (None if hidden else move.failure) or (None if overcome else job.failure)
    keyed = job.flow is not None and job.flow.group is not None and move.verb in (Verb.FAIL, Verb.REAP, Verb.RELEASE)
    delay = None if keyed and move.delay == 0 else move.delay  # one of a key keeps its place: none overtakes it
    return job._replace(
        state=move.state,
        version=job.version + 1,
        generation=move.generation,
        attempt=move.attempt,
        crashes=move.crashes,
        available_at=job.available_at if delay is None else now + (0 if _heard_late(job, move) else delay),
        lease_id=None if settled and isinstance(move.guard, Seen) else job.lease_id,
        lease_expires_at=None if settled else job.lease_expires_at,
        begun_at=now if move.verb is Verb.START else job.begun_at,
        finished_at=None if reopened or move.ending else job.finished_at if move.purge_after is None else now,
        updated_at=now,
        purge_at=None if move.purge_after is None else now + move.purge_after,
        expires_at=None if reopened or move.ending or (settled and move.step is not None) else job.expires_at,
        cause=move.cause,
        failure_code=failure.code if failure else None,
        failure_message=failure.message if failure else None,
        failure_retryable=failure.retryable if failure else None,
        cancel_requested=False if reopened or move.ending else job.cancel_requested or move.cancel_requested,
        step_cursor=job.step_cursor + move.advance,
        result=move.result if move.verb is Verb.COMPLETE else job.result,
        flow=_flow_after(job, move),
    )


def after_checkpoint(job: JobRecord, move: Move) -> JobRecord:
    """Give the job as its holder knows it after its own checkpoint: all of `apply` that does not need the store."""
    return stepped(job, job.step_cursor + move.advance, _flow_after(job, move))


def _heard_late(job: JobRecord, move: Move) -> bool:
    """Tell whether what a snooze is to wait for may have come since its holder looked."""
    return move.awaits is not None and job.flow is not None and job.flow.signals > move.heard


def _flow_after(job: JobRecord, move: Move) -> Flow | None:
    if job.flow is None and not _flows(move):
        return None
    flow = job.flow or PLAIN
    over = move.state in TERMINAL
    undone = move.verb is Verb.UNDO
    after = flow._replace(
        awaits=move.awaits if move.state is State.RETRYING and move.verb is not Verb.SIGNAL else flow.awaits,
        signals=flow.signals + (move.signal is not None),
        children=flow.children + len(move.children),
        undoes=0 if undone else flow.undoes + move.undoable,
        ending=None if undone else move.ending or flow.ending,
        reserved=0 if over else max(flow.reserved - move.spend, 0),
        spent=flow.spent + move.spend,
        told=move.generation if any(event.name == STARTED for event in move.events) and not over else flow.told,
    )
    return None if after == PLAIN else after


def _flows(move: Move) -> bool:
    """Tell whether a move gives a flow to a job that has none."""
    return bool(
        move.signal or move.children or move.undoable or move.spend or move.awaits or move.events or move.ending
    )


def _ended(job: JobRecord, move: Move) -> Move:
    """Let a job that comes to an end undo its steps first, if it has some that can be undone."""
    if move.state not in (State.DEAD, State.CANCELLED) or job.flow is None:
        return move
    if not job.flow.undoes or job.flow.ending is not None:
        return _charged(job, move)
    ending = move.state.value if move.cause is None else f"{move.state.value}:{move.cause.value}"
    return move._replace(
        state=State.RETRYING, delay=0, attempt=0, crashes=0, purge_after=None, cause=None, ending=ending
    )


def _charged(job: JobRecord, move: Move) -> Move:
    """Say that a move changes the account, if it spends or the credits set aside for the job are given back."""
    return move._replace(charged=move.spend > 0 or (job.flow is not None and job.flow.reserved > 0))


def _unending(job: JobRecord, verb: Verb) -> None:
    if undoing(job):
        moving = job.flow is not None and job.flow.ending == MOVING
        msg = f"A job {'on its way to another store' if moving else 'whose steps are being undone'} cannot {verb}."
        raise IllegalMove(msg, reason=Answer.NO_OP_TERMINAL)


def _held(
    job: JobRecord,
    verb: Verb,
    state: State,
    *,
    delay: Micros | None = None,
    failure: Failure | None = None,
    cause: Cause | None = None,
    traceback: str | None = None,
    yields: bool = False,
) -> Move:
    require(job, verb)
    return Move(
        verb, job.id, job.queue, Held(job.token, job.lease_id or ""), state, job.attempt, job.crashes, job.generation,
        delay, None, cause, failure, traceback, yields=yields and not undoing(job),
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
