"""How a job is shown: every field with its own name, times as ISO 8601, and no payload or result unless asked for."""

import json
from functools import lru_cache
from typing import Any

from holdfast.client.limits import Limited, Ordered
from holdfast.client.schedules import Schedule
from holdfast.client.tokens import TokenRecord
from holdfast.client.trail import Deed
from holdfast.domain.job import PLAIN, Account, AttemptRecord, CreditEntry, JobRecord, StepRecord
from holdfast.domain.moments import Micros, to_datetime
from holdfast.port.store import WorkerRecord

_FEW = 512


def job(record: JobRecord, *, payload: bool) -> dict[str, Any]:
    """Give all fields of a job."""
    flow, failure, lease = record.flow or PLAIN, record.failure, record.lease
    fields = {
        "id": record.id,
        "kind": record.kind,
        "queue": record.queue,
        "tenant": record.tenant,
        "user": record.user,
        "priority": record.priority,
        "state": record.state,
        "cause": record.cause,
        "attempt": record.attempt,
        "max_attempts": record.max_attempts,
        "crashes": record.crashes,
        "crash_cap": record.crash_cap,
        "generation": record.generation,
        "version": record.version,
        "token": record.token,
        "retry": record.retry,
        "trigger": record.trigger,
        "trace_id": record.trace_id,
        "key": record.key,
        "cancel_requested": record.cancel_requested,
        "step_cursor": record.step_cursor,
        "steps_total": record.steps_total,
        "parent": record.parent,
        "code_version": record.code_version,
        "progress": None if flow.progress is None else json.loads(flow.progress),
        "awaits": flow.awaits,
        "group": flow.group,
        "credits": {"estimate": flow.estimate, "reserved": flow.reserved, "spent": flow.spent},
        "failure": None if failure is None else failure._asdict(),
        "lease": lease and {"token": lease.token, "owner": lease.owner, "expires_at": time(lease.expires_at)},
        "created_at": time(record.created_at),
        "expires_at": time(record.expires_at),
        "available_at": time(record.available_at),
        "claimed_at": time(record.claimed_at),
        "begun_at": time(record.begun_at),
        "started_at": time(record.started_at),
        "finished_at": time(record.finished_at),
        "updated_at": time(record.updated_at),
        "purge_at": time(record.purge_at),
    }
    if payload:
        fields["payload"] = json.loads(record.payload)
        fields["result"] = None if record.result is None else json.loads(record.result)
    return fields


def brief(record: JobRecord) -> dict[str, Any]:
    """Give the fields of a job that say what it is and how it stands, for many jobs at once."""
    failure = record.failure
    return {
        "id": record.id,
        "kind": record.kind,
        "state": record.state,
        "queue": record.queue,
        "tenant": record.tenant,
        "priority": record.priority,
        "attempt": record.attempt,
        "max_attempts": record.max_attempts,
        "generation": record.generation,
        "key": record.key,
        "trigger": record.trigger,
        "cause": record.cause,
        "failure": None if failure is None else failure._asdict(),
        "created_at": time(record.created_at),
        "available_at": time(record.available_at),
        "finished_at": time(record.finished_at),
    }


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


def limited(limit: Limited) -> dict[str, Any]:
    """Give all fields of a limit, with what is in use of it."""
    uses = [use._asdict() | {"opens_at": use.opens_at and use.opens_at.isoformat()} for use in limit.uses]
    names = ("queue", "per", "rate", "burst", "concurrency", "full", "capacity")
    return {name: getattr(limit, name) for name in names} | {"uses": uses}


def ordered(queue: Ordered) -> dict[str, Any]:
    """Give all fields of a queue's order."""
    aging = None if queue.aging is None else queue.aging.total_seconds()
    return {"queue": queue.queue, "order": queue.order, "weights": dict(queue.weights), "aging": aging}


def account(record: Account) -> dict[str, Any]:
    """Give all fields of a tenant's account."""
    return record._asdict() | {"available": record.available}


def entry(record: CreditEntry) -> dict[str, Any]:
    """Give all fields of a change of an account."""
    return record._asdict() | {"at": time(record.at)}


def token(record: TokenRecord, now: Micros) -> dict[str, Any]:
    """Give all fields of a token, none of which is its secret, and whether it is good."""
    times = ("created_at", "expires_at", "revoked_at", "rotated_at")
    shown = record._asdict() | {name: time(getattr(record, name)) for name in times}
    return shown | {"scopes": list(record.scopes), "state": record.state(now)}


def deed(record: Deed) -> dict[str, Any]:
    """Give all fields of what was done."""
    return record._asdict() | {"at": time(record.at)}


def worker(record: WorkerRecord) -> dict[str, Any]:
    """Give all fields of a worker process."""
    times = ("started_at", "beat_at", "expires_at")
    return record._asdict() | {name: time(getattr(record, name)) for name in times}


def schedule(stored: Schedule) -> dict[str, Any]:
    """Give all fields of a stored schedule."""
    return {
        "name": stored.name,
        "kind": stored.kind,
        "cron": stored.cron,
        "every": None if stored.every is None else stored.every.total_seconds(),
        "tz": stored.tz,
        "catch_up": stored.catch_up,
        "next_at": None if stored.next_at is None else stored.next_at.isoformat(),
        "last_at": None if stored.last_at is None else stored.last_at.isoformat(),
        "paused": stored.paused,
    }


@lru_cache(_FEW)
def time(at: Micros | None) -> str | None:
    """Render an instant for programs. Jobs that were stored together have their times in common."""
    return None if at is None else to_datetime(at).isoformat()
