"""Looking around in a file: listings for people, and the checks that only the engine can make."""

from holdfast.domain.job import JobRecord, State
from holdfast.port.store import Finding, Query
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.guests import Connection
from holdfast.stores.sqlite.sql import SQL

_RARE = 20
"""A state with fewer than one job in this many is listed from its own index instead of by walking the ids."""
_CLAIMABLE = " UNION ALL ".join(f"SELECT seq FROM job WHERE ready = {ready}" for ready in range(4))  # noqa: S608 - constants
_INDEXED = {
    State.CREATED: "seq IN (SELECT seq FROM job WHERE state = 'created')",
    State.QUEUED: f"seq IN ({_CLAIMABLE})",
    State.RETRYING: f"seq IN ({_CLAIMABLE})",
    State.RUNNING: "seq IN (SELECT seq FROM job WHERE state = 'running')",
}


def find(db: Connection, query: Query) -> list[JobRecord]:
    """List jobs by a filter, newest first."""
    clauses, values = ["TRUE"], []
    wanted = {
        "state": query.state and query.state.value,
        "kind": query.kind,
        "queue": query.queue,
        "tenant": query.tenant,
        "failure_code": query.error_code,
        "key": query.key,
        "parent": query.parent,
    }
    for column, value in wanted.items():
        if value is not None:
            clauses.append(f"{column} = ?")
            values.append(value)
    if query.before is not None:
        clauses.append("id < ?")
        values.append(query.before)
    table, order = "job", "id DESC"
    if query.parent is not None:
        order = "+id DESC"
    elif query.state is State.DEAD:  # their index has the order of the list
        table = "job INDEXED BY job_dead"
        clauses.append("state = 'dead'")
    elif query.state in _INDEXED and _is_rare(db, query.state):
        clauses.append(_INDEXED[query.state])
        order = "+id DESC"
    text = f"SELECT {SQL['columns']} FROM {table} WHERE {' AND '.join(clauses)} ORDER BY {order} LIMIT ?"  # noqa: S608 - constants
    return [rows.record(row) for row in db.execute(text, (*values, query.limit))]


def _is_rare(db: Connection, state: State) -> bool:
    few, every = db.execute(
        "SELECT total(jobs) FILTER (WHERE state = ?), total(jobs) FROM standing", (state.value,)
    ).fetchall()[0]
    return bool(few * _RARE < every)


def check(db: Connection) -> list[Finding]:
    """Verify the file's integrity, the counters, the claim order's flags, the keys and the accounts."""
    findings = [
        Finding("S4", None, f"The file is damaged: {problem}.")
        for (problem,) in db.execute("PRAGMA integrity_check")
        if problem != "ok"
    ]
    kept = {(queue, state): jobs for queue, state, jobs in db.execute(SQL["counts"])}
    counted = {(queue, state): jobs for queue, state, jobs in db.execute(SQL["recount"])}
    findings += [
        Finding("S36", None, f"The counter of {state} jobs in {queue!r} says {says}; there are {are}.")
        for queue, state in sorted(kept.keys() | counted.keys())
        if (says := kept.get((queue, state), 0)) != (are := counted.get((queue, state), 0))
    ]
    findings += [
        Finding("S7", None, f"The key {key!r} of tenant {tenant!r} points to a job that is not there.")
        for tenant, key in db.execute(SQL["orphan_keys"])
    ]
    findings += [
        Finding("L3", id_, f"The job is {state} but stands in the wrong place of the claim order.")
        for id_, state, _ in db.execute(SQL["misplaced"])
    ]
    return findings + _check_accounts(db)


def _check_accounts(db: Connection) -> list[Finding]:
    findings = [
        Finding("S28", None, f"The account of tenant {tenant!r} is not the sum of its entries.")
        for (tenant,) in db.execute(SQL["unbalanced"])
    ]
    findings += [
        Finding("S28", None, f"The account of tenant {tenant!r} sets aside {says} credits; its jobs hold {are}.")
        for tenant, says, are in db.execute(SQL["unreserved"], (rows.place_in_flow("reserved"),))
    ]
    return findings
