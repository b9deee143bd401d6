"""Firing: one job for each time of each schedule, whoever leads.

A job is stored under a key that names its schedule and its time, and only then does the schedule move on, if it still
is as it was read. So a leader that dies between the two, a second leader and a clock that is set back each ask for a
job that is there already; and a time is never passed over without its job. Nothing is kept from round to round.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from holdfast.domain import schedule
from holdfast.domain.errors import (
    CommitUnknown,
    HoldfastError,
    InsufficientCredits,
    KeyConflict,
    StoreError,
    StoreUnavailable,
)
from holdfast.domain.job import NewJob
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, ScheduleRecord, Store

log = logging.getLogger("holdfast.firing")
Insert = Callable[[Sequence[NewJob]], Sequence[Inserted]]
_TRIES = 20


def fire(store: Store, insert: Insert, now: Micros) -> int:
    """Store the jobs of all times that have come; give the number of new ones. One bad schedule holds up no other."""
    stored = 0
    for record in store.schedules():
        if record.paused:
            continue
        try:
            stored += _fire(store, insert, record, now)
        except (StoreUnavailable, CommitUnknown):
            raise
        except HoldfastError as error:
            _complain(record.name, record.version, str(error))
    return stored


def store_declared(store: Store, declared: Mapping[str, schedule.Spec]) -> int:
    """Store the schedules that code declares, where they are new or changed; give the number of those.

    A changed schedule stays paused if it was. One whose times are the same waits for the time it waited for, even if
    that has passed; one with other times waits for the next of them.
    """
    return sum(_store_one(store, name, spec) for name, spec in declared.items())


def _store_one(store: Store, name: str, declared: schedule.Spec) -> bool:
    for _ in range(_TRIES):
        found = next((record for record in store.schedules() if record.name == name), None)
        now = store.now()
        old = _readable(found)
        spec, kept = schedule.succeed(declared, old, now)
        if spec == old:
            return False
        new = found or ScheduleRecord(name, "", 0)
        next_at = new.next_at if kept else schedule.upcoming(spec, new.last_at, now)
        record = new._replace(spec=schedule.encode(spec), next_at=next_at)
        if store.save_schedule(record, None if found is None else found.version):
            return True
    msg = f"The schedule {name!r} kept changing while it was being stored."
    raise StoreUnavailable(msg)


def _readable(record: ScheduleRecord | None) -> schedule.Spec | None:
    try:
        return None if record is None else schedule.decode(record.spec)
    except StoreError:
        return None


def _fire(store: Store, insert: Insert, record: ScheduleRecord, now: Micros) -> int:
    spec = schedule.decode(record.spec)
    times, next_at = schedule.due(spec, schedule.recounted(spec, record.next_at, record.last_at, now), now)
    stored, done = _insert(insert, record, spec, times)
    if done < len(times):
        next_at = times[done]
    if next_at != record.next_at:
        last_at = times[done - 1] if done else record.last_at
        store.save_schedule(record._replace(next_at=next_at, last_at=last_at), record.version)
    return stored


def _insert(insert: Insert, record: ScheduleRecord, spec: schedule.Spec, times: list[Micros]) -> tuple[int, int]:
    """Store a job for each of these times; give the number of new jobs, and of times that are done with."""
    jobs = [schedule.job_at(record.name, spec, at) for at in times]
    if len(jobs) > 1:
        try:
            return _new(insert(jobs)), len(jobs)
        except (KeyConflict, InsufficientCredits):
            pass  # one of them is refused: ask for each by itself
    stored = 0
    for done, job in enumerate(jobs):
        try:
            stored += _new(insert([job]))
        except KeyConflict:
            continue  # fired already, before the schedule was changed
        except InsufficientCredits as refusal:
            _complain(record.name, record.version, str(refusal))
            return stored, done
    return stored, len(jobs)


def _new(inserted: Sequence[Inserted]) -> int:
    return sum(not one.duplicate for one in inserted)


@lru_cache(maxsize=1_000)
def _complain(name: str, version: int, sentence: str) -> None:
    """Log what keeps a schedule from firing: once, not every round, until it has changed."""
    log.warning("schedule %r (version %d) waits: %s", name, version, sentence)
