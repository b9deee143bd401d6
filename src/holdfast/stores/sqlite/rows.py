"""Between rows and records: the only place that knows how a JobRecord lies in SQLite."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from holdfast.domain import lifecycle
from holdfast.domain.job import CLAIMABLE, JobRecord, NewJob, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim

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


def claimed(aggregated: str, want: Claim, now: Micros) -> list[JobRecord]:
    """Build the records of jobs that were just claimed from rows of `claimed` aggregated as JSON."""
    lease = (want.lease_id, want.owner, now + want.lease, now, None)
    make, running = JobRecord._make, State.RUNNING
    return [
        make(
            (*row[:16], running, *row[16:22], *lease, row[22], None, now, None, None, row[23], row[24],
             None if row[25] is None else bool(row[25]), False, row[26], None)
        )
        for row in from_json(aggregated)
    ]  # fmt: skip


def fresh(id_: str, new: NewJob, now: Micros) -> tuple[Any, ...]:
    """Give the parameters of `insert`."""
    available_at, expires_at = lifecycle.due(new, now)
    ready = int(available_at <= now) if new.state in CLAIMABLE else None
    return (
        id_, new.kind, new.queue, new.tenant, new.user, new.priority, new.payload, new.retry, new.max_attempts,
        new.crash_cap, new.trigger, new.trace_id, new.key, now, expires_at, new.steps_total, new.state,
        available_at, now, ready,
    )  # fmt: skip


def changed(job: JobRecord, now: Micros) -> dict[str, Any]:
    """Give the parameters of `write`."""
    ready = int(job.available_at <= now) if job.state in CLAIMABLE else None
    return {**job._asdict(), "ready": ready}
