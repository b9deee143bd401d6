"""The schedules of an application: those it declares in code, and those that are stored.

A declared schedule is only kept here; a worker stores it when it starts (`runtime.firing`). Everything else goes to the
store and back at once. Every write is made against the version that was read, so it never undoes a firing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from holdfast.client.asynchronous import asynchronous
from holdfast.client.function import Prepared
from holdfast.client.job import Job
from holdfast.client.registry import text
from holdfast.domain import schedule
from holdfast.domain.errors import BadInput, ScheduleNotFound, StoreUnavailable
from holdfast.domain.moments import Micros, to_datetime
from holdfast.port.store import ScheduleRecord, Store

LONGEST_NAME = 200
"""Short enough for the name to be part of a key."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Schedule:
    """A stored schedule, as it was when read."""

    name: str
    kind: str
    """The kind of its jobs."""
    cron: str | None
    every: timedelta | None
    tz: str
    catch_up: str
    next_at: datetime | None
    """When it is to fire next; None if it never will."""
    last_at: datetime | None
    """The time for which it last fired."""
    paused: bool


Listed = list[Schedule]


class Schedules:
    """What an application knows of its schedules. `now` is its own clock; what is stored goes by the store's."""

    def __init__(
        self, store: Callable[[], Store], enqueue: Callable[[Prepared], Job[Any]], now: Callable[[], Micros]
    ) -> None:
        self._store = store
        self._enqueue = enqueue
        self._now = now
        self._declared: dict[str, schedule.Spec] = {}

    @property
    def declared(self) -> Mapping[str, schedule.Spec]:
        """The schedules that a worker stores when it starts."""
        return MappingProxyType(self._declared)

    def declare(
        self,
        name: str,
        prepared: Prepared,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        catch_up: str = "skip",
    ) -> None:
        """Have workers fire a job by a cron line, read in a time zone, or every so many seconds."""
        _name(name)
        if name in self._declared:
            msg = f"The schedule {name!r} is declared already; give one of the two another name."
            raise BadInput(msg)
        self._declared[name] = _spec(prepared, self._now(), cron=cron, every=every, tz=tz, catch_up=catch_up)

    def list(self) -> Listed:
        """List the stored schedules, by name."""
        return [_shown(record) for record in self._store().schedules()]

    def add(
        self,
        name: str,
        prepared: Prepared,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        catch_up: str = "skip",
    ) -> Schedule:
        """Store a schedule under a new name; takes the same as `app.schedule`."""
        _name(name)
        store = self._store()
        now = store.now()
        asked = _spec(prepared, now, cron=cron, every=every, tz=tz, catch_up=catch_up)
        spec = schedule.anchored(asked, now)
        record = ScheduleRecord(name, schedule.encode(spec), schedule.next_after(spec, now))
        if not store.save_schedule(record, None):
            msg = f"There is a schedule {name!r} already; remove it first, or choose another name."
            raise BadInput(msg)
        return _shown(record)

    def pause(self, name: str) -> Schedule:
        """Fire a schedule no more until it is resumed."""
        return self._change(name, lambda record: record._replace(paused=True))

    def resume(self, name: str) -> Schedule:
        """Fire a paused schedule again, from its next time on: what came while it was paused is not made up for."""
        return self._change(name, self._resumed)

    def _resumed(self, record: ScheduleRecord) -> ScheduleRecord:
        if not record.paused:
            return record
        spec = schedule.decode(record.spec)
        return record._replace(paused=False, next_at=schedule.upcoming(spec, record.last_at, self._store().now()))

    def run(self, name: str) -> Job[Any]:
        """Enqueue a schedule's job now, besides those of its times; a paused schedule's too."""
        return self._enqueue(Prepared(schedule.decode(self._record(name).spec).job))

    def remove(self, name: str) -> None:
        """Forget a schedule; the jobs it has fired stay. One that code declares is back when a worker next starts."""
        if not self._store().remove_schedule(name):
            raise _absent(name)

    def _change(self, name: str, change: Callable[[ScheduleRecord], ScheduleRecord]) -> Schedule:
        """Change what is stored, again if it was fired in between."""
        for _ in range(_TRIES):
            record = self._record(name)
            changed = change(record)
            if changed == record or self._store().save_schedule(changed, record.version):
                return _shown(changed)
        msg = f"The schedule {name!r} kept changing while it was being changed; try again."
        raise StoreUnavailable(msg)

    def _record(self, name: str) -> ScheduleRecord:
        for record in self._store().schedules():
            if record.name == name:
                return record
        raise _absent(name)

    alist = asynchronous(list)  # noqa: A003 - the method, not the type
    aadd = asynchronous(add)
    apause = asynchronous(pause)
    aresume = asynchronous(resume)
    arun = asynchronous(run)
    aremove = asynchronous(remove)


def _name(name: str) -> None:
    if len(text(name, "schedule's name")) > LONGEST_NAME:
        msg = f"A schedule's name is at most {LONGEST_NAME} characters; {name[:40]!r}… has {len(name)}."
        raise BadInput(msg)


def _spec(
    prepared: Prepared,
    now: Micros,
    *,
    cron: str | None,
    every: float | timedelta | None,
    tz: str,
    catch_up: str,
) -> schedule.Spec:
    if not isinstance(prepared, Prepared):
        msg = f"A schedule takes a prepared job, as in cleanup.prepare(), not a {type(prepared).__name__}."
        raise BadInput(msg)
    if prepared.connection is not None:
        msg = "A schedule outlives every transaction; prepare its job without connection=."
        raise BadInput(msg)
    return schedule.checked(prepared.new, cron=cron, every=every, tz=tz, catch_up=catch_up, now=now)


def _absent(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"There is no schedule {str(name)[:200]!r}.")


def _shown(record: ScheduleRecord) -> Schedule:
    spec = schedule.decode(record.spec)
    return Schedule(
        record.name,
        spec.job.kind,
        spec.cron,
        None if spec.every is None else timedelta(microseconds=spec.every),
        spec.tz,
        spec.catch_up,
        None if record.next_at >= schedule.NEVER else to_datetime(record.next_at),
        None if record.last_at is None else to_datetime(record.last_at),
        record.paused,
    )
