"""Reading jobs for people, in a time that does not grow with the store.

A store has an index for a state that is rare; anything else is walked to here, newest first, page by page, and only
for a moment. Who wants to look further back says so with the cursor.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.client.counts import Counts
from holdfast.domain.errors import BadInput
from holdfast.domain.ids import job_id
from holdfast.domain.job import CLAIMABLE, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Query

PAGE = 50
BULK = 500
"""The most jobs that one confirmation is about."""
NEWEST = 1_000
"""How many of the newest jobs are looked at to group them."""
_WALKED = 250
_BUDGET = 0.05
"""Seconds that a walk may take."""
_RARE = 20
_INDEXED = frozenset({State.CREATED, State.QUEUED, State.RUNNING, State.RETRYING, State.DEAD})


class Filter(NamedTuple):
    """What a list of jobs is asked for; the same names as in the address of the page."""

    state: str = ""
    kind: str = ""
    queue: str = ""
    tenant: str = ""
    error_code: str = ""
    key: str = ""
    parent: str = ""

    @property
    def given(self) -> dict[str, str]:
        """The parts that are given."""
        return {name: value for name, value in self._asdict().items() if value}

    def query(self, *, before: str | None = None, limit: int = PAGE) -> Query:
        """Check it and give it as the store takes it."""
        if self.state and self.state not in set(State):
            msg = f"{self.state[:40]!r} is not a state; the states are {', '.join(State)}."
            raise BadInput(msg)
        return Query(
            State(self.state) if self.state else None,
            self.kind or None,
            self.queue or None,
            self.tenant or None,
            self.error_code or None,
            self.key or None,
            job_id(before) if before else None,
            limit,
            job_id(self.parent) if self.parent else None,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A page of jobs, newest first."""

    jobs: list[JobRecord]
    next: str | None
    """The cursor that goes on from here; None at the end."""
    back_to: Micros | None
    """How far the look went, if it was broken off before the page was full."""


def look(app: Holdfast, query: Query) -> Found:
    """Find the jobs of one page."""
    counts = app.counts()
    if query.state is not None and not counts[query.state]:
        return Found([], None, None)
    walk = Query(parent=query.parent, before=query.before, limit=_WALKED)
    if _has_index(counts, query.state):
        walk = walk._replace(state=query.state)
    found: list[JobRecord] = []
    end = time.monotonic() + _BUDGET
    while page := app.store.find(walk):
        found += filter(query.matches, page)
        if len(found) > query.limit:
            return Found(found[: query.limit], found[query.limit - 1].id, None)
        if len(page) < walk.limit:
            break
        walk = walk._replace(before=page[-1].id)
        if time.monotonic() > end:
            return Found(found, page[-1].id, page[-1].created_at)
    return Found(found, None, None)


def _has_index(counts: Counts, state: State | None) -> bool:
    return state in _INDEXED and counts[state] * _RARE < counts.total


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one kind that failed alike."""

    kind: str
    code: str | None
    cause: str | None
    newest: JobRecord
    oldest: JobRecord
    jobs: int


def dead_groups(app: Holdfast, tenant: str | None) -> tuple[list[Group], bool]:
    """Group the newest dead jobs, largest group first; tell whether there are older ones that were not looked at."""
    found = look(app, Query(State.DEAD, tenant=tenant, limit=NEWEST))
    groups: dict[tuple[str, str | None, str | None], list[JobRecord]] = {}
    for job in found.jobs:
        groups.setdefault((job.kind, job.failure_code, job.cause), []).append(job)
    grouped = [Group(*alike, jobs[0], jobs[-1], len(jobs)) for alike, jobs in groups.items()]
    return sorted(grouped, key=lambda group: -group.jobs), found.next is not None


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant's part of the newest jobs."""

    tenant: str
    jobs: int
    running: int
    waiting: int
    dead: int


def tenant_shares(jobs: Sequence[JobRecord], held: Collection[str] = ()) -> list[Share]:
    """Tell how some jobs are spread over tenants, largest part first; before them, all that are held back."""
    by_tenant: dict[str, Counter[State]] = {tenant: Counter() for tenant in held}
    for job in jobs:
        by_tenant.setdefault(job.tenant, Counter())[job.state] += 1
    shares = [
        Share(
            tenant,
            states.total(),
            states[State.RUNNING],
            states[State.CREATED] + states[State.QUEUED] + states[State.RETRYING],
            states[State.DEAD],
        )
        for tenant, states in by_tenant.items()
    ]
    return sorted(shares, key=lambda share: (share.tenant not in held, -share.jobs, share.tenant))


@dataclass(frozen=True, slots=True)
class Oldest:
    """The queue whose next job has been due for longest, and the job, if it was found among the newest."""

    queue: str
    since: Micros
    job: JobRecord | None


def oldest_waiting(app: Holdfast) -> Oldest | None:
    """Find what has waited longest to be claimed."""
    due = app.store.due_since()
    if not due:
        return None
    queue = min(due, key=lambda each: due[each])
    waiting = (job for state in CLAIMABLE for job in look(app, Query(state, queue=queue, limit=_WALKED)).jobs)
    return Oldest(queue, due[queue], next((job for job in waiting if job.available_at == due[queue]), None))


def held(app: Holdfast) -> dict[str, list[JobRecord]]:
    """Give the running jobs by the worker that holds them."""
    by_owner: dict[str, list[JobRecord]] = {}
    for job in look(app, Query(State.RUNNING, limit=NEWEST)).jobs:
        by_owner.setdefault(job.lease_owner or "", []).append(job)
    return by_owner
