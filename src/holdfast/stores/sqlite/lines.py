"""What a claim sees of a queue: its lanes, or what of it stands in none.

A queue without lanes has no order by tenant. Whoever claims for one tenant looks through all that are due, best first:
so many from the front, and if that is not enough, so many from where the last such look stopped. So another tenant's
backlog can delay what stands behind it, but no claim keeps others from writing for longer than that takes.
"""

import json
import time
from typing import Any, NamedTuple

from pydantic_core import from_json

from holdfast.domain import limits
from holdfast.domain.gates import Gates, Subject
from holdfast.domain.limits import Plan, Rules
from holdfast.domain.moments import Micros
from holdfast.domain.ring import VISITS, Offer, rank
from holdfast.domain.way import Cursor, stretches
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL

BATCH = 2_000
"""The most jobs that one claim moves into lanes, or out of them."""
DEPTH = 5_000
"""How many jobs a look for those of one tenant goes through, from the front and once more further on."""
Mark = tuple[int, ...]
"""A job's place in the usual order: its priority with the sign turned, its due time and its seq."""
_LANE = -2
"""The place of the lane in what `sweep` tells of a job."""
_BELIEVED = 1.0
"""Seconds for which nothing is expected of a queue in which nothing could go and nothing has changed."""
_LAST = 2**63 - 1
_FRONT: Mark = (-_LAST, 0, 0)


class Shut(NamedTuple):
    """A queue in which nothing could go, when it had changed so often, until a gate opens by itself.

    It is believed for a moment only: a process that has not heard of a rule yet does not say that something changed.
    """

    changes: int
    opens_at: Micros | None
    since: float

    def holds(self, changes: int, now: Micros) -> bool:
        """Tell whether still nothing can go."""
        closed = self.opens_at is None or now < self.opens_at
        return closed and changes == self.changes and time.monotonic() - self.since < _BELIEVED


class Ready(NamedTuple):
    """How a queue stands, once its due jobs are where its rules want them."""

    moved: bool
    """Whether any had to be brought there."""
    cursor: Cursor = Cursor()
    changes: int = -1
    """How often it has changed; less than nothing if that was never counted."""


class Search(NamedTuple):
    """Looks for the jobs of one tenant."""

    tenant: str
    marks: dict[str, Mark]
    """Where the last look stopped, by queue."""

    def stopped(self, queue: str, at: Mark | None) -> None:
        """Go on from here the next time, or from where the front ends."""
        if at is None:
            self.marks.pop(queue, None)
        else:
            self.marks[queue] = at


