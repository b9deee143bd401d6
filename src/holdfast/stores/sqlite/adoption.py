"""Jobs that come from another store, or go there: each with its whole past, or not at all."""

from collections.abc import Sequence
from typing import Any

from holdfast.domain import accounts, moving
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import AttemptRecord, CreditEntry, JobRecord, SignalRecord, StepRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer
from holdfast.port.parcel import Parcel
from holdfast.stores.sqlite import books, rows
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas

REMAINS = ("purge_keys", "purge_attempts", "purge_steps", "purge_signals", "purge")


def parcels(db: OwnConnection, ids: Sequence[str], now: Micros) -> list[Parcel]:
    """Read jobs with their whole past; those that are not there are left out."""
    return [_parcel(db, job, now) for job in (rows.read(db, id_) for id_ in ids) if job is not None]


def _parcel(db: OwnConnection, job: JobRecord, now: Micros) -> Parcel:
    key = db.execute(SQL["key_until"], (job.id, job.tenant, job.key, now)).fetchone()
    return Parcel(
        job,
        [AttemptRecord(*row) for row in db.execute(SQL["attempts"], (job.id,))],
        [StepRecord(*row) for row in db.execute(SQL["steps"], (job.id,))],
        [SignalRecord(*row) for row in db.execute(SQL["signals"], (job.id,))],
        key is not None,
        None if key is None else key[0],
    )


def adopt(db: OwnConnection, parcel: Parcel, now: Micros, deltas: Deltas) -> Answer | KeyConflict:
    """Store a job with its whole past, unless it or its key is there already."""
    job = parcel.job
    there = rows.read(db, job.id)
    if (answer := moving.welcome(there, job)) is not None:
        return answer
    if parcel.keyed:
        owner = db.execute(SQL["key_owner"], (job.tenant, job.key, now)).fetchone()
        if owner is not None and owner[0] != job.id:
            return moving.key_conflict(job, owner[0])
    if there is not None:
        _remove(db, there, deltas)
    db.execute(SQL["adopt"], rows.changed(job, now))
    deltas[job.queue, job.state] += 1
    if parcel.keyed:
        db.execute(SQL["take_key"], (job.tenant, job.key, parcel.keyed_until, job.id))
    _write_past(db, parcel)
    if change := accounts.brought(job):
        db.execute(SQL["open_account"], (job.tenant,))
        changed = change.granted, change.reserved, change.spent
        books.enter(db, [CreditEntry(job.tenant, "adopt", job.id, job.generation, None, *changed, now)])
    return Answer.OK


def _write_past(db: OwnConnection, parcel: Parcel) -> None:
    id_ = parcel.job.id
    if parcel.attempts:
        db.executemany(SQL["end_attempt"], [(id_, *attempt) for attempt in parcel.attempts])
    if parcel.steps:
        db.executemany(SQL["inherit_step"], _placed(id_, parcel.steps))
    if parcel.signals:
        db.executemany(SQL["adopt_signal"], _placed(id_, parcel.signals))


def _placed(id_: str, records: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Give records their places: before all that the job records here, whose places are its versions."""
    return [(id_, place, *record) for place, record in enumerate(records, -len(records))]


def _remove(db: OwnConnection, job: JobRecord, deltas: Deltas) -> None:
    """Remove what is left of a job that went away."""
    remains = db.execute(SQL["remains"], (job.id,)).get
    db.execute(SQL["permit"], (job.purge_at,))
    for name in REMAINS:
        db.execute(SQL[name], (remains,))
    db.execute(SQL["permit"], (None,))
    deltas[job.queue, job.state] -= 1
