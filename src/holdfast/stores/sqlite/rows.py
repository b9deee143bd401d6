"""Between rows and records: the only place that knows how a JobRecord lies in SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from holdfast.domain import lifecycle
from holdfast.domain.job import CLAIMABLE, Flow, JobRecord, NewJob, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim
from holdfast.stores.sqlite.guests import Connection
from holdfast.stores.sqlite.sql import SQL

_STATE = JobRecord._fields.index("state")
_RETRYABLE = JobRecord._fields.index("failure_retryable")
_CANCEL = JobRecord._fields.index("cancel_requested")
_FLOW = JobRecord._fields.index("flow")
PARENT = NewJob._fields.index("parent")
BARE = tuple(NewJob._field_defaults[name] for name in NewJob._fields[PARENT:])
_READY = 19
"""The place of `ready` among the parameters of `insert`."""
Told = str | list[list[Any]]
"""What `claimed` tells of jobs: rows, aggregated as JSON or read already."""
_STATES = {state.value: state for state in State}


def read(db: Connection, id_: str) -> JobRecord | None:
    """Read a job by its id."""
    row = db.execute(SQL["read"], (id_,)).fetchone()
    return None if row is None else record(row)


def record(row: Sequence[Any]) -> JobRecord:
    """Build a record from a row of `columns`."""
    fields = list(row)
    fields[_STATE] = _STATES[fields[_STATE]]
    fields[_CANCEL] = bool(fields[_CANCEL])
    if fields[_RETRYABLE] is not None:
        fields[_RETRYABLE] = bool(fields[_RETRYABLE])
    if fields[_FLOW] is not None:
        fields[_FLOW] = Flow(*from_json(fields[_FLOW]))
    return JobRecord._make(fields)


def claimed(told: Told, want: Claim, now: Micros) -> list[JobRecord]:
    """Build the records of jobs that were just claimed from what `claimed` tells."""
    lease = (want.lease_id, want.owner, now + want.lease, now, None)
    make, running = JobRecord._make, State.RUNNING
    return [
        make(
            (*row[:16], running, *row[16:22], *lease, row[22], None, now, None, None, row[23], row[24],
             None if row[25] is None else bool(row[25]), False, row[26], None,
             row[27], row[28], None if row[29] is None else Flow(*row[29]))
        )
        for row in (from_json(told) if isinstance(told, str) else told)
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


def is_laden(new: NewJob) -> bool:
    """Tell whether a new job has anything that most jobs have not: a family, credits, steps."""
    return new[PARENT:] != BARE


def laden(id_: str, new: NewJob, now: Micros) -> tuple[Any, ...]:
    """Give the parameters of `insert_laden`."""
    job = lifecycle.create(id_, new, now)
    return *fresh(id_, new, now), job.step_cursor, job.parent, job.code_version, flow_text(job.flow)


def laned(id_: str, new: NewJob, now: Micros, lane: str | None) -> tuple[Any, ...]:
    """Give the parameters of `insert_laned`: a job that is due stands in its lane at once."""
    row = laden(id_, new, now)
    return (*row[:_READY], 2, *row[_READY + 1 :], lane) if lane is not None and row[_READY] else (*row, None)


def changed(job: JobRecord, now: Micros) -> dict[str, Any]:
    """Give the parameters of `write`."""
    ready = int(job.available_at <= now) if job.state in CLAIMABLE else None
    return {**job._asdict(), "flow": flow_text(job.flow), "ready": ready}


def flow_text(flow: Flow | None) -> str | None:
    """Give the text that a flow is kept as."""
    return None if flow is None else json.dumps(flow)


def place_in_flow(field: str) -> str:
    """Give the path of a field in the text of a flow."""
    return f"$[{Flow._fields.index(field)}]"
