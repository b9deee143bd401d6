"""One look at queues by their rules, in one transaction: jobs take their places in lanes, and rings are made of these.

A claim locks the turns of its queues first, so that everything it then reads is as the claim before it left it, and the
time it goes by is later. Whoever only wants to know how things stand locks nothing.

A queue without lanes has no order by tenant. Whoever claims for one tenant looks through all that are due: so many jobs
of each priority from the front, and if that is not enough, so many from where the last such look stopped.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.domain import limits
from holdfast.domain.gates import Gates, Subject, far, spare
from holdfast.domain.limits import ALL, Limit, Plan, Rules
from holdfast.domain.moments import Micros
from holdfast.domain.ring import LATER, Offer, Ring, rank
from holdfast.domain.way import Cursor
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.ahead import Ahead, Hint, Reach, offers
from holdfast.stores.postgres.marks import START, Lane, Mark
from holdfast.stores.postgres.paths import ASIDE, BREAK, END, GROUP, Search
from holdfast.stores.postgres.pool import Connection

BATCH = 2_000
"""The most jobs that one look moves into the lanes of a queue, out of them, or aside."""
DEPTH = 5_000
"""How many jobs of a priority a look for those of one tenant goes through, from the front and once more further on."""
_FRONT = 500
"""How many jobs of a lane are looked at when some of them are to be put aside."""
_LAST = "\U0010ffff"
_UNNAMED = f"{BREAK}\x01{BREAK}"
"""How ends what jobs are counted by of which only the queue was asked."""
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
Glimpse = tuple[Cursor, dict[str, str]]
"""Where a look stopped, and which lanes of tenants it came to."""
_Row = Sequence[Any]
"""A path, and of a job: where it lies, its id, rank and due time; and its tenant and kind, if these may be paused."""


class Look:
    """What is seen of some queues, or of one tenant in them."""

    def __init__(
        self, db: Connection, schema: str, rules: Rules, given: Micros | None, search: Search | None = None
    ) -> None:
        self.rules = rules
        self.begun = time.monotonic()
        self._search = search
        self.now: Micros = given or 0
        self.tidied: set[str] = set()
        """Queues that were to be tidied, and are tidy now."""
        self.paused: set[str] = set()
        """Those of the queues with turns that are paused."""
        self.uncounted: int | None = None
        """How many jobs run that were not counted before; None if that was not asked."""
        self._db = db
        self._schema = schema
        self._given = given
        self._room: Mapping[str, int] = {}
        self._untidy = False
        self._plans: dict[str, Plan] = {}
        self._cursors: dict[str, Cursor] = {}
        self._running: Counter[Subject] = Counter()
        self._levels: dict[Subject, Micros | None] = {}
        self._more: set[str] = set()
        """Queues in which more stands than could be looked at."""
        self._aside = 0
        self.strays: set[str] = set()
        """Queues with lanes in which something due stood in none."""
        self._ahead: dict[str, Ahead] = {}
        self.roomy: set[str] = set()
        """Queues of which so few jobs run that no limit of jobs at once can be reached."""
        self._fronts: dict[str, list[_Row]] | None = None
        self._asked: list[tuple[str, Limit]] = []
        self.laned: set[str] = set()
        """Queues whose jobs stand in lanes from now on, because a limit has come near."""

    def begin(
        self,
        room: Mapping[str, int],
        *,
        locks: bool,
        fresh: Collection[str] = (),
        untidy: Collection[str] = (),
        strays: Collection[str] = (),
        laned: Collection[str] = (),
        hints: Mapping[str, Hint] | None = None,
        recount: bool = True,
    ) -> None:
        """Bring the due jobs of queues where the rules want them, and count what is in use: one trip.

        `fresh` are queues that were never looked at by rules; `untidy` those in which something may stand where it
        should not. If `hints` are given, lanes are read as well, before they are asked for, and jobs are brought into
        them first only where there were `strays`. Where limits may be far and no queue is known to be `laned`, jobs
        stay in one line unless a limit turns out to be near. `recount` looks for running jobs that are not counted yet.
        """
        self._room = room
        self._untidy = bool(room.keys() & set(untidy))
        self._plans = {queue: self.rules.plan(queue) or Plan(queue) for queue in room}
        turning = {queue for queue, plan in self._plans.items() if plan.limits or plan.shape or queue in untidy}
        asked = self._asked = [(of, limit) for plan in self._plans.values() for of, limit in plan.limits]
        lined = {queue for queue, plan in self._plans.items() if plan.roomy and queue not in laned and not self._search}
        turning |= {ALL} & {of for of, _ in asked}
        own = {self.turn(queue) for queue, plan in self._plans.items() if plan.shape} - room.keys()
        turning |= own
        if first := sorted({*fresh, *own} & (turning | room.keys() if self.holds else turning)):
            self.ask("add_turns", {"queues": first})
        if locks and len(turning) == 1:
            turns = self.ask("lock_turn", {"queue": next(iter(turning))})
        else:
            turns = self.ask("lock_turns" if locks else "turns", {"queues": sorted(turning)})
        out = {queue: self._step_out(plan) for queue, plan in self._plans.items() if queue in untidy}
        ahead = {queue for queue, plan in self._plans.items() if hints is not None and self._readable(plan)} - lined
        first_up = {queue for queue, plan in self._plans.items() if plan.shape} - (ahead - {*untidy, *strays}) - lined
        up = {queue: self._line_up(self._plans[queue]) for queue in first_up}
        counted = {of for of, limit in asked if limit.concurrency is not None}
        levels = {(of, limit.per, "") for of, limit in asked if limit.per == "queue" and limit.rate}
        use = self._ask_use(levels, counted) if asked or not (up or ahead) else None
        read = {queue: Reach.of(self._plans[queue], room[queue], (hints or {}).get(queue, Hint())) for queue in ahead}
        shown = {queue: self._read_ahead(self._plans[queue], read[queue]) for queue in ahead}
        uncounted = self._ask_uncounted() if counted and recount else None
        used = self.ask("laned", {"queues": sorted(lined)}) if lined else None
        for queue, *cursor, paused in turns.fetchall():
            self._cursors[queue] = Cursor(*cursor)
            self.paused |= {queue} if paused else set()
        for moved in (*out.items(), *up.items()):
            self._brought(*moved)
        self.tidied = out.keys() - self._more
        running = Counter(self._learn(levels, use)) if use is not None else Counter[str]()
        for queue, found in shown.items():
            self._shown(self._plans[queue], read[queue], found.fetchall())
        if uncounted is not None:
            new = uncounted.fetchall()
            self.uncounted = len(new)
            running.update(self._count_in(new, locks=locks))
        unnamed = [lane for lane in running if lane.endswith(_UNNAMED)]
        most = running.total() + sum(room.values())
        if unnamed and any(limit.per != "queue" and most > (limit.concurrency or most) for _, limit in asked):
            found = self.ask("unnamed", {"lanes": unnamed, "group": GROUP}).fetchall()
            running = Counter({lane: jobs for lane, jobs in running.items() if lane not in unnamed})
            running.update(self._count_in(found, locks=locks))
        self._add_up(running, {(of, limit.per) for of, limit in asked})
        jobs = self._reckon(running, locks=locks)
        if used is not None:
            self._line(lined, jobs, {queue for (queue,) in used.fetchall()})

    def _line(self, queues: Collection[str], running: Mapping[str, int], laned: Collection[str]) -> None:
        """Leave jobs in one line where no limit of a tenant or key is near, and bring them into lanes elsewhere."""
        near = {
            queue
            for queue in queues
            if queue in laned or not far(self._plans[queue], running[queue], self._room[queue])
        }
        for queue, moved in [(queue, self._line_up(self._plans[queue])) for queue in sorted(near)]:
            self._brought(queue, moved)
        self._plans |= {queue: self._plans[queue].in_line() for queue in set(queues) - near}
        self.laned |= near

    def _brought(self, queue: str, moved: Any) -> None:
        ((jobs, self.now),) = moved.fetchall()
        self.strays |= {queue} if jobs else set()
        if jobs >= BATCH:
            self._more.add(queue)

    def _readable(self, plan: Plan) -> bool:
        """Tell whether the lanes of a queue can be read before they are asked for."""
        return bool(plan.shape) and plan.aging is None and not (plan.nested or self.holds or self._search)

    def _reckon(self, running: Mapping[str, int], *, locks: bool) -> dict[str, int]:
        """Keep how many jobs of queues run at the most, for claims that do not count; and tell where so few do that no
        gate can close, whatever is taken. Give how many run.
        """
        jobs = {
            queue: sum(many for lane, many in running.items() if lane.startswith(f"{queue}{BREAK}"))
            for queue, plan in self._plans.items()
            if any(of == queue and limit.concurrency is not None for of, limit in plan.limits)
        }
        for queue, many in jobs.items():
            found = spare(self._plans[queue], self._room[queue])
            if found is not None and (found.running or 0) >= many:
                self.roomy.add(queue)
        if jobs and locks:
            most = [many + self._room[queue] for queue, many in jobs.items()]
            self.ask("reckoned", {"queues": list(jobs), "jobs": most})
        return jobs

    def _read_ahead(self, plan: Plan, read: Reach) -> Any:
        low, high = (f"{plan.queue}{BREAK}{end}" for end in plan.span())
        values = {"now": self._given, "queue": plan.queue, "low": low, "high": high, **read._asdict()}
        return self.ask("round", values, "" if self._lone and not plan.ordered else "orders_too")

    def _shown(self, plan: Plan, read: Reach, found: Sequence[_Row]) -> None:
        """Keep the lanes that were read, unless jobs have to be brought into them first."""
        self.now, stray = found[0][:2]
        if stray:
            self._brought(plan.queue, self._line_up(plan))
            return
        begin = len(plan.queue) + 1
        shown = {row[2][begin:]: offers(row[3], row[4], row[5:]) for row in found if row[2] is not None}
        self._ahead[plan.queue] = Ahead(plan.span(), self._cursors.get(plan.queue, Cursor()), read, shown)

    @property
    def _lone(self) -> bool:
        """Whether nothing is compared with jobs of other queues."""
        return len(self._room) == 1

    def gates(self) -> Gates:
        """Give the gates that jobs of these queues must pass."""
        return Gates(self.now, self._running.__getitem__, self._level)

    def ring(self, queue: str, gates: Gates, lanes: int = 0, places: dict[str, str] | None = None) -> Ring:
        """Make ready to go round a queue."""
        plan, cursor = self._plans[queue], self._cursors.get(self.turn(queue), Cursor())
        most, tenant = self._room[queue], None if self._search is None else self._search.tenant
        lanes = lanes if tenant is None else 1 if plan.shape == "t" else 0
        if queue in self.roomy and all(limit.rate is None for _, limit in plan.limits):
            plan = plan._replace(limits=())
        line = _Line(self, plan, gates)
        return Ring(plan, line, gates, self.now, cursor=cursor, most=most, lanes=lanes, tenant=tenant, places=places)

    def turn(self, queue: str) -> str:
        """Name the turn of a queue, or a tenant's own in it."""
        return queue if self._search is None else f"{queue}{BREAK}{self._search.tenant}"

    def simple(self) -> bool:
        """Tell whether nothing but limits of whole queues stands between jobs and their usual order."""
        if (
            self._search is not None
            or self.holds
            or self._untidy
            or any(plan.shape or plan.aging for plan in self._plans.values())
        ):
            return False
        return len(self._plans) == 1 or not any(of == ALL for plan in self._plans.values() for of, _ in plan.limits)

    def plan(self, queue: str) -> Plan:
        """Give what holds for a queue, as far as it can be felt now."""
        return self._plans.get(queue) or Plan(queue)

    @property
    def counts(self) -> bool:
        """Whether what is taken is counted."""
        return any(limit.concurrency is not None for _, limit in self._asked)

    @property
    def holds(self) -> bool:
        """Whether any tenant or kind is held back."""
        return bool(self.rules.tenants or self.rules.kinds)

    def loose(self, more: int) -> set[str]:
        """Name the queues (or all, `*`) whose limits of jobs at once would not be full if so many more ran."""
        asked = [(of, limit) for of, limit in self._asked if limit.concurrency]
        tight = {
            of
            for of, limit in asked
            for (queue, per, _), jobs in (*self._running.items(), ((of, limit.per, ""), 0))
            if (queue, per) == (of, limit.per) and jobs + more >= (limit.concurrency or 0)
        }
        return {of for of, _ in asked} - tight

    def full(self, queue: str, limit: Limit) -> list[str]:
        """Name the subjects of which as many run as may."""
        of, most = (queue, limit.per), limit.concurrency or 0
        return [name for (*whose, name), jobs in self._running.items() if tuple(whose) == of and jobs >= most]

    def whole(self, queue: str) -> bool:
        """Tell whether all of a queue that can go was looked at."""
        return queue not in self._more

    def next_at(self, queue: str, gates: Gates, glimpsed: dict[str, Glimpse]) -> Micros | None:
        """Give the instant when a job that is due can be claimed. A look that does not come round for closed lanes is
        gone on with by the next one, by what was `glimpsed`: the turn does not move until somebody is called.
        """
        turn = self.turn(queue)
        self._cursors[turn], places = glimpsed.pop(queue, (self._cursors.get(turn, Cursor()), {}))
        ring = self.ring(queue, gates, places=places)
        at = ring.next_at()
        if not ring.shut:
            glimpsed[queue] = ring.begun if at == self.now else ring.cursor, places
        later = self.now + LATER
        return at if self.whole(queue) else later if at is None else min(at, later)

    def ask(self, name: str, values: Mapping[str, Any] | None = None, part: str = "") -> Any:
        """Send a statement."""
        return self._db.execute(sql.statement(self._schema, name, part), values)

    def take(self, name: str, values: Mapping[str, Any], part: str = "", *, counted: bool | None = None) -> Any:
        """Send a statement that claims; what it takes is counted, if anything of these queues is, or as is said."""
        counted = self.counts if counted is None else counted
        text = sql.statement(self._schema, name, part, counted=counted, alone=self._lone)
        return sql.sent(self._db, text, {**values, "home": next(iter(self._room), "")})

    def held(self) -> dict[str, list[str]]:
        """Name the tenants and kinds that are held back, as parameters."""
        return {"tenants": list(self.rules.tenants), "kinds": list(self.rules.kinds)}

    def draw(self, gates: Gates) -> None:
        """Record what was taken from buckets."""
        if gates.drawn:
            self.ask("draw", {**_subjects(gates.drawn), "levels": list(gates.drawn.values())})

    def _step_out(self, plan: Plan) -> Any:
        begin, aside = f"{plan.queue}{BREAK}", f"{plan.queue}{BREAK}{ASIDE}"
        wrong = [(begin, aside)]
        if plan.shape:
            wrong = [(begin, f"{begin}{plan.shape}"), (f"{begin}{chr(ord(plan.shape) + 1)}", aside)]
        bounds = {"lows": [low for low, _ in wrong], "highs": [high for _, high in wrong]}
        ends = {"aside": aside, "end": f"{plan.queue}{END}", "limit": BATCH, "now": self._given}
        return self.ask("step_out", {**bounds, **ends, **self.held()})

    def _line_up(self, plan: Plan) -> Any:
        values = {"queues": [plan.queue], "most": [BATCH], "limit": BATCH, "now": self._given}
        return self.ask("line_up", {**values, **self.held(), "shape": plan.shape, "group": GROUP}, "named_lanes")

    def _ask_use(self, levels: Collection[Subject], counted: Collection[str]) -> Any:
        bounds = [("", _LAST)] if ALL in counted else [(f"{of}{BREAK}", f"{of}{END}") for of in counted]
        values = {"lows": [low for low, _ in bounds], "highs": [high for _, high in bounds], "now": self._given}
        return self.ask("in_use", {**values, **_subjects(levels)})

    def _ask_uncounted(self) -> Any:
        queues = [queue for queue in self.rules.rules if (plan := self.rules.plan(queue)) is not None and plan.counts]
        return self.ask("uncounted", {"queues": queues, "everywhere": self.rules.everywhere, "group": GROUP})

    def _learn(self, levels: Collection[Subject], use: Any) -> dict[str, int]:
        """Learn the time and how full buckets are; give how many run, by what they are counted by."""
        ((self.now, found, counted),) = use.fetchall()
        self._levels.update(dict.fromkeys(levels))
        self._levels.update({(queue, per, name): at for queue, per, name, at in found or ()})
        return counted or {}

    def _count_in(self, new: Iterable[tuple[str, str]], *, locks: bool) -> Iterable[str]:
        """See that running jobs are counted from now on; give what they are counted by."""
        lanes = dict(new)
        if lanes and locks:
            self.ask("count_in", {"lanes": json.dumps(lanes), "ids": list(lanes)})
        return lanes.values()

    def _add_up(self, running: Mapping[str, int], per: Iterable[tuple[str, str]]) -> None:
        """Add up by subject what runs."""
        kinds = [(of, by, Limit(by)) for of, by in per]
        for lane, jobs in running.items():
            queue, tenant, group = lane.split(BREAK)
            for of, by, limit in kinds:
                name = limits.subject(limit, tenant, group or None)
                if of in (ALL, queue) and name is not None:
                    self._running[of, by, name] += jobs

    def _level(self, subject: Subject) -> Micros | None:
        if subject not in self._levels:
            self._fill_levels({subject})
        return self._levels[subject]

    def _fill_levels(self, subjects: Collection[Subject]) -> None:
        now = self.now
        self._learn(subjects, self._ask_use(subjects, ()))
        self.now = now

    def lanes(self, plan: Plan, first: str, until: str, many: int, each: int) -> list[_Row]:
        """Show lanes, with the buckets of those whose lanes they are."""
        begin = f"{plan.queue}{BREAK}"
        values = {"first": f"{begin}{first}", "until": f"{begin}{until}", "many": many, "each": each, "now": self.now}
        name = "lanes_of" if plan.aging is None else "aging_lanes_of"
        found = self._free(lambda: self.ask(name, values, self._parties).fetchall())
        self.know_levels(plan, {row[0][len(begin) :] for row in found})
        return [(row[0][len(begin) :], *row[1:]) for row in found]

    def ahead(self, plan: Plan) -> Ahead | None:
        """Give the lanes that were read before they were asked for."""
        return self._ahead.get(plan.queue)

    def know_levels(self, plan: Plan, lanes: Collection[str]) -> None:
        """Ask for the buckets of those whose lanes these are."""
        rates = [(of, limit) for of, limit in plan.limits if limit.rate is not None]
        who = {limits.split(lane) for lane in lanes} if rates else ()
        asked = {(of, limit.per, limits.subject(limit, *one)) for of, limit in rates for one in who}
        subjects = {(of, per, subject) for of, per, subject in asked if subject is not None}
        if subjects := subjects - self._levels.keys():
            self._fill_levels(subjects)

    def front(self, queue: str) -> list[_Row]:
        """Show the best jobs of a queue without lanes; those of all such queues are asked for at once."""
        if self._fronts is None:
            wanted = {name: self._room[name] for name, plan in self._plans.items() if not plan.shape}
            values = {"queues": list(wanted), "most": list(wanted.values()), "now": self.now}
            if self._search is not None:
                found = self._of_tenant(self._search, values)
            else:
                found = self._free(lambda: self.ask("offers", values, self._parties).fetchall())
            self._fronts = {name: [] for name in wanted}
            for row in found:
                self._fronts[row[0]].append(row)
        return self._fronts[queue]

    def _of_tenant(self, search: Search, values: Mapping[str, Any]) -> list[_Row]:
        """Look for jobs of one tenant among those of all."""
        values = {**values, **self.held(), "tenant": search.tenant, "depth": DEPTH}
        found, ends = self._next(values, "named_lanes")
        got = Counter(row[0] for row in found)
        room = dict(zip(values["queues"], values["most"], strict=True))
        behind = {
            lane: max(end, search.marks.get(lane, START))
            for lane, end in ends.items()
            if got[lane.queue] < room[lane.queue]
        }
        if not behind:
            return found
        marked = {
            "queues": [lane.queue for lane in behind],
            "most": [room[lane.queue] for lane in behind],
            "ranks": [lane.rank for lane in behind],
            "mark_ats": [mark.at for mark in behind.values()],
            "mark_ids": [mark.id for mark in behind.values()],
        }
        more, ends = self._next({**values, **marked}, "marked_lanes")
        before = {Lane(row[0], row[3]): Mark(row[4] - 1, _LAST_ID) for row in sorted(more, reverse=True, key=_due)}
        for lane in behind:
            search.stopped(lane, before.get(lane) or ends.get(lane))  # the first of them may not be taken now
        return found + more

    def _next(self, values: Mapping[str, Any], where: str) -> tuple[list[_Row], dict[Lane, Mark]]:
        """Look at the next jobs of lanes; give those of the tenant, and the last of each lane that may have more."""
        rows = self.ask("offers_of_tenant", values, where).fetchall()
        return [row for row in rows if row[1]], {
            Lane(row[0], row[3]): Mark(row[4], row[2]) for row in rows if not row[1]
        }

    @property
    def _parties(self) -> str:
        return "parties" if self.holds else ""

    def _free(self, look: Callable[[], list[_Row]]) -> list[_Row]:
        """Look, put aside what is found of paused tenants and kinds, and look past it; so far, and then leave it."""
        while True:
            found = look()
            if not self.holds:
                return found
            held = [row for row in found if row[5] is not None and self.rules.holds(*row[5])]
            if not held:
                return found
            if self._aside >= BATCH:
                self._more |= {row[0].partition(BREAK)[0] for row in held}
                ids = {row[2] for row in held}
                return [row for row in found if row[2] not in ids]
            paths = sorted({row[0] for row in held})
            values = {"queues": paths, "most": [_FRONT] * len(paths), "limit": BATCH, "now": self.now, **self.held()}
            ((jobs, _),) = self.ask("put_aside", values, "named_lanes").fetchall()
            self._aside += jobs or BATCH


