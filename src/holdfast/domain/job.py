"""What a job is: its states, its stored record and the smaller values around it.

`JobRecord` is a named tuple and not a dataclass because a worker builds tens of thousands of them per second straight
from rows; the field order here is the column order of every SQL store. All times are microseconds since 1970 (see
`moments`).
"""

from enum import StrEnum
from typing import NamedTuple

from holdfast.domain.moments import DAY, Micros
from holdfast.domain.retry import DEFAULT_RETRY


class State(StrEnum):
    """The seven states of a job."""

    CREATED = "created"
    """Stored, not yet handed to delivery. `create` puts a job here; `submit` (or upkeep, later) takes it out."""
    QUEUED = "queued"
    """May run once `available_at` has come. `submit` and `redrive` put a job here; `claim` takes it out."""
    RUNNING = "running"
    """Leased to exactly one worker. `claim` puts a job here; the lease's holder, or `reap` after the lease, takes it
    out."""
    RETRYING = "retrying"
    """Runs again at `available_at`. A failure, a give-back or a reaped lease puts a job here; `claim` takes it out."""
    SUCCEEDED = "succeeded"
    """Done. Nothing takes a job out but `purge`."""
    DEAD = "dead"
    """Failed for good; see `cause`. Only an operator's `redrive` or `purge` takes a job out."""
    CANCELLED = "cancelled"
    """Stopped on request. Nothing takes a job out but `purge`."""


TERMINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
WAITING = frozenset({State.CREATED, State.QUEUED, State.RETRYING})
CLAIMABLE = frozenset({State.QUEUED, State.RETRYING})


class Cause(StrEnum):
    """Why a job is dead."""

    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    CRASHED = "crashed"
    EXPIRED = "expired"


class Trigger(StrEnum):
    """What asked for the job."""

    MANUAL = "manual"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    FILE_DROP = "file_drop"


class Failure(NamedTuple):
    """The last failure of a job: short, and free of personal data."""

    code: str
    message: str
    retryable: bool


class Lease(NamedTuple):
    """A worker's hold on a running job. `token` only grows; `id` is fresh for every claim."""

    token: int
    id: str
    owner: str
    expires_at: Micros

    def __str__(self) -> str:
        return f"{self.token}.{self.id}"


class Retention(NamedTuple):
    """How long a finished job is kept, by terminal state; dead jobs are kept longest."""

    succeeded: Micros = 7 * DAY
    cancelled: Micros = 7 * DAY
    dead: Micros = 90 * DAY

    def of(self, state: State) -> Micros:
        """Give the time a job in this terminal state is kept."""
        match state:
            case State.SUCCEEDED:
                return self.succeeded
            case State.CANCELLED:
                return self.cancelled
            case _:
                return self.dead


class Flow(NamedTuple):
    """What only some jobs have: workflows that wait, spawn or can be undone, jobs that cost credits or are limited by a
    key.
    """

    awaits: str | None = None
    """The name of the signal the job waits for."""
    signals: int = 0
    """How many signals it has been sent."""
    children: int = 0
    """How many children it has spawned."""
    undoes: int = 0
    """How many of its recorded steps can be undone."""
    ending: str | None = None
    """The end that the job comes to once its steps are undone: `cancelled`, or `dead:` and the cause; or `MOVING`."""
    estimate: int = 0
    """The credits it was expected to cost."""
    reserved: int = 0
    """The credits set aside for it and not spent."""
    spent: int = 0
    """The credits it has spent."""
    told: int = 0
    """The generation whose start has been told in an event."""
    progress: str | None = None
    """How far it is: JSON of a fraction and a text."""
    group: str | None = None
    """The key that it is limited by, with its tenant (see `limits`)."""


PLAIN = Flow()
"""A job's flow as long as nothing of it is in use; stored as nothing."""
MOVING = "moving"
"""The ending of a job that is on its way to another store, or has gone there (see `domain.moving`)."""


