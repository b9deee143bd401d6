"""What a server says of jobs, as values; and what is asked of it, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4

from holdfast.domain import codec
from holdfast.domain.errors import BadInput
from holdfast.domain.job import Failure
from holdfast.domain.moments import SECOND, duration, instant

_HUGE = 1 << 30
"""What is too large is for the server to say."""
_PLAIN = (
    "kind", "state", "queue", "tenant", "priority", "attempt", "max_attempts", "generation", "key", "trigger", "cause",
)  # fmt: skip
_PLAINLY_CLAIMED = ("kind", "queue", "tenant", "attempt", "max_attempts", "key", "trace_id", "payload")


class Choices(TypedDict, total=False):
    """What can be chosen for one job; as in `using(...)`."""

    queue: str
    tenant: str
    user: str
    priority: int
    key: str
    key_ttl: float | timedelta
    run_after: float | timedelta
    run_at: datetime
    max_attempts: int
    trace_id: str
    expires_after: float | timedelta
    credits: int
    group: str
    unique: Literal["active"]
    debounce: float | timedelta


class Filter(TypedDict, total=False):
    """What jobs can be found by."""

    state: str
    kind: str
    queue: str
    tenant: str
    error_code: str
    key: str
    parent: UUID | str


class PreparedJob(NamedTuple):
    """A job that can be enqueued, together with others or more than once: it has a key, so it is stored once."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """One job, as it was when the server told of it."""

    id: UUID
    kind: str
    state: str
    queue: str
    tenant: str
    priority: int
    attempt: int
    max_attempts: int
    generation: int
    key: str | None
    trigger: str
    cause: str | None
    failure: Failure | None
    created_at: datetime
    available_at: datetime
    finished_at: datetime | None
    duplicate: bool
    """The key existed already."""
    payload: Any = field(repr=False)
    """What it was asked to do, if that was asked for."""
    fields: Mapping[str, Any] = field(repr=False)
    """All that the server said of it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that a worker holds. `token` proves it, and goes with everything that is said of the job."""

    id: UUID
    kind: str
    queue: str
    tenant: str
    attempt: int
    max_attempts: int
    key: str | None
    trace_id: str | None
    payload: Any = field(repr=False)
    steps: Mapping[str, Any] = field(repr=False)
    """The results of steps that earlier attempts recorded."""
    token: str = field(repr=False)
    expires_at: datetime


class Beat(NamedTuple):
    """A renewed lease."""

    cancel_requested: bool
    """Somebody has cancelled the job: stop, and release it."""
    expires_at: datetime


def prepared(kind: str, payload: Any, choices: Choices) -> PreparedJob:
    """Put a job into the words of the API. One without a key is given one, so that asking again stores it once."""
    body: dict[str, Any] = {"kind": kind, "payload": plain({} if payload is None else payload, "The payload")}
    for name, value in choices.items():
        if name not in Choices.__annotations__:
            msg = f"There is no option {name!r}."
            raise BadInput(msg)
        if value is not None:
            body[name] = _written(name, value)
    body.setdefault("key", f"remote:{uuid4()}")
    return PreparedJob(body)


def plain(value: Any, what: str) -> Any:
    """Give a value as plain JSON values; raises `BadPayload` if it cannot be written so."""
    return codec.decode(codec.encode(value, what, _HUGE))


def seconds(value: float | timedelta, what: str) -> float:
    """Check a duration and give its seconds."""
    return duration(value, what) / SECOND


def job_of(fields: Mapping[str, Any]) -> RemoteJob:
    """Read a job."""
    failure = fields.get("failure")
    plainly: dict[str, Any] = {name: fields[name] for name in _PLAIN}
    return RemoteJob(
        id=UUID(fields["id"]),
        failure=None if failure is None else Failure(failure["code"], failure["message"], failure["retryable"]),
        created_at=datetime.fromisoformat(fields["created_at"]),
        available_at=datetime.fromisoformat(fields["available_at"]),
        finished_at=None if fields["finished_at"] is None else datetime.fromisoformat(fields["finished_at"]),
        duplicate=bool(fields.get("duplicate", False)),
        payload=fields.get("payload"),
        fields=fields,
        **plainly,
    )


def claimed_of(fields: Mapping[str, Any]) -> Claimed:
    """Read a claimed job."""
    lease = fields["lease"]
    plainly: dict[str, Any] = {name: fields[name] for name in _PLAINLY_CLAIMED}
    return Claimed(
        id=UUID(fields["id"]),
        steps={step["name"]: step["result"] for step in fields["steps"]},
        token=lease["token"],
        expires_at=datetime.fromisoformat(lease["expires_at"]),
        **plainly,
    )


def _written(name: str, value: Any) -> Any:
    match name:
        case "key_ttl" | "run_after" | "expires_after" | "debounce":
            return seconds(value, name)
        case "run_at":
            instant(value, name)
            return value.isoformat()
        case _:
            return value
