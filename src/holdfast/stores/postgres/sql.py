"""The statements, made ready for one schema."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, LiteralString

import psycopg

from holdfast.domain.job import State
from holdfast.stores import statements
from holdfast.stores.postgres.pool import Connection
from holdfast.stores.postgres.rows import place_of

_FILES = ("statements.sql", "moves.sql", "books.sql", "adoption.sql", "pages.sql", "turns.sql", "rounds.sql")
_RAW = {name: text for file in _FILES for name, text in statements.load("holdfast.stores.postgres", file).items()}
PLACES = ("created", "waiting", "running", "outcome")
_IDS = "ANY (CAST(%(ids)s AS uuid[]))"
_OF = (
    "{schema}.%s AS place\nCROSS JOIN LATERAL (SELECT * FROM {schema}.job WHERE job.id = place.job_id OFFSET 0) AS job"
)
_NAMED = re.compile(r"%\((\w+)\)s")
_UNTOUCHED = "{schema}.job JOIN {schema}.waiting AS untouched ON {untouched}"
_ALONE = {"ends": "", "ended": "TRUE", "unwritten": "NULL", "beside": "", "besides": ""}
_ROUND = {
    **_ALONE,
    "unwritten": "ending.written",
    "beside": "(SELECT CAST(NULL AS text[]) AS written) AS ending LEFT JOIN (",
    "besides": ") ON TRUE",
}
"""In one that goes round, because where the turn stood is told also if nothing is claimed."""
_ENDING = {
    "ends": "{endings},\n",
    "ended": _RAW["ended"],
    "unwritten": "ending.written",
    "beside": _RAW["beside"],
    "besides": ") ON TRUE",
}
"""What stands in a statement that claims, and in one that completes as well."""
_PLAIN = ("claim", "claim_lone", "claim_ready")
"""Claims in which every job waits under its queue's own name."""
_AT_ONCE = {"now": "{schema}.micros()", "due": "{schema}.micros()", "expires": "NULL"}
_ONLY = ("alone", "alone_in_queue")
"""The parts of a statement that claims from what may be the only lane."""


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
def statement(
    schema: str,
    name: str,
    part: str = "",
    *,
    counted: bool = False,
    alone: bool = False,
    within: bool = False,
    draws: bool = False,
    ends: str | None = None,
    careful: bool = True,
    gated: bool = False,
    at_once: bool = False,
) -> LiteralString:
    """Give a named statement; `part` says where one that reads lanes finds them, or what another does besides. One that
    moves jobs has a block of its own for where they go. One that claims may have the jobs `counted`; `alone` says that
    they are of one queue, `within` that none is claimed unless limits are far from full, and `draws` that a token is
    taken for each. It may complete others first: `ends` is empty then, or names the block of what is told of them. One
    that is not `careful` tries only what is certainly in nobody's hands. One that is `gated` takes nothing if too many
    are under way, and tells so. One that stores a job may do so for one that is due `at_once`, by the server's clock.
    """
    text = _RAW[name].replace("{moved}", _RAW["moved"]).replace("{path}", _RAW.get(f"{name}_path", ""))
    if "{taken}" in text:
        lane = "NULL" if not counted else _RAW["unnamed_lane" if within else "counted_lane"]
        text = text.replace("{taken}", _RAW["taken"]).replace("{lane}", lane)
        text = text.replace("{picked}", _RAW["picked_ready"] if name == "claim_ready" else "SELECT place FROM picked")
        home = "taken.queue" if name in _PLAIN else _RAW["one_home" if alone else "home"]
        text = text.replace("{home}", home)
        ending = _ENDING if ends is not None else _ROUND if name == "claim_round" or gated else _ALONE
        told = _RAW["stood"] if name == "claim_round" else _RAW["empty"] if ends is not None and part in _ONLY else ""
        if gated:
            ended = f"{_RAW['admitted']} AND {ending['ended']}"
            ending = {**ending, "ends": _RAW["gate"] + ending["ends"], "ended": ended}
            told = _RAW["turned_away"].replace("{empty}", told.removesuffix(",") or "0")
        bounds = _bounds(name, within=within, draws=draws) | _tried(name, careful=careful)
        for place, block in (bounds | ending | {"told": told}).items():
            text = text.replace(f"{{{place}}}", block)
    for place in ("expires", "due", "now"):
        text = text.replace(f"{{{place}}}", _AT_ONCE[place] if at_once else _RAW[f"asked_{place}"])
    text = text.replace("{endings}", _RAW["endings"]).replace("{written}", _RAW["written"])
    return _fill(text.replace("{events}", _RAW[ends] if ends else ""), schema, part)


