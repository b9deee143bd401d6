"""What requests are answered with, as the OpenAPI description tells it. Routes write the values themselves."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field

from holdfast.domain.job import State

T = TypeVar("T")
Time = AwareDatetime | None
_ID = "0199e3a4-5b6c-7d8e-9f01-23456789abcd"
StateName = Literal["created", "queued", "running", "retrying", "succeeded", "dead", "cancelled"]


class FailureAnswer(BaseModel):
    """The last failure of a job."""

    code: str
    message: str
    retryable: bool


class CreditsAnswer(BaseModel):
    """What a job costs."""

    estimate: int
    reserved: int
    spent: int


class LeaseAnswer(BaseModel):
    """A worker's hold on a job."""

    token: int
    owner: str
    expires_at: Time


class JobAnswer(BaseModel):
    """A job."""

    id: str = Field(json_schema_extra={"format": "uuid"}, examples=[_ID])
    kind: str
    queue: str
    tenant: str
    user: str | None
    priority: int
    state: StateName
    cause: Literal["exhausted", "rejected", "crashed", "expired"] | None = Field(description="Why it is dead.")
    attempt: int
    max_attempts: int
    crashes: int
    crash_cap: int
    generation: int = Field(description="How often it has been redriven, plus 1.")
    version: int
    token: int
    retry: str
    trigger: str
    trace_id: str | None
    key: str | None
    cancel_requested: bool
    step_cursor: int
    steps_total: int
    parent: str | None
    code_version: int
    progress: list[Any] | None
    awaits: str | None
    group: str | None
    credits: CreditsAnswer
    failure: FailureAnswer | None
    lease: LeaseAnswer | None
    created_at: Time
    expires_at: Time
    available_at: Time
    claimed_at: Time
    begun_at: Time
    started_at: Time
    finished_at: Time
    updated_at: Time
    purge_at: Time
    payload: Any = Field(None, description="Only if asked for with payload=true.")
    result: Any = Field(None, description="Only if asked for with payload=true.")


class StoredAnswer(JobAnswer):
    """A job that was asked for."""

    duplicate: bool = Field(description="Its key existed already, and this is the job that has it.")


class BriefAnswer(BaseModel):
    """A job that was asked for with others: what it is, and how it stands."""

    id: str = Field(json_schema_extra={"format": "uuid"}, examples=[_ID])
    kind: str
    state: StateName
    queue: str
    tenant: str
    priority: int
    attempt: int
    max_attempts: int
    generation: int
    key: str | None
    trigger: str
    cause: Literal["exhausted", "rejected", "crashed", "expired"] | None
    failure: FailureAnswer | None
    created_at: Time
    available_at: Time
    finished_at: Time
    duplicate: bool = Field(description="Its key existed already, and this is the job that has it.")


class Page(BaseModel, Generic[T]):
    """One page of a listing."""

    items: list[T]
    next: str | None = Field(description="The cursor of the next page; null if this is the last one.")


class Items(BaseModel, Generic[T]):
    """A whole listing."""

    items: list[T]


class AttemptAnswer(BaseModel):
    """One attempt of a job."""

    token: int
    generation: int
    attempt: int
    owner: str | None
    claimed_at: Time
    ended_at: Time
    outcome: str
    code: str | None
    message: str | None
    traceback: str | None = Field(None, description="Only if asked for with traceback=true.")


class StepAnswer(BaseModel):
    """A recorded step of a job."""

    name: str
    recorded_at: Time
    result: Any = Field(None, description="Only if asked for with payload=true.")


class HappeningAnswer(BaseModel):
    """One thing that happened to a job."""

    at: Time
    what: str
    generation: int | None
    attempt: int | None
    name: str | None
    code: str | None
    message: str | None
    owner: str | None


class WhyAnswer(BaseModel):
    """Why a job is where it is."""

    id: str
    state: StateName
    reason: str = Field(examples=["no-worker"])
    text: str
    details: dict[str, Any]


class RedrivenAnswer(BaseModel):
    """How many dead jobs run again."""

    redriven: int
    more: bool = Field(description="There may be more; ask again.")


class HeldLease(BaseModel):
    """The lease of a claimed job."""

    token: str = Field(
        description="Sent back with everything that is said of the job.", examples=["1.6f0b1c2d3e4f5a6b"]
    )
    lease_id: str
    owner: str
    expires_at: Time


class StepResult(BaseModel):
    """A step that an earlier attempt recorded."""

    name: str
    result: Any


class ClaimedJob(BaseModel):
    """A job to be done now."""

    id: str
    kind: str
    queue: str
    tenant: str
    attempt: int
    max_attempts: int
    generation: int
    priority: int
    trace_id: str | None
    key: str | None
    created_at: Time
    payload: Any
    steps: list[StepResult]
    lease: HeldLease