class Queue:
    """The due jobs of one queue, or those of one tenant in it."""

    def __init__(
        self, db: OwnConnection, plan: Plan, rules: Rules, now: Micros, gates: Gates, *, search: Search | None = None
    ) -> None:
        self._db = db
        self._gates = gates
        self._plan = plan
        self._rules = rules
        self._now = now
        self._aged = None if plan.aging is None else now - plan.aging
        self._aside = 0
        self._search = search

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        """Show lanes; what is found of paused tenants and kinds is put aside, and looked past."""
        while True:
            found = self._found(first, until, many, each)
            held = [row[1] for row in found if row[1] is not None and self._rules.holds(row[5], row[6])]
            if not held or self._aside >= BATCH:
                shown = self._shown(found, held, each)
                if len(shown) > 1 and self._plan.limits:
                    self._read_ahead([lane for lane, _ in shown])
                return shown
            self._db.execute(SQL["put_aside"], (json.dumps(held),))
            self._aside += len(held)

    def _read_ahead(self, lanes: list[str]) -> None:
        """Read what is in use of the limits of these lanes, each limit at once."""
        per = "tenant" if self._plan.shape == "t" else "key"
        running: dict[Subject, int] = {}
        buckets: dict[Subject, Micros | None] = {}
        for queue, limit in self._plan.limits:
            if (queue, limit.per) != (self._plan.queue, per):
                continue
            subjects = [(queue, per, lane[1:]) for lane in lanes]
            if limit.concurrency is not None:
                found = self._db.execute(SQL["running_of_lanes"], (queue, json.dumps(lanes))).get
                running |= zip(subjects, json.loads(found), strict=True)
            else:
                found = self._db.execute(SQL["buckets_of"], (queue, per, json.dumps([lane[1:] for lane in lanes]))).get
                buckets |= zip(subjects, json.loads(found), strict=True)
        self._gates.learn(running, buckets)

    def _found(self, first: str, until: str, many: int, each: int) -> list[list[Any]]:
        """Give rows of lane, seq, priority, available_at, state, tenant and kind; nulls for a lane that has none."""
        if self._search is not None and not self._plan.shape:
            return self._of_tenant(self._search, each)
        values: tuple[Any, ...] = (self._plan.queue, self._now, each)
        kind = "offers"
        if self._plan.shape:
            if not self._db.execute(SQL["any_lane"], (self._plan.queue, first, until)).get:
                return []
            values, kind = (*values, many, first, until), "lanes"
        asked = [("heads" if kind == "lanes" and each == 1 else kind, values)]
        if self._aged is not None:
            asked.append((f"aged_{kind}", (*values, self._aged)))
        return [row for name, values in asked for row in json.loads(self._db.execute(SQL[name], values).get)]

    def _of_tenant(self, search: Search, each: int) -> list[list[Any]]:
        """Look for jobs of one tenant among those of all."""
        if search.tenant in self._rules.tenants:
            return []
        who = (self._plan.queue, self._now, each, search.tenant, json.dumps(sorted(self._rules.kinds)), DEPTH)
        found, end = self._next(who, _FRONT)
        if self._aged is not None:
            found += json.loads(self._db.execute(SQL["aged_offers_of_tenant"], (*who, self._aged)).get)
        if end is not None and len({row[1] for row in found}) < each:
            behind = max(end, search.marks.get(self._plan.queue, end))
            more, end = self._next(who, behind)
            found += more
            before = (-more[0][2], more[0][3] - 1, _LAST) if more else None  # the first of them may not be taken now
            search.stopped(self._plan.queue, before or end)
        return found

    def _next(self, who: tuple[Any, ...], behind: Mark) -> tuple[list[list[Any]], Mark | None]:
        """Look at the jobs behind a mark, so many; give those of the tenant, and the last one if there may be more."""
        rank, *place = behind
        found, end = self._db.execute(SQL["offers_of_tenant"], (*who, -rank, *place)).fetchone()
        return json.loads(found), None if end is None else tuple(json.loads(end))

    def _shown(self, found: list[list[Any]], held: list[int], each: int) -> list[tuple[str, list[Offer]]]:
        aged = self._aged
        shown: dict[str, dict[int, Offer]] = {} if self._plan.shape else {"": {}}
        for lane, seq, priority, available_at, state, _, _ in found:
            offers = shown.setdefault(lane, {})
            if seq is None or (held and seq in held):
                continue
            if aged is None:
                offers[seq] = Offer((1, -priority, available_at, seq), (seq, state))
            else:
                offers[seq] = Offer(rank((-priority, available_at, seq), aged), (seq, state))
        return [(lane, sorted(offers.values())[:each]) for lane, offers in shown.items()]


class Stands(Queue):
    """The lanes of a queue of which nothing is paused and nothing ages, if no other queue is looked at: where a job
    stands is all that decides. So what is offered is not ranked, and is all that `claimed` will tell of the job: most
    of what is looked at is claimed, and need not be read again.
    """

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        """Show lanes."""
        values = (self._plan.queue, self._now, each, many, first, until)
        found: dict[str, list[Offer]] = from_json(self._db.execute(SQL["stands"], values).get)
        if len(found) > 1 and self._plan.limits:
            self._read_ahead(list(found))
        return list(found.items())


def sweep(
    db: OwnConnection, plan: Plan, cursor: Cursor, most: int, now: Micros
) -> tuple[list[list[Any]], Cursor] | None:
    """Let jobs go as `Stands` tells of them, and give where that stopped: what a `Ring` comes to if one round is
    enough, all lanes have the same weight and no gate is in the way. None if it is not enough.

    It is found by the statement that reads the jobs, without a look at each lane.
    """
    gone: list[list[Any]] = []
    seen = 0
    for begin, until, share, used in stretches(plan, cursor, most):
        first, skipped, more = begin, used, True
        while more and seen < VISITS:
            many = min(-(-(most - len(gone) + skipped) // share), VISITS - seen)
            text, lanes, last = db.execute(SQL["sweep"], (plan.queue, now, share, many, first, until)).fetchone()
            found: list[list[Any]] = from_json(text)
            if skipped:
                del found[share - used : sum(job[_LANE] == begin for job in found)]
            gone += found
            if len(gone) >= most:
                return gone[:most], _stopped(gone[:most], begin, share, used)
            first, skipped, more, seen = limits.behind(last or ""), 0, lanes == many, seen + lanes
    return None


def _stopped(gone: list[list[Any]], begin: str, share: int, used: int) -> Cursor:
    """Say where a sweep stopped that began in the middle of the visit of a lane."""
    lane = gone[-1][_LANE]
    own = next((place for place, job in enumerate(reversed(gone)) if job[_LANE] != lane), len(gone))
    return Cursor(lane, own + (used if lane == begin else 0), share)
