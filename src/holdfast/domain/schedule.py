"""When a schedule fires, and what: pure functions of a `Spec` and an instant.

A spec is either a cron line, read in a time zone, or a distance that is counted from an anchor and so never drifts.
What a schedule has missed while nobody was there to fire it is dropped, folded into one or made up for, by its
`catch_up`.

Where the clocks change, a line that names its minute and its hour fires once a day: a time that is left out fires when
the clocks have moved on, one that comes twice fires the first time. A line with a `*` for either follows the clock on
the wall through whatever it shows. Lines are read by cronsim, which in lines of the second sort is never shown a change
of the clock: it would lose times where clocks change at midnight or by half an hour.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic_core import from_json, to_json

from holdfast.domain import codec
from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.job import NewJob, State, Trigger
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND, Micros, duration, instant, to_datetime

NEVER: Micros = instant(datetime(9999, 12, 31, tzinfo=UTC), "NEVER")
"""The next time of a schedule that has none."""
FAR: Micros = 8 * 366 * DAY
"""A cron line with no time within this never fires: even 29 February comes sooner."""
LATE: Micros = 1 * MINUTE
"""A time that is not fired within this has been missed."""
MOST = 1_000
"""The most times that are fired in one go."""
CORRECTED: Micros = 1 * HOUR
"""A clock that is behind the last firing by less than this was corrected; one further behind had been wrong."""
LONGEST_LINE = 255
_FIELDS = 5
_TICK = timedelta(seconds=1)
_DAY = timedelta(days=1)


class CatchUp(StrEnum):
    """What is done about times that were missed."""

    SKIP = "skip"
    """They are dropped."""
    ONCE = "once"
    """The latest of them is fired, for all."""
    ALL = "all"
    """Each of them is fired."""


class Spec(NamedTuple):
    """What a schedule fires, and when: `cron` in the zone `tz`, or `every` so often since `anchor`."""

    job: NewJob
    cron: str | None = None
    every: Micros | None = None
    tz: str = "UTC"
    catch_up: str = CatchUp.SKIP.value
    anchor: Micros = 0


def checked(
    job: NewJob, *, cron: str | None, every: float | timedelta | None, tz: str, catch_up: str, now: Micros
) -> Spec:
    """Make a spec of what a caller asks for, or say what is wrong with it."""
    if (cron is None) == (every is None):
        said = "neither was" if cron is None else "both were"
        msg = f"A schedule needs either cron= or every=, and {said} given."
        raise BadInput(msg)
    if not isinstance(catch_up, str) or catch_up not in set(CatchUp):
        msg = f"catch_up is one of {', '.join(CatchUp)}; {catch_up!r} is not."
        raise BadInput(msg)
    _zone(tz)
    template = _template(job)
    if every is not None:
        return Spec(template, None, _distance(every), tz, str(catch_up))
    spec = Spec(template, _line(cron), None, tz, str(catch_up))
    if next_after(spec, now) > now + FAR:
        raise _never(spec.cron)
    return spec


def next_after(spec: Spec, at: Micros) -> Micros:
    """Give the first time after an instant; `NEVER` if there is none."""
    if spec.every is not None:
        return spec.anchor + ((at - spec.anchor) // spec.every + 1) * spec.every
    line, zone, after = spec.cron or "", _zone(spec.tz), to_datetime(at)
    try:
        found = _on_the_wall(line, zone, after) if _follows_the_clock(line) else _once_a_day(line, zone, after)
    except OverflowError:  # past the last year there is
        found = None
    return NEVER if found is None else instant(found, "a time")


def upcoming(spec: Spec, last_at: Micros | None, now: Micros) -> Micros:
    """Give the time that a schedule is to wait for: the first that is neither past nor fired."""
    if last_at is not None and now < last_at < now + CORRECTED:
        return next_after(spec, last_at)
    return next_after(spec, now)


def recounted(spec: Spec, next_at: Micros, last_at: Micros | None, now: Micros) -> Micros:
    """Give the time that a schedule waits for, sooner than it thinks if it was counted by a clock that ran ahead."""
    return next_at if next_at <= now else min(next_at, upcoming(spec, last_at, now))


def due(spec: Spec, next_at: Micros, now: Micros) -> tuple[list[Micros], Micros]:
    """Give the times that are to be fired now, in order, and the time to wait for after that."""
    at, missed = next_at, now - LATE - 1
    if at <= missed:
        match CatchUp(spec.catch_up):
            case CatchUp.SKIP:
                at = next_after(spec, missed)
            case CatchUp.ONCE:
                at = _latest(spec, at, missed)
            case CatchUp.ALL:
                pass
    times: list[Micros] = []
    while at <= now and len(times) < MOST:
        times.append(at)
        at = next_after(spec, at)
    return times, at


def _latest(spec: Spec, first: Micros, until: Micros) -> Micros:
    """Give the last of the times from `first` on, without going through years of them."""
    span = LATE
    while (start := until - span) > first:
        if (found := next_after(spec, start)) <= until:
            first = found
            break
        span *= 8
    while (following := next_after(spec, first)) <= until:
        first = following
    return first


def key(name: str, at: Micros) -> str:
    """Name the one job that a schedule has for a time."""
    return f"schedule:{name}:{to_datetime(at).isoformat()}"


def job_at(name: str, spec: Spec, at: Micros) -> NewJob:
    """Give the job that a schedule fires for a time."""
    return spec.job._replace(key=key(name, at), trigger=Trigger.SCHEDULE.value, run_at=at)


def anchored(spec: Spec, now: Micros) -> Spec:
    """Count a spec's distance from now on."""
    return spec if spec.every is None else spec._replace(anchor=now - now % SECOND)