class ClaimsAnswer(BaseModel):
    """The jobs that a worker has been given; none if there was nothing to do."""

    jobs: list[ClaimedJob]


class BeatAnswer(BaseModel):
    """A renewed lease."""

    cancel_requested: bool = Field(description="Stop, and release the job: somebody has cancelled it.")
    expires_at: Time


class SettledAnswer(BaseModel):
    """What came of a job."""

    id: str
    state: StateName


class QueueAnswer(BaseModel):
    """A queue and its jobs, by state."""

    name: str
    paused: bool
    counts: dict[str, int]


class QueuesAnswer(BaseModel):
    """All queues."""

    items: list[QueueAnswer]
    counts: dict[str, int]


class PausedAnswer(BaseModel):
    """Whether a queue, a tenant or a kind is paused."""

    name: str
    paused: bool


class UseAnswer(BaseModel):
    """How a limit stands for one tenant, one key or the whole queue."""

    tenant: str | None
    key: str | None
    running: int | None = Field(description="The jobs that run, where these are limited.")
    tokens: int | None = Field(description="The jobs that may start now, where a rate is limited.")
    opens_at: Time = Field(description="When the next may start; null if one must end first.")
    used: int = Field(description="How much of the capacity is taken.")
    full: bool = Field(description="The next must wait.")


class LimitAnswer(BaseModel):
    """A limit, with the fullest of those that use it."""

    queue: str
    per: Literal["queue", "tenant", "key"]
    rate: str | None = Field(examples=["100/min"])
    burst: int | None
    concurrency: int | None
    full: Literal["wait", "drop", "replace"] = Field(description="What becomes of jobs that find all places taken.")
    capacity: int = Field(description="How many may run at once, or start at once after a quiet time.")
    uses: list[UseAnswer] = Field(description="The fullest first, 50 at most.")
    left_out: int = Field(description="How many others use it.")
    full_subjects: int = Field(description="How many of all are at the limit.")


class ShareAnswer(BaseModel):
    """What a tenant has of a fair queue."""

    tenant: str
    weight: int
    running: int


class GovernedAnswer(BaseModel):
    """A queue with rules."""

    queue: str = Field(description="The queue, or `*` for all.", examples=["mailer"])
    order: Literal["priority", "fair"]
    weights: dict[str, int]
    aging: float | None = Field(description="In seconds.")
    limits: list[LimitAnswer]
    shares: list[ShareAnswer] = Field(description="Of a fair queue; those with most running jobs first, 50 at most.")
    left_out: int = Field(description="How many other tenants have running jobs there.")


class PausesAnswer(BaseModel):
    """All that is paused."""

    queues: list[str]
    tenants: list[str]
    kinds: list[str]


class FlowAnswer(BaseModel):
    """How the flow of jobs is governed."""

    items: list[GovernedAnswer]
    paused: PausesAnswer


class ScheduleAnswer(BaseModel):
    """A stored schedule."""

    name: str
    kind: str
    cron: str | None
    every: float | None
    tz: str
    catch_up: str
    next_at: Time
    last_at: Time
    paused: bool


class AccountAnswer(BaseModel):
    """A tenant's credits."""

    tenant: str
    granted: int
    reserved: int
    spent: int
    available: int


class EntryAnswer(BaseModel):
    """One change of an account."""

    tenant: str
    verb: str
    job_id: str | None
    generation: int
    step: str | None
    granted: int
    reserved: int
    spent: int
    at: Time


class WorkerAnswer(BaseModel):
    """A worker that is alive."""

    id: str
    host: str
    pid: int
    queues: list[str] | None
    kinds: list[str]
    concurrency: int
    started_at: Time
    beat_at: Time
    expires_at: Time
    running: int
    version: str = Field(description="The version of Holdfast that it runs; empty if it did not say.")


class DeedAnswer(BaseModel):
    """Something that somebody did."""

    id: str
    at: Time
    who: str
    what: str
    target: str
    tenant: str | None
    detail: dict[str, Any]


class HealthAnswer(BaseModel):
    """That the server is up."""

    status: Literal["ok"]


class ReadyAnswer(BaseModel):
    """Whether the server can do its work."""

    status: Literal["ready", "not-ready"]
    store: Literal["reachable", "unreachable"]
    loops: dict[str, float] = Field(description="Seconds since each loop last got through a round.")
    workers: int | None = Field(description="The workers that are alive.")


assert set(StateName.__args__) == {state.value for state in State}  # type: ignore[attr-defined]
