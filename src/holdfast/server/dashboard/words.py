"""How values are written for people: numbers, spans of time and moments, short and the same on every page."""

import json
from datetime import datetime, timedelta

from holdfast.domain import retry
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND, Micros, instant, to_datetime

_MILLI = SECOND // 1_000
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"))
_NOW = SECOND
_LARGEST_SHOWN = 64 * 1024
_DELAYS = 4


def number(value: float) -> str:
    """Write a number with its thousands apart; a fraction only while the number is small."""
    if isinstance(value, int) or value >= 100:  # noqa: PLR2004 - from here on nobody reads the fraction
        return f"{round(value):,}"
    return f"{value:.1f}"


def span(micros: Micros) -> str:
    """Write how long something took or takes: two digits that matter, and one unit."""
    size = abs(micros)
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    if size >= 10 * SECOND:
        return f"{size / SECOND:.0f} s"
    if size >= SECOND:
        return f"{size / SECOND:.1f}".removesuffix(".0") + " s"
    return f"{size / _MILLI:.0f} ms" if size >= _MILLI else "under 1 ms"


def relative(at: Micros, now: Micros) -> str:
    """Write a moment as seen from now."""
    away = at - now
    if abs(away) < _NOW:
        return "now"
    return f"in {span(away)}" if away > 0 else f"{span(away)} ago"


def absolute(at: Micros) -> str:
    """Write a moment in full, in UTC."""
    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"


def iso(at: Micros) -> str:
    """Write a moment for programs."""
    return to_datetime(at).isoformat()


def micros(at: datetime | None) -> Micros | None:
    """Give a moment of the client's as the domain has it."""
    return None if at is None else instant(at, "A time")


def lasting(time: timedelta) -> str:
    """Write how long a time of the client's is."""
    return span(time // timedelta(microseconds=1))


def short(id_: str) -> str:
    """Write the end of an id, which tells jobs apart; their beginnings are the time, and alike."""
    return f"…{id_[-8:]}"


def delays(spec: str, max_attempts: int) -> str:
    """Write after which times a job is tried again."""
    policy = retry.parse(spec, max_attempts)
    waits = [policy.bounds(attempt)[0] for attempt in range(1, max_attempts)]
    shown = [span(wait) if wait else "at once" for wait in waits[:_DELAYS]]
    more = ", …" if len(waits) > _DELAYS else ""
    return "at once" if not any(waits) else f"after {', '.join(shown)}{more}"


def pretty(value: object) -> tuple[str, bool]:
    """Write a payload or a result over several lines; tell whether it was cut short."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return (text, False) if len(text) <= _LARGEST_SHOWN else (text[:_LARGEST_SHOWN], True)