def succeed(new: Spec, old: Spec | None, now: Micros) -> tuple[Spec, bool]:
    """Give the spec that takes the place of an old one, and whether the times of the old one are still its times."""
    kept = old is not None and old[1:4] == new[1:4]
    return (new._replace(anchor=old.anchor) if old is not None and kept else anchored(new, now)), kept


def encode(spec: Spec) -> str:
    """Write a spec as it is stored; of its job, all that is not as usual."""
    usual = NewJob("", "")
    job = {name: value for name, value in spec.job._asdict().items() if value != getattr(usual, name)}
    return to_json(spec._asdict() | {"job": job}).decode()


@lru_cache(maxsize=1_000)
def decode(text: str) -> Spec:
    """Read a stored spec; whatever a later version wrote that is not known here is refused, not left out."""
    try:
        spec = Spec(**from_json(text))
        if (spec.every or 0) < SECOND:
            _line(spec.cron)
        return spec._replace(job=_job(spec.job), catch_up=CatchUp(spec.catch_up).value)
    except (TypeError, ValueError) as error:
        msg = f"A schedule is stored in a form that this version cannot read ({str(error)[:200]})."
        raise StoreError(msg) from error


def _job(fields: Any) -> NewJob:
    job = NewJob(**fields)
    return job._replace(state=State(job.state), steps=tuple((name, result) for name, result in job.steps))


def _template(job: NewJob) -> NewJob:
    """Check that a job can be fired again and again, each time under a key of its own."""
    if job.key is not None or job.unique is not None:
        msg = "A schedule gives each of its jobs a key of its own; prepare the job without key=."
        raise BadInput(msg)
    if job.delay or job.run_at is not None:
        msg = "When its jobs run is for the schedule to say; prepare the job without run_after= or run_at=."
        raise BadInput(msg)
    if job.payload.startswith(codec.ARTIFACT) or len(job.payload.encode()) > codec.MAX_BYTES:
        msg = f"A schedule keeps its payload with it, at most {codec.MAX_BYTES:,} bytes; give it a smaller one."
        raise BadInput(msg)
    return job._replace(key_ttl=None)


def _distance(every: float | timedelta) -> Micros:
    span = duration(every, "every")
    if span < SECOND:
        msg = f"every is one second or more; {every!r} was given."
        raise BadInput(msg)
    return span


def _line(cron: Any) -> str:
    """Check the form of a cron line, and give it with single spaces."""
    if not isinstance(cron, str) or len(cron) > LONGEST_LINE or not cron.isascii() or not cron.isprintable():
        msg = f"cron is a line of five fields, as in '0 3 * * *'; {repr(cron)[:60]} is not."
        raise BadInput(msg)
    fields = cron.split()
    if len(fields) != _FIELDS:
        msg = f"A cron line has five fields (minute, hour, day, month, weekday), and {cron!r} has {len(fields)}."
        raise BadInput(msg)
    line = " ".join(fields)
    complaint = _complaint(line)
    if complaint is None:
        return line
    if _complaint(" ".join([*fields[:3], "*", fields[4]])) is None and _complaint(f"* * * {fields[3]} *") is None:
        raise _never(line)
    msg = f"{cron!r} is not a cron line ({complaint[:1].lower()}{complaint[1:]}); write it as in '0 3 * * *'."
    raise BadInput(msg)


def _complaint(line: str) -> str | None:
    try:
        CronSim(line, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return str(error)
    return None


def _never(line: str | None) -> BadInput:
    return BadInput(f"The cron line {line!r} never fires: no day of the next eight years fits it.")


def _zone(tz: Any) -> tzinfo:
    try:
        return UTC if tz == "UTC" else ZoneInfo(tz)
    except (KeyError, ValueError, TypeError, OSError):
        msg = f"{repr(tz)[:60]} is not a time zone that this machine knows; write it as in 'Europe/Prague' or 'UTC'."
        raise BadInput(msg) from None


def _follows_the_clock(line: str) -> bool:
    return any(field.startswith("*") for field in line.split()[:2])


def _once_a_day(line: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Find the next time of a line that names its minute and hour. In an hour that comes twice, cronsim gives times
    of the first; whoever asks during the second has seen them.
    """
    return next((at for at in _utc(line, after.astimezone(zone)) if at > after), None)


def _utc(line: str, start: datetime) -> Iterator[datetime]:
    return (at.astimezone(UTC) for at in CronSim(line, start))


def _on_the_wall(line: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Find the next instant at which a clock on the wall shows what the line says, whichever way it was moved.

    Between two changes of the clock the wall is a fixed distance from UTC, and there cronsim has no change to see.
    """
    begin = after.replace(microsecond=0) + _TICK
    while True:
        offset = _offset(zone, begin)
        shown = next(CronSim(line, begin + offset - _TICK), None)
        if shown is None:
            return None
        found: datetime = shown - offset
        change = _change(zone, begin, found)
        if change is None:
            return found
        begin = change


def _change(zone: tzinfo, begin: datetime, end: datetime) -> datetime | None:
    """Find the first second after `begin`, and up to `end`, when the clock on the wall is moved."""
    offset = _offset(zone, begin)
    while begin < end:
        later = min(begin + _DAY, end)
        if _offset(zone, later) != offset:
            while later - begin > _TICK:
                middle = begin + (later - begin) // _TICK // 2 * _TICK
                begin, later = (middle, later) if _offset(zone, middle) == offset else (begin, middle)
            return later
        begin = later
    return None


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)