def _bounds(name: str, *, within: bool, draws: bool) -> dict[str, str]:
    """Give what stands in a statement that claims for what keeps it within limits."""
    if not within or name == "claim_round":
        return {"within": "", "allowed": ""}
    if not draws:
        return {"within": f"{_RAW['within']}\n", "allowed": _RAW["allowed"]}
    return {"within": f"{_RAW['within']}\n{_RAW['drawn']}\n", "allowed": _RAW["allowed_by_drawn"]}


def _tried(name: str, *, careful: bool) -> dict[str, str]:
    """Give what stands in a statement that claims for which rows it tries."""
    lone = name == "claim_lone"
    if not careful:
        free = _RAW["free"].replace("{free}", "(SELECT free FROM first)" if lone else "lane.free")
        return {"first": _RAW["claim_first"], "open": "open", "seen": free, "tried": free, "edge": ""}
    edges = (
        ("(SELECT available_at FROM edge)", "(SELECT job_id FROM edge)")
        if lone
        else ("edge.available_at", "edge.job_id")
    )
    tried = _RAW["tried"].replace("{edge_at}", edges[0]).replace("{edge_id}", edges[1])
    return {"first": "", "open": "lane", "seen": "TRUE", "tried": tried, "edge": _RAW.get(f"{name}_edge", "")}


@cache
def write(schema: str, before: State, after: State, records: tuple[str, ...]) -> LiteralString:
    """Give the one statement that takes a job from where it stands, puts it where it belongs, and records both.

    A row of `waiting` is never updated (see `taken`), so a job that stays there leaves it as well and comes back.
    """
    source, target = place_of(before), place_of(after)
    within = source == target == "running"
    parts = ["write_within_running"] if within else [f"write_from_{source}", f"write_to_{target}"]
    if before is not after:
        parts.append("write_tally")
    texts = [_RAW[part] for part in (*parts, *(f"write_{record}" for record in records))]
    return _fill("WITH " + ",\n".join(texts) + "\nSELECT count(*) FROM gone", schema, "")


@cache
def find(schema: str, place: str, standing: tuple[str, ...], asked: tuple[str, ...]) -> LiteralString:
    """Give the statement that lists the jobs of one place, newest first: sorted, and then looked up one by one."""
    sorted_ = (
        f"(SELECT * FROM {{schema}}.{place} AS place WHERE {' AND '.join((*standing, 'TRUE'))} "  # noqa: S608 - constants
        f"ORDER BY job_id DESC{'' if asked else ' LIMIT %(limit)s'} OFFSET 0)"
    )
    text = _select(place, _OF.replace("{schema}.%s", sorted_, 1), " AND ".join((*asked, "TRUE")))
    return _fill(f"{text}\nORDER BY place.job_id DESC LIMIT %(limit)s", schema, "")


def _fill(text: str, schema: str, part: str) -> LiteralString:
    untouched = _RAW["waiting_columns"].replace("place.", "untouched.")
    chosen = _RAW[part] if part else ""
    parts = {**_RAW, "read": _READ, "lanes": chosen, "more": chosen, "untouched_columns": untouched}
    columns = (f"{place}_columns" for place in (*PLACES, "untouched"))
    shared = ("named_lanes", "ranks", "ring", "held", "aside", "turned")
    for name in ("lanes", "more", *shared, "read", *columns, "untouched", "envelope"):
        text = text.replace(f"{{{name}}}", parts[name])
    return text.replace("{schema}", schema)


def ask(db: Connection, text: LiteralString, values: Mapping[str, Any]) -> list[Any]:
    """Run a statement that is too long for psycopg to remember how its parameters are numbered: we do."""
    return sent(db, text, values).fetchall()


def sent(db: Connection, text: LiteralString, values: Mapping[str, Any]) -> psycopg.RawCursor[Any]:
    """Send such a statement."""
    numbered, names = _numbered(text)
    return psycopg.RawCursor(db).execute(numbered, [values[name] for name in names])


@cache
def _numbered(text: LiteralString) -> tuple[LiteralString, list[str]]:
    names = list(dict.fromkeys(_NAMED.findall(text)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _NAMED.sub(lambda found: numbers[found[1]], text), names
