"""Moving: how a job goes from one store to another with its whole past, so that it can only ever run in one of them.

A job that is to move is *held* where it is: nobody can claim it, nothing ends it, and a note tells what it was. The
other store adopts it as it is held. Only then does it *leave* the first store, which keeps a finished record that says
where it went; and only after that does it *arrive* in the other one, where it is again what it was. Whoever dies in
between leaves a job that is held in one store or both and runs in neither, and that can be moved on, or back.
"""

import json
from typing import Any, NamedTuple

from holdfast.domain import codec
from holdfast.domain.errors import IllegalMove, KeyConflict, StoreError
from holdfast.domain.job import CLAIMABLE, MOVING, NOTE, PLAIN, TERMINAL, Failure, Flow, JobRecord, Retention, State
from holdfast.domain.job import StepRecord as Step
from holdfast.domain.lifecycle import require
from holdfast.domain.moments import HORIZON, Micros
from holdfast.domain.move import Answer, Move, Seen, Verb, refusal

MOVED = "moved"
"""The failure code of what is left of a job that has gone to another store."""
_NOTE = f"{NOTE}moving."
_KEPT = (
    *("state", "generation", "attempt", "crashes", "available_at", "expires_at", "lease_id", "finished_at", "purge_at"),
    *("cause", "failure_code", "failure_message", "failure_retryable", "cancel_requested", "flow"),
)
"""What being held, or having been held, changes in a record."""


class Note(NamedTuple):
    """What is noted of a held job."""

    source: str
    """The store it comes from."""
    target: str
    """The store it goes to."""
    was: dict[str, Any]
    """What it was before it was held."""


def held(job: JobRecord) -> bool:
    """Tell whether a job is on its way from one store to another."""
    return job.state in CLAIMABLE and (job.flow or PLAIN).ending == MOVING


def left(job: JobRecord) -> bool:
    """Tell whether a record is all that is left of a job that has gone to another store."""
    return job.state is State.CANCELLED and (job.flow or PLAIN).ending == MOVING


def hold(job: JobRecord, source: str, target: str) -> Move:
    """Hold a waiting or dead job, and note what it was. A dead one is opened anew for it, so that it stays no longer
    what could be redriven here and there.
    """
    require(job, Verb.HOLD)
    if held(job):
        msg = "A job that is on its way to another store cannot hold."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    dead = job.state is State.DEAD
    return Move(
        Verb.HOLD,
        job.id,
        job.queue,
        Seen(job.version),
        State.RETRYING if job.state is State.RETRYING else State.QUEUED,
        0 if dead else job.attempt,
        0 if dead else job.crashes,
        job.generation + dead,
        delay=HORIZON,
        step=f"{_NOTE}{job.version}",
        result=json.dumps(Note(source, target, {name: getattr(job, name) for name in _KEPT})),
        ending=MOVING,
    )


def leave(job: JobRecord, where: str, retention: Micros) -> Move:
    """End a held job in the store that it goes away from; the credits that are set aside for it go with it."""
    _require_held(job, Verb.LEAVE)
    return Move(
        Verb.LEAVE,
        job.id,
        job.queue,
        Seen(job.version),
        State.CANCELLED,
        job.attempt,
        job.crashes,
        job.generation,
        purge_after=retention,
        failure=Failure(MOVED, f"moved to {where}", retryable=False),
        cancel_requested=True,
        charged=(job.flow or PLAIN).reserved > 0,
    )


def arrive(job: JobRecord, note: Note) -> Move:
    """Let a held job be what it was, in the store where it stays.

    One that was only created is submitted by this. One that waits for its children runs at once: what they had to tell
    may have come while it was held.
    """
    _require_held(job, Verb.ARRIVE)
    flow = note.was["flow"]
    was = job._replace(**{**note.was, "state": State(note.was["state"]), "flow": flow and Flow(*flow)})
    if was.state is State.CREATED:
        was = was._replace(state=State.QUEUED)
    if was.state is State.RETRYING and was.flow is not None and was.flow.children and was.flow.awaits:
        was = was._replace(available_at=min(was.available_at, job.updated_at))
    return Move(
        Verb.ARRIVE,
        job.id,
        job.queue,
        Seen(job.version),
        was.state,
        was.attempt,
        was.crashes,
        was.generation,
        restores=was,
    )


def note_of(job: JobRecord, steps: list[Step]) -> Note:
    """Find the note of a held job among its steps."""
    notes = [step.result for step in steps if step.name.startswith(_NOTE) and step.result]
    if not notes:
        msg = f"Job {job.id} is held, but nothing tells what it was; restore it from a backup."
        raise StoreError(msg)
    return Note(*json.loads(notes[-1]))


def kept_for(steps: list[Step], job: JobRecord, retention: Retention) -> Micros:
    """Say how long a store keeps what is left of a job that has gone. What lies outside the store has gone with it, and
    must not be removed when the rest of it is.
    """
    texts = (job.payload, job.result, *(step.result for step in steps))
    outside = any(text is not None and text.startswith(codec.ARTIFACT) for text in texts)
    return HORIZON if outside else retention.cancelled


def welcome(there: JobRecord | None, job: JobRecord) -> Answer | None:
    """Say what comes of a job from another store, where this record is `there` already; None if it is to be stored.

    What is left of a job that once went away is replaced by the job that comes back.
    """
    if not held(job) and job.state not in TERMINAL:
        msg = f"A job that is {job.state} cannot be adopted: it must be held, or have ended."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
    if there is None or left(there):
        return None
    return Answer.OK if (there.version, there.state) == (job.version, job.state) else refusal(there.state)


def key_conflict(job: JobRecord, owner: str) -> KeyConflict:
    """Say that the key of a job from another store is taken."""
    return KeyConflict(f"The key {job.key!r} of job {job.id} already belongs to job {owner}; the job was not moved.")


def _require_held(job: JobRecord, verb: Verb) -> None:
    require(job, verb)
    if not held(job):
        msg = f"A job that is not on its way to another store cannot {verb}."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)
