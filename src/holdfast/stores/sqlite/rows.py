"""Between rows and records: the only place that knows how a JobRecord lies in SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.domain import lifecycle
from holdfast.domain.job import CLAIMABLE, JobRecord, NewJob, State
from holdfast.domain.moments import Micros

_STATE = JobRecord._fields.index("state")
_RETRYABLE = JobRecord._fields.index("failure_retryable")
_CANCEL = JobRecord._fields.index("cancel_requested")
_STATES = {state.value: state for state in State}


def record(row: Sequence[Any]) -> JobRecord:
    """Build a record from a row of `columns`."""
    fields = list(row)
    fields[_STATE] = _STATES[fields[_STATE]]
    fields[_CANCEL] = bool(fields[_CANCEL])
    if fields[_RETRYABLE] is not None:
        fields[_RETRYABLE] = bool(fields[_RETRYABLE])
    return JobRecord._make(fields)


def records(aggregated: str) -> list[JobRecord]:
    """Build records from rows aggregated as JSON."""
    return [record(row) for row in json.loads(aggregated)]


def fresh(id_: str, new: NewJob, now: Micros) -> tuple[Any, ...]:
    """Give the parameters of `insert`."""
    available_at, expires_at = lifecycle.due(new, now)
    ready = int(available_at <= now) if new.state in CLAIMABLE else None
    return (
        id_, new.kind, new.queue, new.tenant, new.user, new.priority, new.payload, new.retry, new.max_attempts,
        new.crash_cap, new.trigger, new.trace_id, new.key, now, expires_at, new.steps_total, new.state,
        available_at, ready,
    )  # fmt: skip


def changed(job: JobRecord, now: Micros) -> dict[str, Any]:
    """Give the parameters of `write`."""
    ready = int(job.available_at <= now) if job.state in CLAIMABLE else None
    return {**job._asdict(), "ready": ready}
