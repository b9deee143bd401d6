"""Between rows and records: the only place that knows how a JobRecord lies in PostgreSQL."""

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.job import PLAIN, AttemptRecord, Flow, JobRecord, NewJob, State
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.port.store import Beat, Claim

_STATE = JobRecord._fields.index("state")
_STATES = {state.value: state for state in State}
_PLACES = {
    State.CREATED: "created",
    State.QUEUED: "waiting",
    State.RETRYING: "waiting",
    State.RUNNING: "running",
    State.SUCCEEDED: "outcome",
    State.DEAD: "outcome",
    State.CANCELLED: "outcome",
}


def place_of(state: State) -> str:
    """Name the table in which a job of this state stands."""
    return _PLACES[state]


def record(row: Sequence[Any]) -> JobRecord:
    """Build a record from a row of one place's columns."""
    fields = list(row)
    fields[_STATE] = _STATES[fields[_STATE]]
    fields[-1] = flow(fields[-1])
    return JobRecord._make(fields)


def flow(text: str | None) -> Flow | None:
    """Read a flow."""
    return None if text is None else Flow(*json.loads(text))


def flow_text(value: Flow | None) -> str | None:
    """Write a flow: what it holds, in its order."""
    return None if value is None else json.dumps(value)


PLAIN_TEXT = json.dumps(PLAIN)


_DUE_AND_AGE, _PRIORITY = itemgetter(16, 0), itemgetter(5)
"""What the order of a claim goes by: the higher priority first, then due time, then age."""


def claimed(rows: list[tuple[Any, ...]], want: Claim) -> list[JobRecord]:
    """Build the records of jobs that were just claimed, best first."""
    if not rows or rows[0][0] is None:
        return []
    rows.sort(key=_DUE_AND_AGE)
    if len(set(map(_PRIORITY, rows))) > 1:
        rows.sort(key=_PRIORITY, reverse=True)  # which leaves those of one priority in their order
    make, now = tuple.__new__, rows[0][17]
    leased = (want.lease_id, want.owner, now + want.lease, now, None)
    first = (State.RUNNING, 2, 1, 1, 0)
    rest = (1, *leased, now, None, now, None, None, None, None, None, False, 0, None)
    return [
        make(JobRecord, row[:16] + first + row[16:17] + rest + (row[18:21] if row[20] is None else _last(row)))
        if row[21] is None
        else _again(row, leased)
        for row in rows
    ]


def _again(row: Sequence[Any], leased: tuple[Any, ...]) -> JobRecord:
    """Build the record of a claimed job that has been through something."""
    version, generation, attempt, crashes, token, started_at, *failure, step_cursor = json.loads(row[21])
    now = row[17]
    return JobRecord._make(
        (*row[:16], State.RUNNING, version + 1, generation, attempt + 1, crashes, row[16], token + 1, *leased,
         now if started_at is None else started_at, None, now, None, None, *failure, False, step_cursor, None,
         *_last(row))
    )  # fmt: skip


def _last(row: Sequence[Any]) -> tuple[Any, ...]:
    return row[18], row[19], flow(row[20])


def alone(id_: str, new: NewJob, now: Micros | None) -> dict[str, Any]:
    """Give the parameters of `insert_one`."""
    return {
        "id": id_, "kind": new.kind, "queue": new.queue, "tenant": new.tenant, "user": new.user,
        "priority": new.priority, "payload": new.payload, "retry": new.retry, "max_attempts": new.max_attempts,
        "crash_cap": new.crash_cap, "trigger": new.trigger, "trace_id": new.trace_id, "now": now,
        "steps_total": new.steps_total, "run_at": new.run_at, "delay": new.delay, "expires_after": new.expires_after,
        "code_version": new.code_version,
    }  # fmt: skip


LARGEST = 4_000
"""The most jobs of one `insert`: while the server stores one batch, the next is made."""


class Template(NamedTuple):
    """All that jobs of one `insert` have in common."""

    kind: str
    queue: str
    tenant: str
    user: str | None
    priority: int
    retry: str
    max_attempts: int
    crash_cap: int
    trigger: str
    trace_id: str | None
    delay: Micros
    expires_after: Micros | None
    steps_total: int
    state: str
    parent: str | None
    code_version: int
    flow: str | None
    steps: int
    step_cursor: int

    @property
    def plain(self) -> bool:
        """Whether the jobs have nothing but what every job has."""
        return self.parent is None and self.flow is None and not self.steps


