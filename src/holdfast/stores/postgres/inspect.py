"""Looking around: listings for people, and the checks that only the engine can make."""

from collections.abc import Iterator

from holdfast.domain.job import JobRecord
from holdfast.port.store import Finding, Query
from holdfast.stores.postgres import rows, sql
from holdfast.stores.postgres.pool import Connection

_STATE = {
    "created": "'created' = %(state)s",
    "waiting": "coalesce((place.past).state, 'queued') = %(state)s",
    "running": "'running' = %(state)s",
    "outcome": "place.state = %(state)s",
}
_ERROR = {
    "created": "FALSE",
    "waiting": "(place.past).failure_code = %(error_code)s",
    "running": "place.failure_code = %(error_code)s",
    "outcome": "place.failure_code = %(error_code)s",
}
_FILTERS = {
    "kind": "job.kind = %(kind)s",
    "queue": "job.queue = %(queue)s",
    "tenant": "job.tenant = %(tenant)s",
    "key": "job.key = %(key)s",
}

_PAGE = 500
"""Children that are looked up at once."""


def find(db: Connection, schema: str, query: Query) -> list[JobRecord]:
    """List jobs by a filter, newest first: each place gives its newest, and the newest of all are kept.

    All places are asked by one statement, which sees one moment: a job that moves meanwhile would be missed in both its
    places, or found in both.
    """
    if query.parent is not None:
        return _children(db, schema, query)
    wanted = {name: value for name, value in query._asdict().items() if value is not None}
    if query.state is not None:
        wanted["state"] = query.state.value
    asked = tuple(text for name, text in _FILTERS.items() if name in wanted)
    places = sql.PLACES if query.state is None else (rows.place_of(query.state),)
    parts = (sql.find(schema, place, tuple(_standing(query, place)), asked) for place in places)
    statement = "\nUNION ALL\n".join(f"({part})" for part in parts)
    found = map(rows.record, db.execute(statement, wanted))
    return sorted(found, key=lambda job: job.id, reverse=True)[: query.limit]


def _children(db: Connection, schema: str, query: Query) -> list[JobRecord]:
    """List the children of a job: looked up by their ids, and the filter comes after."""
    found: list[JobRecord] = []
    before, page = query.before, max(query.limit, _PAGE)
    while len(found) < query.limit:
        asked = {"parent": query.parent, "before": before, "limit": page}
        ids = [id_ for (id_,) in db.execute(sql.statement(schema, "children"), asked)]
        records = map(rows.record, db.execute(sql.statement(schema, "read"), {"ids": ids}))
        found += sorted((job for job in records if query.matches(job)), key=lambda job: job.id, reverse=True)
        if len(ids) < page:
            break
        before = ids[-1]
    return found[: query.limit]


def _standing(query: Query, place: str) -> Iterator[str]:
    """Give what is asked about where a job stands."""
    if query.before is not None:
        yield "place.job_id < CAST(%(before)s AS uuid)"
    if query.state is not None:
        yield "place.state = 'dead'" if query.state == "dead" else _STATE[place]
    if query.error_code is not None:
        yield _ERROR[place]


def check(db: Connection, schema: str) -> list[Finding]:
    """Verify the counters, the keys, the accounts, and that every job stands in exactly one place."""
    looks = ("counts", "recount", "orphan_keys", "misplaced", "wrong_reserves", "wrong_accounts")
    kept, counted, orphans, misplaced, reserves, unsound = (
        db.execute(sql.statement(schema, name)).fetchall() for name in looks
    )
    says = {(queue, state): jobs for queue, state, jobs in kept}
    are = {(queue, state): jobs for queue, state, jobs in counted}
    findings = [
        Finding("S36", None, f"The counter of {state} jobs in {queue!r} says {told}; there are {true}.")
        for queue, state in sorted(says.keys() | are.keys())
        if (told := says.get((queue, state), 0)) != (true := are.get((queue, state), 0))
    ]
    findings += [
        Finding("S7", None, f"The key {key!r} of tenant {tenant!r} points to a job that is not there.")
        for tenant, key in orphans
    ]
    findings += [
        Finding("L3", id_, f"The job stands in {places}." if places else "The job stands nowhere.")
        for id_, places in misplaced
    ]
    findings += [
        Finding("S28", None, f"The account of tenant {tenant!r} says {told} credits are reserved; its jobs say {true}.")
        for tenant, told, true in reserves
    ]
    findings += [
        Finding("S28", None, f"The account of tenant {tenant!r} is not the sum of its entries.")
        for (tenant,) in unsound
    ]
    return findings
