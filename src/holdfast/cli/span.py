"""Spans of time as people write them: `30d`, `12h`, `90s`."""

import re
from datetime import timedelta

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHAPE = re.compile(r"(\d{1,6})([smhdw])")


def span(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Read a span of time, as the callback of an option."""
    if value is None:
        return None
    shape = _SHAPE.fullmatch(value)
    if shape is None:
        msg = f"{value!r} is not a span of time; write 90s, 30m, 12h, 30d or 8w."
        raise click.BadParameter(msg, ctx, param)
    return timedelta(**{_UNITS[shape[2]]: int(shape[1])})