def template(new: NewJob) -> Template:
    """Leave out what sets a job apart from its like."""
    return Template(
        new.kind, new.queue, new.tenant, new.user, new.priority, new.retry, new.max_attempts, new.crash_cap,
        new.trigger, new.trace_id, new.delay, new.expires_after, new.steps_total, new.state.value,
        new.parent, new.code_version, flow_text(lifecycle.flow_of(new)), len(new.steps),
        lifecycle.create("", new, 0).step_cursor if new.steps else 0,
    )  # fmt: skip


Batch = tuple[Template, list[tuple[str, NewJob]]]


def batches(group: Sequence[tuple[str, NewJob]]) -> list[Batch]:
    """Divide a group into the `insert` statements it needs: one for all jobs that are alike, up to a size."""
    alike: dict[Template, list[tuple[str, NewJob]]] = {}
    like: list[tuple[str, NewJob]] = []
    kind, middle, end = "", tuple[Any, ...](), tuple[Any, ...]()
    for one in group:
        new = one[1]
        if new[12:] != end or new[2:11] != middle or new[0] != kind:
            like = alike.setdefault(template(new), [])
            kind, middle, end = new[0], new[2:11], new[12:]
        like.append(one)
    return [
        (shared, ones[start : start + LARGEST])
        for shared, ones in alike.items()
        for start in range(0, len(ones), LARGEST)
    ]


def inserted(batch: Batch, now: Micros | None) -> dict[str, Any]:
    """Give the parameters of one `insert`."""
    shared, ones = batch
    keys, run_ats = [new.key for _, new in ones], [new.run_at for _, new in ones]
    return {
        **shared._asdict(),
        "now": now,
        "jobs": len(ones),
        "ids": ",".join([id_ for id_, _ in ones]),
        "payloads": "\x1f".join([new.payload for _, new in ones]),
        "keys": keys if any(key is not None for key in keys) else None,
        "run_ats": run_ats if any(at is not None for at in run_ats) else None,
    }


def written(before: JobRecord, after: JobRecord, move: Move, ended: AttemptRecord | None) -> Mapping[str, Any]:
    """Give the parameters of a write."""
    values: dict[str, Any] = after._asdict()
    values["state"] = after.state.value
    values["state_before"] = before.state.value
    values["seen"] = before.version
    values["available_before"] = before.available_at
    values["flow"] = flow_text(after.flow)
    values["step"], values["step_result"] = move.step, move.result
    if move.signal is not None:
        values["signal_id"], values["signal_name"], values["signal_payload"] = move.signal
    if move.events:
        values["event_ids"] = [event.id for event in move.events]
        values["event_names"] = [event.name for event in move.events]
        values["event_bodies"] = [event.body for event in move.events]
    if ended is not None:
        values.update({f"ended_{name}": value for name, value in ended._asdict().items()})
    for name in ("failure_message", "failure_code", "ended_message", "ended_traceback", "ended_code"):
        if values.get(name):
            values[name] = storable(values[name])
    return values


def beaten(beats: Sequence[Beat], lease: Micros, now: Micros | None) -> dict[str, Any]:
    """Give the parameters of `heartbeat`, in the order in which everybody locks."""
    ordered = sorted(beats, key=lambda beat: beat.id)
    values: dict[str, Any] = {
        "now": now,
        "lease": lease,
        "ids": [beat.id for beat in ordered],
        "tokens": [beat.token for beat in ordered],
        "lease_ids": [beat.lease_id for beat in ordered],
        "begun": [beat.id for beat in ordered if beat.begun],
    }
    if news := {beat.id: storable(beat.progress) for beat in beats if beat.progress is not None}:
        values |= {"progress": json.dumps(news), "plain": PLAIN_TEXT}
    return values


def storable(text: str) -> str:
    """Write out what PostgreSQL's text cannot hold: a NUL, half a surrogate pair."""
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()
