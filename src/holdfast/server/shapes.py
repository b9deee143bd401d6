"""What requests carry: each body with its fields, their limits and an example.

Fields are named as in Python. Numbers, texts and flags are taken as what they are; nothing is guessed from a text. What
the client checks anyway (names, delays, priorities) is left to it.
"""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.domain.codec import MAX_INT
from holdfast.domain.job import Trigger
from holdfast.domain.limits import MOST
from holdfast.domain.moments import HORIZON, SECOND
from holdfast.domain.retry import DEFAULT_ATTEMPTS, Retry

LARGEST_BATCH = 1_000
LARGEST_PAGE = 500
LONGEST_WAIT = 30.0
_NAME = 255


def _written(value: Any) -> datetime:
    """Read a time that is written as ISO 8601 text, and nothing else."""
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(value)
    msg = "a time is written as ISO 8601 text, as in 2026-11-16T03:00:00Z"
    raise ValueError(msg)


Name = Annotated[str, Field(min_length=1, max_length=_NAME)]
Seconds = Annotated[float, Field(ge=0, le=HORIZON / SECOND, allow_inf_nan=False)]
Written = Annotated[AwareDatetime, BeforeValidator(_written)]


class Body(BaseModel):
    """A body that is taken as it is meant, or not at all."""

    model_config = ConfigDict(extra="forbid", strict=True)


class RetryBody(Body):
    """How long to wait after a failed attempt."""

    shape: Literal["table", "exponential", "fixed"]
    delays: list[Seconds] = Field(min_length=1, max_length=50, description="Of a table all; of the others the first.")
    jitter: float = Field(0.0, ge=0, le=1, description="Up to this share of the delay is added (exponential only).")
    max_delay: Seconds | None = None

    def policy(self, max_attempts: int) -> Retry:
        """Give the policy."""
        match self.shape:
            case "table":
                return Retry.table(*self.delays, max_attempts=max_attempts)
            case "fixed":
                return Retry.fixed(self.delays[0], retries=max_attempts - 1)
            case _:
                return Retry.exponential(
                    self.delays[0], max_attempts=max_attempts, jitter=self.jitter, max_delay=self.max_delay
                )


class NewJobBody(Body):
    """A job to be done. All but `kind` may be left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "resize", "payload": {"photo": 7}},
                {"kind": "invoice", "payload": {"order": 7}, "key": "invoice:7", "tenant": "acme", "run_after": 600},
            ]
        },
    )

    kind: Name
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: Name | None = None
    tenant: Annotated[str, Field(max_length=_NAME)] | None = None
    user: Name | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    key: Name | None = Field(None, description="One job per tenant and key, however often it is asked for.")
    key_ttl: Seconds | None = None
    run_after: Seconds | None = Field(None, description="Seconds to wait before it may run.")
    run_at: Written | None = Field(None, description="The time before which it does not run.")
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    retry: RetryBody | None = None
    trace_id: Name | None = None
    trigger: Literal["manual", "schedule", "webhook", "file_drop"] = Trigger.MANUAL.value
    expires_after: Seconds | None = Field(None, description="It dies if it has not started by then.")
    credits: Annotated[int, Field(ge=0, le=MAX_INT // 2)] | None = None
    group: Name | None = Field(None, description="The key that limits per key count it by.")
    unique: Literal["active"] | None = None
    debounce: Seconds | None = None

    def choices(self) -> dict[str, Any]:
        """Give what is chosen besides kind, payload and tenant, as `Outside.prepare` takes it."""
        names = self.model_fields_set - _APART
        if not names:
            return {}
        chosen = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if self.retry is not None:
            chosen["retry"] = self.retry.policy(chosen.pop("max_attempts", DEFAULT_ATTEMPTS))
        return chosen


_APART = frozenset({"kind", "payload", "tenant"})


class BatchBody(Body):
    """Jobs that are stored together or not at all."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"jobs": [{"kind": "resize", "payload": {"photo": 7}}, {"kind": "resize", "key": "photo:8"}]}]
        }
    )

    jobs: list[NewJobBody] = Field(min_length=1, max_length=LARGEST_BATCH)


class SignalBody(Body):
    """A signal for a job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "approval", "payload": {"by": "ada"}}]})

    name: Name
    payload: Any = True


class ForkBody(Body):
    """Where a new run of a job begins."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"step": "charge"}]})

    step: Name