class _Line:
    """The due jobs of one queue."""

    def __init__(self, look: Look, plan: Plan, gates: Gates) -> None:
        self._look = look
        self._plan = plan
        self._gates = gates
        self._aged = None if plan.aging is None else look.now - plan.aging

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        """Show lanes."""
        if not self._plan.shape:
            return [("", self._offers(self._look.front(self._plan.queue), each))]
        ahead = self._look.ahead(self._plan)
        known = None if ahead is None else ahead.lanes(first, until, many, each, self._closed)
        if known is not None:
            self._look.know_levels(self._plan, [lane for lane, _ in known])
            return known
        shown: dict[str, list[_Row]] = {}
        for row in self._look.lanes(self._plan, first, until, many, each):
            shown.setdefault(row[0], []).append(row)
        return [(lane, self._offers(shown[lane], each)) for lane in sorted(shown)]

    def _closed(self, lane: str) -> bool:
        return self._gates.opening(self._plan, *limits.split(lane)) != self._look.now

    def _offers(self, found: Iterable[_Row], each: int) -> list[Offer]:
        aged = self._aged
        offers = [Offer(rank((row[3], row[4], row[2]), aged), (row[1], row[2])) for row in found if row[1]]
        return sorted(offers)[:each] if len(offers) > 1 else offers


def _due(row: _Row) -> Micros:
    return int(row[4])


def _subjects(subjects: Collection[Subject]) -> dict[str, list[str]]:
    return {
        "queues": [queue for queue, _, _ in subjects],
        "pers": [per for _, per, _ in subjects],
        "subjects": [name for _, _, name in subjects],
    }
