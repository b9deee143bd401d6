"""Time as the domain sees it: whole microseconds since 1970 in UTC, and durations in the same unit.

Integers compare, sort and store the same way in every engine; `datetime` appears only at the public surface.
"""

from datetime import UTC, datetime, timedelta
from math import isfinite

from holdfast.domain.errors import BadInput

Micros = int

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR
HORIZON: Micros = 100 * 366 * DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def duration(value: float | timedelta, what: str) -> Micros:
    """Turn seconds or a `timedelta` into a duration; `what` names it in the error."""
    if isinstance(value, timedelta):
        micros = value // _TICK
    elif isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        msg = f"{what} must be a number of seconds or a timedelta, not {value!r}."
        raise BadInput(msg)
    else:
        micros = round(value * SECOND)
    if micros < 0:
        msg = f"{what} must not be negative; {_shown(value)} was given."
        raise BadInput(msg)
    if micros > HORIZON:
        msg = f"{what} must be less than a hundred years; {_shown(value)} was given."
        raise BadInput(msg)
    return micros


def time_limit(value: float | timedelta) -> Micros:
    """Turn seconds or a `timedelta` into the most time that a run may take; there is none that takes no time."""
    micros = duration(value, "timeout")
    if not micros:
        msg = f"timeout must be more than 0 seconds, not {value!r}; leave it out to set no limit."
        raise BadInput(msg)
    return micros


def _shown(value: float | timedelta) -> str:
    """Show a number, but not one that may be longer than a line."""
    if isinstance(value, int) and abs(value) > HORIZON:
        return f"a whole number of {value.bit_length()} bits"
    return repr(value)


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float can hold, and yet a number
        return True


def instant(value: datetime, what: str) -> Micros:
    """Turn an aware `datetime` into an instant; `what` names it in the error."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        msg = f"{what} must be a datetime with a time zone, not {value!r}."
        raise BadInput(msg)
    return (value - _EPOCH) // _TICK


def to_datetime(at: Micros) -> datetime:
    """Render an instant as an aware UTC `datetime`."""
    return _EPOCH + timedelta(microseconds=at)


def to_seconds(span: Micros) -> float:
    """Render a duration in seconds."""
    return span / SECOND
