"""Flow control on a file: due jobs stand in lanes, and claims go round them as `domain.ring` says.

Enqueuing knows nothing of rules, or what it knows may be a second old: a claim lines up what is due, so many jobs at a
time, and takes back what stands in lanes that are no more. Where no rule holds, none of this costs a statement.

What a `Turns` keeps is only what it need not ask again: every number that decides is read in the transaction of the
claim. It is forgotten whenever a transaction fails.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from holdfast.domain.excess import Excess
from holdfast.domain.gates import Gates, Standing, Subject, far
from holdfast.domain.job import NewJob
from holdfast.domain.limits import ALL, NO_RULES, Limit, Plan, Rules
from holdfast.domain.moments import Micros
from holdfast.domain.ring import Ring, choose
from holdfast.domain.way import AT_ONCE, Cursor
from holdfast.port.store import Claim
from holdfast.stores.sqlite.file import OpenFile
from holdfast.stores.sqlite.guests import Connection, OwnConnection
from holdfast.stores.sqlite.lines import BATCH, Mark, Queue, Ready, Search, Shut, Stands, sweep
from holdfast.stores.sqlite.picks import NOBODY, Picked, by_place, by_turns
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.surplus import bounds, span, surplus

_STALE = 0.5
"""Seconds after which those who only store jobs look for other rules."""
_NONE: frozenset[str] = frozenset()
_BREAK = "\x1f"
"""No name contains it."""


Gated = tuple[dict[str, int], Gates]
"""How many jobs of queues may go, and the gates that say so."""


class Turns:
    """Whose turn it is among the jobs of a file."""

    def __init__(self) -> None:
        self._fresh = False
        self._searched: dict[str, dict[str, Mark]] = {}
        """Where looks for the jobs of a tenant stopped."""
        self._places: dict[str, dict[str, str]] = {}
        """Which lanes of a tenant were looked at last, by queue."""
        self._begin()

    def _begin(self) -> None:
        self.rules: Rules = NO_RULES
        self._stamp = 0
        self._looked = 0.0
        self._tidy: dict[str, int] = {}
        """The stamp since which a queue has had nothing in lanes, or aside, that should not be there."""
        self._shut: dict[str, Shut] = {}
        self._lanes: dict[str, int] = {}
        """How many lanes a queue had when one round was not enough for a claim; none if it was for the last one."""
        self._guess: str | None = None
        """The one queue that the last claim found jobs in."""

    def forget(self) -> None:
        """Ask everything again, from the next transaction on: one that is under way goes by what it knows."""
        self._fresh = False

    def look(self, db: OwnConnection, *, claims: bool = True) -> frozenset[str]:
        """Learn which rules hold, at the beginning of a write transaction; give the paused queues."""
        if not self._fresh:
            self._begin()
        stamp, laned, paused = db.execute(SQL["orders"]).fetchone()
        if stamp != self._stamp:
            self._stamp = stamp
            self.rules = Rules.read(db.execute(SQL["rules"]))
            self._shut.clear()
        self._looked = time.monotonic()
        self._fresh = True
        if claims and laned != stamp:
            self._count_anew(db)
        return _paused(paused)

    def guess(self, queues: Collection[str]) -> None:
        """Learn where a claim has looked; no rule holds there."""
        self._guess = next(iter(queues)) if len(queues) == 1 else None

    def hunch(self) -> tuple[str | None, int]:
        """Name the queue where the next claim may find all there is, and the stamp of the rules, if there are none."""
        return self._guess if self._fresh and not self.rules else None, self._stamp

    def confirm(self) -> None:
        """Learn that the rules have not changed."""
        self._looked = time.monotonic()

    def refresh(self, db: OwnConnection) -> Rules:
        """Give the rules in a write transaction that claims nothing: as they were a moment ago, at worst."""
        if not self._fresh or time.monotonic() - self._looked > _STALE:
            self.look(db, claims=False)
        return self.rules

    def glance(self, file: OpenFile) -> Rules | None:
        """Give the rules as they were a moment ago, outside of a transaction; None if they may be others by now.

        While the reading connection is busy (a backup may take long), nobody waits for it.
        """
        if not self._fresh:
            return None
        if time.monotonic() - self._looked > _STALE and not (read := file.read()).is_busy():
            with read as db:
                if db.execute(SQL["stamp"]).get != self._stamp:
                    self._fresh = False
                    return None
            self._looked = time.monotonic()
        return self.rules

    def known(self, db: Connection) -> frozenset[str] | None:
        """Give the paused queues to one who only reads, if the rules are still those that are known here."""
        stamp, _, paused = db.execute(SQL["orders"]).fetchone()
        return _paused(paused) if self._fresh and stamp == self._stamp else None

    def _count_anew(self, db: Connection) -> None:
        """Give running jobs the lanes that they are counted by from now on."""
        for (queue,) in () if not self.rules.by_lane else db.execute(SQL["running_queues"]).fetchall():
            plan = self.rules.plan(queue)
            if plan is not None and plan.shape:
                db.execute(SQL[f"lane_running_{plan.shape}"], (queue,))
        db.execute(SQL["relaned"])

    @property
    def counts(self) -> bool:
        """Whether running jobs are counted by their lanes."""
        return self.rules.by_lane

    def plain(self, queues: Iterable[str]) -> bool:
        """Tell whether no rule holds for any of these, or has left something behind."""
        return not self._stamp or all(
            self._tidy.get(queue) == self._stamp and self.rules.plan(queue) is None for queue in queues
        )

    def open(self, db: OwnConnection, room: Mapping[str, int], now: Micros) -> dict[str, int]:
        """Leave out the queues of which it is known that nothing can go: they cost the others nothing."""
        shut = {queue for queue in self._shut if queue in room and self._is_shut(db, queue, now)}
        return {queue: most for queue, most in room.items() if queue not in shut}

    def _is_shut(self, db: OwnConnection, queue: str, now: Micros) -> bool:
        shut, plan = self._shut[queue], self.rules.plan(queue)
        if plan is None or not plan.shape:
            return False
        row = db.execute(SQL["turn"], (queue,)).fetchone()
        return row is not None and shut.holds(row[3], now) and not db.execute(SQL["lines_up"], (queue, now)).get

    def simple(self, plans: Mapping[str, Plan]) -> bool:
        """Tell whether the gates of these queues only say how many jobs may go, and nothing of which."""
        own = len(plans) == 1 or all(of == queue for queue, plan in plans.items() for of, _ in plan.limits)
        tidy = all(self._tidy.get(queue) == self._stamp for queue in plans)
        held = self.rules.tenants or self.rules.kinds
        return own and tidy and not (held or any(plan.shape or plan.aging for plan in plans.values()))

    def gated(self, db: OwnConnection, plans: Mapping[str, Plan], most: Mapping[str, int], now: Micros) -> Gated:
        """Say how many jobs of each of these queues may go."""
        gates = self._gates(db, now)
        allowed = {queue: gates.room(plan, "", None, most[queue]) for queue, plan in plans.items()}
        return {queue: jobs for queue, jobs in allowed.items() if jobs}, gates

    def passed(
        self, db: OwnConnection, plans: Mapping[str, Plan], gates: Gates, picked: Mapping[tuple[str, Any], int]
    ) -> None:
        """Count the jobs of those queues that have gone."""
        for (queue, _), jobs in picked.items():
            if jobs:
                gates.enter(plans[queue], "", None, jobs)
        self._draw(db, gates)

    def plans(self, db: OwnConnection, room: Mapping[str, int], want: Claim) -> dict[str, Plan]:
        """Say what holds for a claim of so many jobs of these queues, without limits that it cannot reach: even if all
        that run there, and all that it takes, were of one tenant or key.
        """
        running: dict[str, int] = {}

        def reached(of: str, limit: Limit) -> bool:
            if limit.concurrency is None:
                return True
            if of not in running:
                running[of] = db.execute(SQL["running_in_queue"], (of,)).get
            return bool(running[of] + want.limit > limit.concurrency)

        plans = {
            queue: self._plan(db, queue, want.limit) if want.tenant is None else self.rules.plan(queue) or Plan(queue)
            for queue in room
        }
        return {
            queue: plan._replace(limits=tuple(one for one in plan.limits if reached(*one))) if plan.limits else plan
            for queue, plan in plans.items()
        }

    def _plan(self, db: OwnConnection, queue: str, most: int) -> Plan:
        """Say what holds for so many jobs of a queue. They go by one line if no limit is near that would need lanes,
        and nothing stands in any: what does must go first, so that nobody moves jobs to and fro.
        """
        plan = self.rules.plan(queue) or Plan(queue)
        if not plan.roomy:
            return plan
        running, laned, unnamed = db.execute(SQL["lined"], (queue,)).fetchone()
        if laned or not far(plan, running, most):
            return plan
        if not unnamed:
            db.execute(SQL["unnamed"], (queue, 1))
        return plan.in_line()

    def choose(
        self, db: OwnConnection, room: Mapping[str, int], plans: Mapping[str, Plan], want: Claim, now: Micros
    ) -> Picked:
        """Choose jobs by turns, as their plans say."""
        if want.tenant is None and len(room) == 1 and max(room.values()) <= want.limit:
            [plan] = plans.values()
            if self._by_place(plan):
                return self._go_round(db, plan, room[plan.queue], now)
        gates = self._gates(db, now)
        rings, changes = [], {}
        for queue, wanted in room.items():
            ready = self._ready(db, plans[queue], now)
            changes[queue] = ready.changes
            if (ring := self._ring(db, plans[queue], gates, now, wanted, ready=ready, tenant=want.tenant)) is not None:
                rings.append(ring)
        chosen = choose(rings, want.limit)
        for ring in rings:
            self._record(db, ring, changes[ring.plan.queue])
        self._draw(db, gates)
        return by_turns(chosen)

    def _go_round(self, db: OwnConnection, plan: Plan, most: int, now: Micros) -> Picked:
        """Choose jobs of one queue by the places where they stand."""
        ready = self._ready(db, plan, now)
        if self._is_free(plan, most, ready) and (swept := sweep(db, plan, ready.cursor, most, now)) is not None:
            told, cursor = swept
            self._shut.pop(plan.queue, None)
            db.execute(SQL["turned"], (plan.queue, *cursor))
            return by_place(plan.queue, told)
        gates = self._gates(db, now)
        ring = self._ring(db, plan, gates, now, most, ready=ready, line=Stands)
        if ring is None:
            return NOBODY
        chosen: list[Any] = ring.drain()
        self._record(db, ring, ready.changes)
        self._draw(db, gates)
        return by_place(plan.queue, chosen)

    def _is_free(self, plan: Plan, most: int, ready: Ready) -> bool:
        """Tell whether no gate is in the way of anybody, all weights are the same, and there were lanes enough."""
        given = self._lanes.get(plan.queue, 0) * (most // AT_ONCE or 1)
        same = ready.changes >= 0 and not plan.limits and not plan.weights
        return same and most > 0 and (not given or given >= most)

    def _by_place(self, plan: Plan) -> bool:
        """Tell whether the lanes of a queue need only be known by the order in which they and their jobs stand."""
        held = self.rules.tenants or self.rules.kinds
        return plan.shape != "" and not (plan.nested or plan.ordered or held) and plan.aging is None

    def admits(self, db: OwnConnection, seq: int, queue: str, now: Micros) -> bool:
        """Let one job pass its gates, if they are open."""
        plan = self.rules.plan(queue)
        if plan is None:
            return True
        tenant, kind, group = db.execute(SQL["party"], (seq,)).fetchone()
        if plan.roomy and db.execute(SQL["lined"], (queue,)).fetchone()[2]:
            self._name(db, plan)
        gates = self._gates(db, now)
        if self.rules.holds(tenant, kind) or gates.opening(plan, tenant, group) != now:
            return False
        gates.enter(plan, tenant, group)
        if plan.shape:
            db.execute(SQL[f"lane_one_{plan.shape}"], (seq,))
        self._draw(db, gates)
        return True

    def next_at(self, db: OwnConnection, queue: str, now: Micros) -> Micros | None:
        """Give the instant when a job of a ruled queue can next be claimed."""
        plan = self._plan(db, queue, 1)
        ready = self._ready(db, plan, now)
        ring = self._ring(db, plan, self._gates(db, now), now, 1, ready=ready)
        first = self._shut[queue].opens_at if ring is None else ring.next_at()
        later = db.execute(SQL["comes_due"], (queue, now, *self._held())).get
        return min((at for at in (first, later) if at is not None), default=None)

    def all_since(self, db: Connection, paused: frozenset[str], now: Micros) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due."""
        names = [queue for (queue,) in db.execute(SQL["waiting_queues"]).fetchall() if queue not in paused]
        found = {
            queue: db.execute(SQL["due_since"], (queue, now)).get
            if self.plain([queue])
            else self._since(db, queue, now)
            for queue in names
        }
        return {queue: at for queue, at in found.items() if at is not None}

    def _since(self, db: Connection, queue: str, now: Micros) -> Micros | None:
        found = [db.execute(SQL[name], (queue, now, *self._held())).get for name in ("held_since", "laned_since")]
        for tenant, kind in db.execute(SQL["aside"], (queue,)).fetchall():
            if not self.rules.holds(tenant, kind):
                found.append(db.execute(SQL["aside_since"], (queue, tenant, kind, now)).get)
        return min((at for at in found if at is not None), default=None)

    def _held(self) -> tuple[str, str]:
        return json.dumps(sorted(self.rules.tenants)), json.dumps(sorted(self.rules.kinds))

    def places(self, db: OwnConnection) -> Callable[[NewJob], str | None]:
        """Give the lanes of jobs that are about to be stored."""
        self.look(db, claims=False)

        plans: dict[str, Plan | None] = {}

        def place(new: NewJob) -> str | None:
            if new.queue not in plans:
                plans[new.queue] = self._laned(db, new.queue)
            plan = plans[new.queue]
            return None if plan is None else plan.lane(new.tenant, new.group)

        return place

    def _laned(self, db: OwnConnection, queue: str) -> Plan | None:
        """Say what makes the lanes of a queue, if jobs that are stored now are to stand in them."""
        plan = self.rules.plan(queue)
        if plan is None or not plan.shape or (plan.roomy and not db.execute(SQL["in_use"], (queue,)).get):
            return None
        return plan

    def stored(self, db: OwnConnection, queues: Iterable[str]) -> None:
        """Note that jobs of these queues were stored."""
        if self.rules:
            db.execute(SQL["changed"], (json.dumps(list(queues)),))

    def ended(self, db: OwnConnection, queues: Mapping[str, int], *, sure: bool = False) -> Collection[str] | None:
        """Note that so many jobs of these queues run no more; give the queues in which others may start for it (all, if
        None). If it is `sure` that no other rules hold, nobody has waited where limits had not been reached.
        """
        if not queues:
            return ()
        if self._was_reached(db, ALL, sum(queues.values()), sure=sure):
            db.execute(SQL["changed"], (None,))
            return None
        counted = [queue for queue, jobs in queues.items() if self._was_reached(db, queue, jobs, sure=sure)]
        if counted:
            db.execute(SQL["changed"], (json.dumps(counted),))
        return counted

    def _was_reached(self, db: OwnConnection, of: str, ended: int, *, sure: bool) -> bool:
        """Tell whether a limit of jobs at once may have been full before so many ended."""
        rule = self.rules.rules.get(of)
        counts = [limit.concurrency for limit in rule.limits if limit.concurrency is not None] if rule else []
        if not counts or not sure:
            return bool(counts)
        return bool(db.execute(SQL["running_in_queue"], (of,)).get + ended >= min(counts))

    def standing(self, db: Connection, queue: str, now: Micros) -> Standing:
        """Say what is in use of the limits of a queue."""
        running = {(tenant, group): jobs for tenant, group, jobs in db.execute(SQL["standing"], (queue,))}
        buckets = {(per, name): at for per, name, at in db.execute(SQL["buckets"], (queue, now))}
        return Standing(running, buckets)

    def overflow(self, db: OwnConnection, now: Micros, most: int) -> list[Excess]:
        """List jobs beyond full limits."""
        paused = self.look(db)
        found: dict[str, Excess] = {}
        for rule, limit in self.rules.sheds:
            if rule.queue not in paused:
                self._ready(db, self.rules.plan(rule.queue) or Plan(rule.queue), now)
                found |= {gone.job.id: gone for gone in surplus(db, self.rules, (rule, limit), now, most)}
        return [found[id_] for id_ in sorted(found)][:most]

    def _ring(
        self,
        db: OwnConnection,
        plan: Plan,
        gates: Gates,
        now: Micros,
        most: int,
        *,
        ready: Ready,
        tenant: str | None = None,
        line: type[Queue] = Queue,
    ) -> Ring | None:
        """Make ready to go round a queue; give none if it is known that nothing can go."""
        queue = plan.queue
        shut = self._shut.get(queue)
        if shut is not None and not ready.moved and shut.holds(ready.changes, now):
            return None
        self._shut.pop(queue, None)
        if tenant is not None:
            return self._own_ring(db, plan, gates, now, most, tenant=tenant)
        lanes = self._lanes.get(queue, 0)
        places = self._places.setdefault(queue, {}) if plan.nested else None
        shown = line(db, plan, self.rules, now, gates)
        return Ring(plan, shown, gates, now, cursor=ready.cursor, most=most, lanes=lanes, places=places)

    def _own_ring(self, db: OwnConnection, plan: Plan, gates: Gates, now: Micros, most: int, *, tenant: str) -> Ring:
        """Make ready to go round what one tenant has in a queue."""
        *cursor, _ = db.execute(SQL["turn"], (_turn(plan.queue, tenant),)).fetchone() or (*Cursor(), 0)
        line = Queue(db, plan, self.rules, now, gates, search=Search(tenant, self._searched.setdefault(tenant, {})))
        lanes = 1 if plan.shape == "t" else 0
        return Ring(plan, line, gates, now, cursor=Cursor(*cursor), most=most, lanes=lanes, tenant=tenant)

    def _ready(self, db: OwnConnection, plan: Plan, now: Micros) -> Ready:
        """Bring the due jobs of a queue where its rules want them, and see how it stands."""
        queue, moved = plan.queue, 0
        if self._tidy.get(queue) != self._stamp:
            moved += self._tidied(db, self.rules.plan(queue) or Plan(queue))
        waits, unnamed, *cursor, changes = db.execute(SQL["stance"], (queue, now)).fetchone()
        if unnamed and plan.shape:
            self._name(db, plan)
        if waits and plan.shape:
            db.execute(SQL[f"line_up_{plan.shape}"], (queue, now, BATCH))
            moved += db.changes()
        elif waits:
            db.execute(SQL["promote"], (queue, now))
            moved += db.changes()
        return Ready(moved > 0) if changes is None else Ready(moved > 0, Cursor(*cursor), changes)

    def _name(self, db: OwnConnection, plan: Plan) -> None:
        """Count the running jobs of a queue by lanes that were not counted by them."""
        db.execute(SQL[f"lane_running_{plan.shape}"], (plan.queue,))
        db.execute(SQL["unnamed"], (plan.queue, 0))

    def _tidied(self, db: OwnConnection, plan: Plan) -> int:
        """Take back what stands in lanes that are no more, or is aside without a reason; give the number."""
        low, high = bounds(plan.shape) if plan.shape else ("", "")
        db.execute(SQL["step_out"], (plan.queue, low, high, BATCH))
        out = db.changes()
        back = 0
        for tenant, kind in db.execute(SQL["aside"], (plan.queue,)).fetchall():
            if not self.rules.holds(tenant, kind) and back < BATCH:
                db.execute(SQL["put_back"], (plan.queue, tenant, kind, BATCH - back))
                back += db.changes()
        if out < BATCH and back < BATCH:
            self._tidy[plan.queue] = self._stamp
        return out + back

    def _record(self, db: OwnConnection, ring: Ring, changes: int) -> None:
        queue = ring.plan.queue
        if ring.plan.shape and (changes < 0 or ring.cursor != ring.begun):
            db.execute(SQL["turned"], (_turn(queue, ring.tenant), *ring.cursor))
        if ring.tenant is not None:
            return  # it says nothing of the others
        if ring.plan.shape and (ring.lanes or self._lanes.get(queue, 0) * ring.cursor.share < ring.most):
            self._lanes[queue] = ring.lanes
        if ring.shut and changes >= 0 and ring.plan.limits:
            self._shut[queue] = Shut(changes, ring.opens_at, time.monotonic())

    def _gates(self, db: OwnConnection, now: Micros) -> Gates:
        def running(subject: Subject) -> int:
            queue, per, name = subject
            if per == "queue":
                return int(db.execute(SQL["running_in_queue"], (queue,)).get)
            plan = None if queue == ALL else self.rules.plan(queue)
            shapes = "tk" if plan is None else plan.shape
            spans = (span(shape, per, name) for shape in shapes if (shape, per) != ("t", "key"))
            return sum(db.execute(SQL["running_in_lanes"], (queue, *lanes)).get for lanes in spans)

        def bucket(subject: Subject) -> Micros | None:
            found = db.execute(SQL["bucket"], subject).fetchone()
            return None if found is None else found[0]

        return Gates(now, running, bucket)

    def _draw(self, db: OwnConnection, gates: Gates) -> None:
        if gates.drawn:
            db.execute(SQL["draw"], (json.dumps([(*subject, full_at) for subject, full_at in gates.drawn.items()]),))


def _turn(queue: str, tenant: str | None) -> str:
    """Name the record of where the last claim stopped."""
    return queue if tenant is None else f"{queue}{_BREAK}{tenant}"


def _paused(names: str) -> frozenset[str]:
    return _NONE if names == "[]" else frozenset(json.loads(names))
