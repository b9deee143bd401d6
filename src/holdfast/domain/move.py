"""The words of the lifecycle: verbs and the states they are legal in, guards, moves, and what stores answer to them."""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from holdfast.domain.job import CLAIMABLE, TERMINAL, WAITING, Cause, Failure, JobRecord, NewJob, State
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
    SIGNAL = "signal"
    POSTPONE = "postpone"
    UNDO = "undo"
    HOLD = "hold"
    LEAVE = "leave"
    ARRIVE = "arrive"


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
    Verb.SIGNAL: CLAIMABLE | _RUNNING,
    Verb.POSTPONE: frozenset({State.QUEUED}),
    Verb.UNDO: _RUNNING,
    Verb.HOLD: WAITING | {State.DEAD},
    Verb.LEAVE: CLAIMABLE,
    Verb.ARRIVE: CLAIMABLE,
}
"""The states each verb accepts. `create` accepts none: it makes a job where there was no state at all."""

TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.CREATED, State.QUEUED),
        (State.CREATED, State.CANCELLED),
        (State.QUEUED, State.QUEUED),
        (State.QUEUED, State.RUNNING),
        (State.QUEUED, State.CANCELLED),
        (State.QUEUED, State.DEAD),
        (State.RETRYING, State.RETRYING),
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


class Held(NamedTuple):
    """Guard of the lease's holder: the job is running under exactly this token and lease id."""

    token: int
    lease_id: str

    def stands(self, job: JobRecord) -> bool:
        """Tell whether the lease is in force."""
        return job.state is State.RUNNING and (job.token, job.lease_id) == self


held = lru_cache(1_024)(Held)
"""The guard of a lease. The jobs of one claim share it, as long as it is one of the last."""


class Seen(NamedTuple):
    """Guard of everyone else: the job has not changed since this version was read."""

    version: int


class Event(NamedTuple):
    """Something to be told of a move, written in the same commit. `id` is the same whenever the move is asked again."""

    id: str
    name: str
    body: str
    """JSON: ids, kinds, states, codes, times and credits; nothing personal."""


class Move(NamedTuple):
    """One decided transition. `None` for a duration leaves the time it would set unset.

    All that a move carries (a step, children, a signal, credits, events) is written with it, or not at all.
    """

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
    """A step to record, with `result` as its result; a name that is on record already stays as it is."""
    cancel_requested: bool = False
    yields: bool = False
    """Refused once a cancellation has been asked for: the holder must settle that first."""
    advance: int = 0
    """How far it moves the step cursor."""
    undoable: bool = False
    """The step it records can be undone."""
    ending: str | None = None
    """The end that comes after the steps are undone (see `Flow.ending`)."""
    awaits: str | None = None
    """The signal that is to end a snooze early."""
    heard: int = 0
    """The signals its holder knew of; if there are more by now, the snooze is over before it begins."""
    signal: tuple[str, str, str | None] | None = None
    """A signal for the job: id, name and payload. A job that has a signal of this id stays as it is."""
    children: tuple[tuple[str, NewJob], ...] = ()
    """Jobs to be stored with it, without keys."""
    spend: int = 0
    """Credits it spends."""
    charged: bool = False
    """It changes the tenant's account."""
    events: tuple[Event, ...] = ()
    restores: JobRecord | None = None
    """What the job becomes again, now that it has arrived in another store."""


NOTHING = tuple(Move._field_defaults[name] for name in Move._fields[Move._fields.index("result") + 1 :])
"""What stands behind the result of a move that carries nothing."""

_CHECKPOINT, _STAYS = Verb.CHECKPOINT, State.RUNNING


def recording(
    job: JobRecord, step: str, result: str | None, advance: int, *, undoable: bool, yields: bool, spend: int
) -> Move:
    """Make the move of a job's holder that records a step: as `Move(...)` would at several times the cost, because it
    is made for every step.
    """
    guard = tuple.__new__(Held, (job.token, job.lease_id or ""))
    return tuple.__new__(Move, (
        _CHECKPOINT, job.id, job.queue, guard, _STAYS, job.attempt, 0, job.generation,
        None, None, None, None, None, result, step, False, yields, advance,
        undoable, None, None, 0, None, (), spend, spend > 0, (), None,
    ))  # fmt: skip


def joined(job: JobRecord, last: Move, end: Move) -> Move | None:
    """Let the completion of a job record its last step as well, if that is all that the two write: the step's result is
    the job's. Like any record of a step it gives way to a cancellation. None if the step must be recorded by itself.
    """
    plain = job.flow is None and job.expires_at is None and not last.spend and not last.undoable
    if not plain or end.verb is not Verb.COMPLETE or end.result != last.result:
        return None
    return end._replace(step=last.step, advance=last.advance, yields=last.yields)


class Answer(StrEnum):
    """What a store says to a move. The two refusals are the words of the delivery contract."""

    OK = "ok"
    ALREADY_CLAIMED = "already-claimed"
    NO_OP_TERMINAL = "no-op-terminal"
    CANCEL_REQUESTED = "cancel-requested"
    ABSENT = "absent"
    UNPAID = "unpaid"
    """The tenant's account does not hold the credits that the move takes."""
    UNWRITABLE = "unwritable"
    """The store cannot keep what this move carries; the rest of its batch was not held up by it."""


def refusal(state: State | None) -> Answer:
    """Say why nothing can be done for whoever does not hold a job in this state; no state means no job."""
    if state is None:
        return Answer.ABSENT
    return Answer.NO_OP_TERMINAL if state in TERMINAL else Answer.ALREADY_CLAIMED
