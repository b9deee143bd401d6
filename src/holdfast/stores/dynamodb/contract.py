"""The layout of the orchestrator's contract.

A job's item lies under its id and has the fields of the contract under their own names, as the dialect `contract`
writes them, so that other programs can read it; what the engine needs beyond them stands beside. `status` is the truth
about a job's state, also when another program wrote it. A queued job is `pending` until its message has been sent.

An item written by another program, with the fields of the contract alone, is a job like any other: what it lacks is
taken to be as it is in a job that nobody has touched yet.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

from holdfast.domain.dialects import DIALECTS, Dialect, timestamp
from holdfast.domain.job import Flow, JobRecord, NewJob, State
from holdfast.domain.moments import MINUTE, Micros, instant
from holdfast.port.store import Query
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Row, attributes
from holdfast.stores.dynamodb.layout import FOREVER, HELD, LOOK, LOOK_AT, Part, look, seen, shard
from holdfast.stores.dynamodb.proofs import UNPROVED
from holdfast.stores.dynamodb.steps import steps_of
from holdfast.stores.dynamodb.wire import Wire

PENDING, QUEUED = "pending", "queued"
OWED = "owed"
"""It waits for longer than a message can; one is owed when its time comes."""
DUE = "due"
"""It waits, and a message was to be sent with the write that let it wait; or it was claimed soon after. For most jobs
all is over before somebody looks, so a claim leaves the entry where it stands: whoever looks moves it.
"""
SENT = "sent"
"""It has waited for so long that it was looked at; now it is looked at again from time to time."""
DYING = "dying"
"""It is dead, and its message may not be in the dead-letter queue yet."""
ENDED = "ended"
"""It has ended, and may go one day."""
LONGEST_DELAY: Micros = 15 * MINUTE
"""A message cannot be put off for longer."""
LISTED, LISTED_INDEX = "listed", "holdfast_listed"
"""The attribute that an entry of the list of all jobs has, and its index: the job's shard, and its id."""
UNSUBMITTED = "unsubmitted"
_CONTRACT = DIALECTS["contract"]
_STATES = {str(word): state for state, word in _CONTRACT.statuses.items()} | {PENDING: State.QUEUED}
STATUSES = {state: str(word) for state, word in _CONTRACT.statuses.items()} | {State.QUEUED: PENDING}
"""The status that a write leaves; a message that was sent turns `pending` into `queued`."""
_LONG_ERROR = 2_000
_RENAMED = {
    "id": "job_id",
    "tenant": "workspace_id",
    "user": "user_id",
    "kind": "workflow_id",
    "trigger": "trigger_type",
    "attempt": "attempts",
    "max_attempts": "max_attempts",
    "step_cursor": "step_cursor",
    "steps_total": "steps_total",
    "key": "idempotency_key",
    "failure_code": "last_error_code",
    "failure_message": "last_error_message",
}
_TIMES = {
    "created_at": "created_at",
    "updated_at": "updated_at",
    "started_at": "started_at",
    "finished_at": "completed_at",
    "available_at": "next_attempt_at",
}
_NEW = NewJob("", "{}")
_UNTOUCHED: dict[str, Any] = {
    **dict.fromkeys(JobRecord._fields),
    **JobRecord._field_defaults,
    **{name: value for name, value in _NEW._asdict().items() if name in JobRecord._fields},
    "version": 0,
    "generation": 1,
    "attempt": 0,
    "crashes": 0,
    "token": 0,
    "cancel_requested": False,
    "step_cursor": 0,
}
"""What a job is as long as its item says nothing else."""
_OWN = tuple(name for name in JobRecord._fields if name not in {"state", "flow", "result", *_RENAMED, *_TIMES})
_ALWAYS = frozenset({"version", "token", "queue", "payload"})
"""What writes are guarded by, or claims look at."""
_WRITTEN = {int: "N", int | None: "N", bool: "BOOL", bool | None: "BOOL"}
_TYPES = {
    **{_RENAMED.get(name, name): _WRITTEN.get(hint, "S") for name, hint in get_type_hints(JobRecord).items()},
    **dict.fromkeys((*_TIMES.values(), "status", "error_message"), "S"),
}
"""Of which type of DynamoDB an attribute is; all others are nobody's business here."""
_COUNTED_UP = frozenset({"attempts", "version", "token"})
"""What a claim adds to, which cannot be done with a null."""
_NOUNS = {"N": "a whole number", "S": "text", "BOOL": "true or false"}


