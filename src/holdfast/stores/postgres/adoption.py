"""Jobs that come from another store, or go there: each with its whole past, or not at all.

All of a batch come in one transaction; if one of them cannot be stored, the halves are tried by themselves, until it
stands alone.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import errors

from holdfast.domain import moving
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import PLAIN, AttemptRecord, JobRecord, SignalRecord, StepRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer
from holdfast.port.parcel import Parcel
from holdfast.stores.postgres import rows, sql
from holdfast.stores.postgres.ledger import Ledger
from holdfast.stores.postgres.pool import Connection
from holdfast.stores.postgres.trouble import BAD_ROW

_TEXTS = ("failure_code", "failure_message", "code", "message", "traceback")
Statement = tuple[str, dict[str, Any]]


def parcels(db: Connection, schema: str, ids: Sequence[str], now: Micros | None) -> list[Parcel]:
    """Read jobs with their whole past; those that are not there are left out."""
    found = db.execute(sql.statement(schema, "read"), {"ids": list(ids)}).fetchall()
    jobs = {job.id: job for job in map(rows.record, found)}
    keyed = [job for job in jobs.values() if job.key is not None]
    asked: dict[str, Any] = {
        "now": now,
        "ids": list(jobs),
        "tenants": [job.tenant for job in keyed],
        "keys": [job.key for job in keyed],
    }
    with db.pipeline():
        names = ("parcel_attempts", "parcel_steps", "parcel_signals", "parcel_keys")
        attempts, steps, signals, keys = [db.execute(sql.statement(schema, name), asked) for name in names]
    tried, done, sent = _by_job(attempts), _by_job(steps), _by_job(signals)
    owned = dict(keys.fetchall())
    return [
        Parcel(
            jobs[id_],
            [AttemptRecord(*row) for row in tried[id_]],
            [StepRecord(*row) for row in done[id_]],
            [SignalRecord(*row) for row in sent[id_]],
            id_ in owned,
            owned.get(id_),
        )
        for id_ in ids
        if id_ in jobs
    ]


def _by_job(found: Any) -> dict[str, list[Any]]:
    by_job: dict[str, list[Any]] = defaultdict(list)
    for id_, *row in found:
        by_job[id_].append(row)
    return by_job


def adopt(db: Connection, schema: str, given: Sequence[Parcel], now: Micros | None) -> list[Answer | KeyConflict]:
    """Store jobs with their whole past, unless they or their keys are there already."""
    try:
        with db.transaction():
            return _adopt(db, schema, given, now)
    except BAD_ROW as error:
        if len(given) > 1:
            half = len(given) // 2
            return adopt(db, schema, given[:half], now) + adopt(db, schema, given[half:], now)
        if isinstance(error, errors.UniqueViolation):  # somebody was quicker: what is there now decides
            with db.transaction():
                return _adopt(db, schema, given, now)
        return [Answer.UNWRITABLE]


def _adopt(db: Connection, schema: str, given: Sequence[Parcel], now: Micros | None) -> list[Answer | KeyConflict]:
    tenants = sorted({parcel.job.tenant for parcel in given if (parcel.job.flow or PLAIN).reserved})
    for tenant in tenants:  # locked, in the order in which everybody locks
        db.execute(sql.statement(schema, "open_account"), {"tenant": tenant})
    accounts = db.execute(sql.statement(schema, "lock_accounts"), {"tenants": tenants}).fetchall()
    ledger = Ledger(accounts)
    ids = [parcel.job.id for parcel in given]
    found = db.execute(sql.statement(schema, "read"), {"ids": ids}).fetchall()
    there = {job.id: job for job in map(rows.record, found)}
    moment = db.execute(sql.statement(schema, "now")).fetchone()[0] if now is None else now  # type: ignore[index]
    answers: list[Answer | KeyConflict] = []
    statements: list[Statement] = []
    for parcel in given:
        answer: Answer | KeyConflict | None = moving.welcome(there.get(parcel.job.id), parcel.job)
        if answer is None:
            answer = _prepare(db, schema, parcel, there.get(parcel.job.id), moment)
        if answer is None:
            there[parcel.job.id] = parcel.job
            ledger.bring(parcel.job)
            statements += _statements(parcel)
        answers.append(Answer.OK if answer is None else answer)
    with db.pipeline():
        for name, values in (*statements, *ledger.statements(now)):
            db.execute(sql.statement(schema, name), values)
    return answers


def _prepare(db: Connection, schema: str, parcel: Parcel, remains: JobRecord | None, now: Micros) -> KeyConflict | None:
    """Take a job's key and remove what was left of it; or say who has the key."""
    job = parcel.job
    if parcel.keyed:
        values = {**_values(job), "keyed_until": parcel.keyed_until, "now": now}
        owner = db.execute(sql.statement(schema, "adopt_key"), values).fetchone()
        if owner is not None and owner[0] != job.id:
            return moving.key_conflict(job, owner[0])
    if remains is not None:
        key = None if parcel.keyed else remains.key
        db.execute(sql.statement(schema, "forsake"), {**_values(remains), "key": key})
    return None


def _statements(parcel: Parcel) -> Iterator[Statement]:
    job = parcel.job
    values = _values(job)
    yield "adopt_job", values
    yield f"adopt_{rows.place_of(job.state)}", values
    yield "adopt_tally", values
    if job.parent is not None:
        yield "adopt_child", values
    for attempt in parcel.attempts:
        yield "adopt_attempt", _storable({"id": job.id, **attempt._asdict()})
    for position, step in enumerate(parcel.steps, -len(parcel.steps)):
        yield "adopt_step", {"job": job.id, "position": position, **step._asdict()}
    for position, signal in enumerate(parcel.signals, -len(parcel.signals)):
        yield "adopt_signal", {"job": job.id, "position": position, **signal._asdict()}


def _values(job: JobRecord) -> dict[str, Any]:
    return _storable({**job._asdict(), "state": job.state.value, "flow": rows.flow_text(job.flow)})


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    return {name: rows.storable(value) if value and name in _TEXTS else value for name, value in values.items()}
