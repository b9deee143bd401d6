"""What is beyond full limits, and where the lanes of those are who are limited."""

from holdfast.domain import limits
from holdfast.domain.excess import Excess, beyond
from holdfast.domain.job import JobRecord
from holdfast.domain.limits import Limit, Plan, Rule, Rules
from holdfast.domain.moments import Micros
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL


def surplus(db: OwnConnection, rules: Rules, of: tuple[Rule, Limit], now: Micros, most: int) -> list[Excess]:
    """List jobs beyond a limit, so many that wait for each subject of it at most."""
    rule, limit = of
    running: dict[str, list[JobRecord]] = {}
    for row in db.execute(SQL["running_jobs"], (rule.queue,)):
        job = rows.record(row)
        name = limits.subject(limit, job.tenant, limits.group_of(job))
        if name is not None:
            running.setdefault(name, []).append(job)
    plan = rules.plan(rule.queue)
    assert plan is not None and limit.concurrency is not None  # noqa: PT018
    gone = []
    for name, jobs in running.items():
        if len(jobs) >= limit.concurrency:
            due = _due(db, plan, (limit, name), now, most)
            waiting = {job.id: job for job in due if not rules.holds(job.tenant, job.kind)}
            gone += beyond(limit, jobs, list(waiting.values()))
    return gone


def _due(db: OwnConnection, plan: Plan, of: tuple[Limit, str], now: Micros, most: int) -> list[JobRecord]:
    """List the due jobs of a subject, the newest among them."""
    limit, name = of
    where = "in_lanes" if plan.shape else "in_queue"
    low, high = span(plan.shape, limit.per, name) if plan.shape else ("", "")
    newest = db.execute(SQL[f"newest_{where}"], (plan.queue, low, high, now, 1 if limit.full == "replace" else 0))
    due = db.execute(SQL[f"due_{where}"], (plan.queue, low, high, now, most + 1))
    return [rows.record(row) for row in (*newest.fetchall(), *due.fetchall())]


def bounds(shape: str) -> tuple[str, str]:
    """Give where the lanes of a shape begin and end."""
    return shape, chr(ord(shape) + 1)


def span(shape: str, per: str, name: str) -> tuple[str, str]:
    """Give where the lanes of a subject begin and end, among lanes of this shape."""
    if per == "queue":
        return bounds(shape)
    lane = f"{shape}{name}"
    if shape == "k" and per == "tenant":
        return f"{lane}\x1f", f"{lane}\x20"
    return lane, limits.behind(lane)
