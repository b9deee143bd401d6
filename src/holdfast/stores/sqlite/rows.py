"""Between rows and records: the only place that knows how a JobRecord lies in SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.domain.job import CLAIMABLE, JobRecord, State
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


def fresh(job: JobRecord, now: Micros) -> tuple[Any, ...]:
    """Give the parameters of `insert`."""
    return (*job[: _STATE + 1], job.available_at, ready(job, now))


def changed(job: JobRecord, now: Micros) -> dict[str, Any]:
    """Give the parameters of `write`."""
    return {**job._asdict(), "ready": ready(job, now)}


def ready(job: JobRecord, now: Micros) -> int | None:
    """Tell where a job stands in the claim order: 1 due, 0 not yet, None not at all."""
    return int(job.available_at <= now) if job.state in CLAIMABLE else None