class NewJob(NamedTuple):
    """A validated job that is not stored yet; times are still relative to the moment of storing."""

    kind: str
    payload: str
    queue: str = "default"
    tenant: str = ""
    user: str | None = None
    priority: int = 0
    retry: str = DEFAULT_RETRY.spec
    max_attempts: int = DEFAULT_RETRY.max_attempts
    crash_cap: int = 3
    trigger: str = Trigger.MANUAL.value
    trace_id: str | None = None
    key: str | None = None
    key_ttl: Micros | None = None
    delay: Micros = 0
    run_at: Micros | None = None
    expires_after: Micros | None = None
    steps_total: int = 0
    state: State = State.QUEUED
    parent: str | None = None
    code_version: int = 0
    credits: int = 0
    """The credits it is expected to cost."""
    reserved: int = 0
    """The credits its tenant's account sets aside for it; `lifecycle.reserve` says how many."""
    unique: str | None = None
    """How long its key is its own: until it is purged (None), ended (`active`) or first claimed (`waiting`)."""
    steps: tuple[tuple[str, str | None], ...] = ()
    """Steps (name and result) that it starts out with: those of the job it was forked from."""
    group: str | None = None
    """The key that it is limited by (see `Flow.group`)."""


class JobRecord(NamedTuple):
    """Everything a store keeps of a job."""

    id: str
    kind: str
    queue: str
    tenant: str
    user: str | None
    priority: int
    payload: str
    retry: str
    max_attempts: int
    crash_cap: int
    trigger: str
    trace_id: str | None
    key: str | None
    created_at: Micros
    expires_at: Micros | None
    steps_total: int
    state: State
    version: int
    generation: int
    attempt: int
    crashes: int
    available_at: Micros
    token: int
    lease_id: str | None
    lease_owner: str | None
    lease_expires_at: Micros | None
    claimed_at: Micros | None
    begun_at: Micros | None
    started_at: Micros | None
    finished_at: Micros | None
    updated_at: Micros
    purge_at: Micros | None
    cause: str | None
    failure_code: str | None
    failure_message: str | None
    failure_retryable: bool | None
    cancel_requested: bool
    step_cursor: int
    result: str | None
    parent: str | None = None
    code_version: int = 0
    flow: Flow | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease in force, if the job is running."""
        if self.state is not State.RUNNING or self.lease_id is None or self.lease_owner is None:
            return None
        return Lease(self.token, self.lease_id, self.lease_owner, self.lease_expires_at or 0)

    @property
    def failure(self) -> Failure | None:
        """The last recorded failure."""
        if self.failure_code is None:
            return None
        return Failure(self.failure_code, self.failure_message or "", bool(self.failure_retryable))


_CRASHES, _STEP_CURSOR, _FLOW = (JobRecord._fields.index(name) for name in ("crashes", "step_cursor", "flow"))


def stepped(job: JobRecord, step_cursor: int, flow: Flow | None) -> JobRecord:
    """Give a record with these in place and its crashes forgotten: `_replace` at a fraction of its cost, for every
    step.
    """
    fields = list(job)
    fields[_CRASHES], fields[_STEP_CURSOR], fields[_FLOW] = 0, step_cursor, flow
    return tuple.__new__(JobRecord, fields)


class AttemptRecord(NamedTuple):
    """One ended attempt. `token` numbers claims for ever; `attempt` is what the attempt was charged as."""

    token: int
    generation: int
    attempt: int
    owner: str | None
    claimed_at: Micros | None
    ended_at: Micros | None
    outcome: str
    code: str | None
    message: str | None
    traceback: str | None


NOTE = "~"
"""Begins the names of records that are no steps of the user's own."""


class StepRecord(NamedTuple):
    """One recorded step of a job."""

    name: str
    result: str | None
    recorded_at: Micros


class SignalRecord(NamedTuple):
    """One signal that a job was sent. `id` is fresh for every signal, so that a repeated one counts once."""

    id: str
    name: str
    payload: str | None
    sent_at: Micros


class Account(NamedTuple):
    """A tenant's credits."""

    tenant: str
    granted: int
    reserved: int
    spent: int

    @property
    def available(self) -> int:
        """The credits that are neither spent nor set aside."""
        return self.granted - self.reserved - self.spent


class CreditEntry(NamedTuple):
    """One change of an account. All entries of a tenant add up to its account."""

    tenant: str
    verb: str
    """`grant`, `reserve`, or the verb of the move it came with."""
    job_id: str | None
    generation: int
    step: str | None
    granted: int
    reserved: int
    spent: int
    at: Micros