class RedriveBody(Body):
    """Which dead jobs to run again, and how fast. Left out, every one of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "resize", "error_code": "timeout", "per_second": 50}]}
    )

    kind: Name | None = None
    queue: Name | None = None
    tenant: Annotated[str, Field(max_length=_NAME)] | None = None
    error_code: Name | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = Field(1_000, description="The most jobs of this request.")
    per_second: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="The most jobs in a second.")


class ClaimBody(Body):
    """A worker's wish for work."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"worker": "node-1", "queues": ["photos"], "limit": 1, "wait": 20}]}
    )

    worker: Name = Field(description="What the worker is called; it is shown to operators.")
    queues: Annotated[list[Name], Field(min_length=1, max_length=100)] | None = Field(
        None, description="The queues to take from; every queue if left out."
    )
    kinds: Annotated[list[Name], Field(max_length=1_000)] = Field(
        default_factory=list, description="The kinds the worker knows; shown to operators, no filter."
    )
    limit: int = Field(1, ge=1, le=LARGEST_BATCH)
    lease: Annotated[float, Field(ge=1, le=3_600, allow_inf_nan=False)] | None = Field(
        None, description="How long the claim holds without a heartbeat, in seconds."
    )
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = Field(
        0, description="How long to wait for work, in seconds."
    )


class HeldBody(Body):
    """What a worker says of a job that it holds."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"token": "1.6f0b1c2d3e4f5a6b"}]})

    token: str = Field(pattern=r"^[0-9]{1,18}\.[0-9A-Za-z_-]{1,64}$", description="The token of the lease.")


class HeartbeatBody(HeldBody):
    """A worker's word that it goes on with a job."""

    lease: Annotated[float, Field(ge=1, le=3_600, allow_inf_nan=False)] | None = None
    progress: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    note: Annotated[str, Field(max_length=200)] = ""


class CheckpointBody(HeldBody):
    """A step that is done: an attempt to come does not do it again."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": "1.6f0b1c2d3e4f5a6b", "step": "fetch", "result": {"bytes": 5120}}]}
    )

    step: Name
    result: Any = None
    spend: Annotated[int, Field(ge=0, le=MAX_INT // 2)] = 0


class CompleteBody(HeldBody):
    """The end of a job that went well."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": "1.6f0b1c2d3e4f5a6b", "result": {"width": 640}}]}
    )

    result: Any = None
    spend: Annotated[int, Field(ge=0, le=MAX_INT // 2)] = 0


class FailBody(HeldBody):
    """The end of an attempt that failed. Operators see `code` and `message`; keep personal data out of them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": "1.6f0b1c2d3e4f5a6b", "code": "timeout", "message": "no answer"}]}
    )

    code: Name
    message: str = ""
    retryable: bool = True
    traceback: str | None = None


class ReleaseBody(HeldBody):
    """A job given back unrun; the attempt is returned."""

    delay: Seconds | None = Field(None, description="Seconds until it may run again.")


class ScheduleBody(Body):
    """A schedule: a job, and when it is enqueued."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "nightly", "job": {"kind": "cleanup"}, "cron": "0 3 * * *", "tz": "Europe/Prague"}]
        }
    )

    name: Annotated[str, Field(min_length=1, max_length=200)]
    job: NewJobBody
    cron: Annotated[str, Field(max_length=_NAME)] | None = None
    every: Seconds | None = None
    tz: Annotated[str, Field(max_length=_NAME)] = "UTC"
    catch_up: Literal["skip", "once", "all"] = "skip"


class GrantBody(Body):
    """Credits for a tenant; a negative number takes back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"credits": 100, "key": "order-7"}]})

    credits: Annotated[int, Field(ge=-(MAX_INT // 2), le=MAX_INT // 2)]
    key: Name | None = Field(None, description="A grant with the same key counts once.")


class LimitBody(Body):
    """A limit: of a rate, of jobs at once, or both."""

    per: Literal["queue", "tenant", "key"] = Field("queue", description="Whose limit it is.")
    rate: Name | None = Field(None, description="How fast jobs may start, as in 100/min, 5/s or 1/10min.")
    burst: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        None, description="How many may start at once after a quiet time; 1 if left out."
    )
    concurrency: Annotated[int, Field(ge=1, le=MOST)] | None = Field(None, description="How many may run at once.")
    full: Literal["wait", "drop", "replace"] = Field(
        "wait", description="What becomes of jobs that find all places taken."
    )


class RuleBody(Body):
    """In which order a queue is served, and how much of it at once; what is left out is as for any other queue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"limits": [{"rate": "100/min", "burst": 20, "per": "tenant"}, {"concurrency": 5, "per": "key"}]},
                {"order": "fair", "weights": {"acme": 3}, "aging": 600, "limits": [{"concurrency": 50}]},
            ]
        },
    )

    order: Literal["priority", "fair"] = "priority"
    weights: Annotated[dict[str, Annotated[int, Field(ge=1, le=MOST)]], Field(max_length=10_000)] = Field(
        default_factory=dict, description="The jobs that a tenant has in one round of a fair queue, where it is not 1."
    )
    aging: Seconds | None = Field(None, description="A job that has waited for so long goes before all others.")
    limits: Annotated[list[LimitBody], Field(max_length=6)] = Field(default_factory=list)
