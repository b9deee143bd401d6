"""The statements, made ready for one schema."""

from functools import cache
from typing import LiteralString

from holdfast.domain.job import State
from holdfast.stores import statements
from holdfast.stores.postgres.rows import place_of

_RAW = statements.load("holdfast.stores.postgres", "statements.sql")
PLACES = ("created", "waiting", "running", "outcome")
_IDS = "ANY (CAST(%(ids)s AS uuid[]))"
_OF = (
    "{schema}.%s AS place\nCROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job"
)
_UNTOUCHED = "{schema}.job JOIN {schema}.waiting AS untouched ON {untouched}"


def _select(place: str, source: str, condition: str) -> str:
    columns = f"{{{place}_columns}}"
    if source is _UNTOUCHED:
        columns, place = "{untouched_columns}", "untouched"
    return f"SELECT {columns} FROM {source.replace('%s', place)}\nWHERE {condition}"  # noqa: S608 - constants


_READ = "\nUNION ALL\n".join(
    [
        *(
            _select(place, _OF, "place.job_id = ANY (CAST(%(ids)s AS uuid[]))")
            for place in ("created", "running", "outcome")
        ),
        _select("waiting", _OF, "place.job_id = ANY (CAST(%(ids)s AS uuid[])) AND (place.past).version IS NOT NULL"),
        _select("waiting", _UNTOUCHED, "job.id = ANY (CAST(%(ids)s AS uuid[]))"),
    ]
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
def find(schema: str, place: str, standing: tuple[str, ...], asked: tuple[str, ...]) -> LiteralString:
    """Give the statement that lists the jobs of one place, newest first: sorted, and then looked up one by one."""
    sorted_ = (
        f"(SELECT * FROM {{schema}}.{place} AS place WHERE {' AND '.join((*standing, 'TRUE'))} "  # noqa: S608 - constants
        f"ORDER BY job_id DESC{'' if asked else ' LIMIT %(limit)s'} OFFSET 0)"
    )
    text = _select(place, _OF.replace("{schema}.%s", sorted_, 1), " AND ".join((*asked, "TRUE")))
    return _fill(f"{text}\nORDER BY place.job_id DESC LIMIT %(limit)s", schema, "")


def _fill(text: str, schema: str, lanes: str) -> LiteralString:
    untouched = _RAW["waiting_columns"].replace("place.", "untouched.")
    parts = {**_RAW, "read": _READ, "lanes": _RAW.get(lanes, ""), "untouched_columns": untouched}
    columns = (f"{place}_columns" for place in (*PLACES, "untouched"))
    for name in ("lanes", "ranks", "taken", "read", *columns, "untouched", "envelope"):
        text = text.replace(f"{{{name}}}", parts[name])
    return text.replace("{schema}", schema)
