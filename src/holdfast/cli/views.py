"""How a job is shown: every field with its own name, times as ISO 8601, and no payload or result unless asked for."""

import json
from typing import Any

from holdfast.domain.job import AttemptRecord, JobRecord, StepRecord
from holdfast.domain.moments import Micros, to_datetime
from holdfast.port.store import WorkerRecord

_TIMES = [name for name in JobRecord._fields if name.endswith("_at") and name != "lease_expires_at"]
_PLAIN = [
    "id", "kind", "queue", "tenant", "user", "priority", "state", "cause", "attempt", "max_attempts", "crashes",
    "crash_cap", "generation", "version", "token", "retry", "trigger", "trace_id", "key", "cancel_requested",
    "step_cursor", "steps_total",
]  # fmt: skip


def job(record: JobRecord, *, payload: bool) -> dict[str, Any]:
    """Give all fields of a job."""
    fields = {name: getattr(record, name) for name in _PLAIN}
    fields["failure"] = None if record.failure is None else record.failure._asdict()
    lease = record.lease
    fields["lease"] = lease and {"token": lease.token, "owner": lease.owner, "expires_at": time(lease.expires_at)}
    fields |= {name: time(getattr(record, name)) for name in _TIMES}
    if payload:
        fields["payload"] = json.loads(record.payload)
        fields["result"] = None if record.result is None else json.loads(record.result)
    return fields


def attempt(record: AttemptRecord, *, traceback: bool) -> dict[str, Any]:
    """Give all fields of an attempt."""
    fields = record._asdict() | {"claimed_at": time(record.claimed_at), "ended_at": time(record.ended_at)}
    if not traceback:
        del fields["traceback"]
    return fields


def step(record: StepRecord, *, payload: bool) -> dict[str, Any]:
    """Give all fields of a recorded step."""
    fields: dict[str, Any] = {"name": record.name, "recorded_at": time(record.recorded_at)}
    if payload:
        fields["result"] = None if record.result is None else json.loads(record.result)
    return fields


def worker(record: WorkerRecord) -> dict[str, Any]:
    """Give all fields of a worker process."""
    times = ("started_at", "beat_at", "expires_at")
    return record._asdict() | {name: time(getattr(record, name)) for name in times}


def time(at: Micros | None) -> str | None:
    """Render an instant for programs."""
    return None if at is None else to_datetime(at).isoformat()
