"""The statements, made ready for one schema."""

from functools import cache
from typing import LiteralString

from holdfast.domain.job import State
from holdfast.stores import statements
from holdfast.stores.postgres.rows import place_of

_RAW = statements.load("holdfast.stores.postgres", "statements.sql")
_PLACES = ("created", "waiting", "running", "outcome")
_READ = "\nUNION ALL\n".join(
    f"SELECT {{{place}_columns}} FROM {{schema}}.{place} AS place JOIN {{schema}}.job ON job.id = place.job_id\n"  # noqa: S608 - constants
    "WHERE place.job_id = ANY (CAST(%(ids)s AS uuid[]))"
    for place in _PLACES
)


@cache
def statement(schema: str, name: str, lanes: str = "") -> LiteralString:
    """Give a named statement; `lanes` says where one that reads lanes finds them."""
    return _fill(_RAW[name], schema, lanes)


@cache
def write(schema: str, before: State, after: State, *, attempt: bool, step: bool) -> LiteralString:
    """Give the one statement that takes a job from where it stands, puts it where it belongs, and records both."""
    source, target = place_of(before), place_of(after)
    within = source == target
    parts = [_RAW["write_within_running" if within else f"write_from_{source}"]]
    if not within:
        parts += [_RAW[f"write_to_{target}"], _RAW["write_tally"]]
    if attempt:
        parts.append(_RAW["write_attempt"])
    if step:
        parts.append(_RAW["write_step"])
    return _fill("WITH " + ",\n".join(parts) + "\nSELECT count(*) FROM gone", schema, "")


@cache
def find(schema: str, place: str, filters: tuple[str, ...]) -> LiteralString:
    """Give the statement that lists the jobs of one place, newest first."""
    text = (
        f"SELECT {{{place}_columns}} FROM {{schema}}.{place} AS place JOIN {{schema}}.job ON job.id = place.job_id\n"  # noqa: S608 - constants
        f"WHERE {' AND '.join((*filters, 'TRUE'))} ORDER BY place.job_id DESC LIMIT %(limit)s"
    )
    return _fill(text, schema, "")


def _fill(text: str, schema: str, lanes: str) -> LiteralString:
    parts = {**_RAW, "read": _READ, "lanes": _RAW.get(lanes, "")}
    for _ in range(4):
        for name in ("lanes", "ranks", "taken", "read", *(f"{place}_columns" for place in _PLACES), "envelope"):
            text = text.replace(f"{{{name}}}", parts[name])
    return text.replace("{schema}", schema)