class _Some(NamedTuple):
    """What is written of a job: the fields of the contract, and those of a record that stand beside them."""

    named: Dialect
    own: tuple[str, ...]


_ALL = _Some(_CONTRACT, _OWN)


@lru_cache
def _some(names: frozenset[str]) -> _Some:
    """Say what to write if only these fields of a record matter; what is computed from a record always does."""
    named = {
        name: field
        for name, field in _CONTRACT.fields.items()
        if not isinstance(field.source, str) or field.source in names
    }
    return _Some(replace(_CONTRACT, fields=named), tuple(name for name in _OWN if name in names))


_text = lru_cache(timestamp)


class Contract(NamedTuple):
    """Jobs by their ids; `shards` is the number of partitions that an entry of an index may lie in."""

    shards: int

    @property
    def notes_ends(self) -> bool:
        """Finished jobs have entries."""
        return True

    @property
    def proves_keys(self) -> bool:
        """A job is its row."""
        return True

    def place(self, job: JobRecord) -> Row:
        """Give the key of a job's item."""
        return Row(job.id)

    def item(self, job: JobRecord, op: str | None) -> Item:
        """Write a job's item. What is as in an untouched job is left out; so is the workspace of a job without one,
        since an index takes no empty key.
        """
        return self._written(job, op, _ALL)

    def pair(self, before: JobRecord, after: JobRecord, op: str) -> tuple[Item, Item]:
        """Write what may differ of the items of a job before and after a change: that is a third of the work."""
        pairs = zip(JobRecord._fields, before, after, strict=True)
        some = _some(frozenset(name for name, was, is_ in pairs if was is not is_ and was != is_))
        return self._written(before, None, some), self._written(after, op, some)

    def _written(self, job: JobRecord, op: str | None, some: "_Some") -> Item:
        own = {name: value for name in some.own if (value := getattr(job, name)) != _UNTOUCHED[name] or name in _ALWAYS}
        values: dict[str, Any] = {
            **some.named.render(job, job.updated_at),
            **own,
            "workspace_id": job.tenant or None,
            "status": STATUSES[job.state],
            "next_attempt_at": _text(job.available_at),
            "flow": None if job.flow is None else json.dumps(job.flow, ensure_ascii=False),
            "op_token": op,
            LISTED: self._listed(job.id),
            **self._look(job),
        }
        if job.state is State.CREATED:
            values[UNSUBMITTED] = True
        if job.failure_message is not None and len(job.failure_message) > _LONG_ERROR:
            values |= {"last_error_message": job.failure_message[:_LONG_ERROR], "error_message": job.failure_message}
        if items.apart(job):
            values["result_apart"] = True
        else:
            values["result"] = job.result
        return attributes(values)

    def _look(self, job: JobRecord) -> dict[str, Any]:
        """Say why and when a job is to be looked at."""
        match job.state:
            case State.CREATED:
                return {}
            case State.RUNNING:
                why, at = HELD, job.lease_expires_at
            case State.DEAD:
                why, at = DYING, job.updated_at
            case State.SUCCEEDED | State.CANCELLED:
                why, at = ENDED, job.purge_at
            case _:
                late = job.available_at - job.updated_at > LONGEST_DELAY
                why, at = OWED if late else DUE, job.available_at
        return {LOOK: look(why, job.id, self.shards), LOOK_AT: at or 0}

    def _listed(self, id_: str) -> str:
        return f"{shard(id_, self.shards):02d}"

    def record(self, item: Item) -> JobRecord:
        """Read a job's item."""
        values = _values(item)
        flow = values.get("flow")
        state = State.CREATED if UNSUBMITTED in item else _STATES[values["status"]]
        own: dict[str, Any] = {name: values.get(name, _UNTOUCHED[name]) for name in _OWN}
        own |= {name: values.get(attribute, _UNTOUCHED[name]) for name, attribute in _RENAMED.items()}
        own |= {name: _instant(values.get(attribute), name) for name, attribute in _TIMES.items()}
        own["failure_message"] = values.get("error_message", own["failure_message"])
        for name in ("updated_at", "available_at"):
            own[name] = own["created_at"] if own[name] is None else own[name]
        return JobRecord(
            **own,
            state=state,
            flow=None if flow is None else Flow(*json.loads(flow)),
            result=values.get("result"),
        )

    def ours(self, item: Item) -> bool:
        """Tell whether an item is a job of the contract."""
        return self.understood(item) is not None

    def understood(self, item: Item) -> JobRecord | None:
        """Read a job's item if it is one of the contract, and there is no doubt that it has its key."""
        read = None if items.beside(item) or UNPROVED in item else self._judged(item)
        return read if isinstance(read, JobRecord) else None

    def strange(self, item: Item) -> str | None:
        """Say why an item is no job of the contract."""
        read = None if items.beside(item) else self._judged(item)
        return read if isinstance(read, str) else None

    def _judged(self, item: Item) -> JobRecord | str:
        """Read an item; or say why it is no job of the contract."""
        id_ = item["job_id"]["S"]
        status = item.get("status", {}).get("S")
        if status not in _STATES:
            return f"The item {id_!r} has the status {status!r}, which the contract does not know; it is passed over."
        try:
            UUID(id_)
            datetime.fromisoformat(item["created_at"]["S"])
            str(item["workflow_id"]["S"])
        except (KeyError, ValueError):
            return f"The item {id_!r} is no job: it lacks a UUID, a workflow_id or a created_at; it is passed over."
        try:
            job = self.record(item)
        except (ValueError, TypeError) as error:
            return f"The item {id_!r} is no job: {str(error).removesuffix('.')}; it is passed over."
        try:
            steps_of(item)
        except (KeyError, ValueError, TypeError):
            return f"The item {id_!r} has steps that Holdfast did not write; it is passed over."
        return job

    def pointers(self, job: JobRecord) -> list[Item]:
        """Give none."""
        return []

    def redirected(self, job: JobRecord) -> list[Part]:
        """Give none."""
        return []

    def pointed(self, item: Item) -> str | None:
        """Give none."""
        return None

    def fetch(self, wire: Wire, ids: Sequence[str]) -> dict[str, Item]:
        """Read the items of jobs."""
        return {item["job_id"]["S"]: item for item in wire.get_all([Row(id_) for id_ in ids]).values()}

    def waiting(self, wire: Wire, upto: Micros | None, page: int) -> Iterator[Iterator[JobRecord]]:
        """Walk through the jobs that wait: those that were looked at already are due, whenever they are looked at."""
        for why, until in ((SENT, None), (DUE, upto), (OWED, upto)):
            yield self._walk(wire, why, FOREVER if until is None else until, page)

    def leased(self, wire: Wire, upto: Micros | None = None) -> Iterator[JobRecord]:
        """Walk through the leased jobs: by the end of their lease, and with all of them, those whose entry their claim
        has left where it stood.
        """
        until = FOREVER if upto is None else upto
        walks = [self._walk(wire, why, until, 0) for why in ((HELD, DUE) if upto is None else (HELD,))]
        return (job for walk in walks for job in walk if job.state is State.RUNNING)

    def ended(self, wire: Wire, upto: Micros, page: int) -> Iterator[Item]:
        """Walk through the finished jobs that may go."""
        return (item for item in seen(wire, ENDED, upto, page) if self.ours(item))

    def _walk(self, wire: Wire, why: str, upto: Micros, page: int) -> Iterator[JobRecord]:
        jobs = map(self.understood, seen(wire, why, upto, page))
        return (job for job in jobs if job is not None)

    def listed(self, wire: Wire, query: Query) -> Iterator[str]:
        """Name all jobs, newest first."""
        condition, values = "#s = :s", dict[str, Any]()
        if query.before is not None:
            condition, values = f"{condition} AND job_id < :before", {":before": query.before}
        walks = [
            (
                item["job_id"]["S"]
                for item in wire.walk_index(
                    LISTED_INDEX, condition, {"#s": LISTED}, {":s": partition, **values}, newest=True
                )
            )
            for partition in (f"{number:02d}" for number in range(self.shards))
        ]
        yield from heapq.merge(*walks, reverse=True)


def _values(item: Item) -> dict[str, Any]:
    """Read what an item says of a job; a null says nothing."""
    values: dict[str, Any] = {}
    for name, typed in item.items():
        [(kind, value)] = typed.items()
        if name not in _TYPES or (kind == "NULL" and name not in _COUNTED_UP):
            continue
        if kind != _TYPES[name] or (kind == "N" and not value.removeprefix("-").isdecimal()):
            msg = f"its {name} is not {_NOUNS[_TYPES[name]]}"
            raise ValueError(msg)
        values[name] = int(value) if kind == "N" else value
    return values


def _instant(text: str | None, name: str) -> Micros | None:
    """Read a timestamp; one that names no time zone is meant as UTC."""
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    return instant(at if at.tzinfo is not None else at.replace(tzinfo=UTC), name)
