"""Flow control: what a store object knows of the rules, and how it claims by them.

Rules are read once a second by those who claim; where none holds, nothing else is done. Every number that decides is
read in the transaction of the claim (`lanes`). What is kept here is only what need not be asked again.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.domain import limits
from holdfast.domain.excess import Excess, beyond
from holdfast.domain.gates import Gates, Spare, Standing, spare
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.domain.limits import ALL, NO_RULES, Limit, Plan, Rule, Rules
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.ring import LATER, Ring, choose
from holdfast.port.store import Claim
from holdfast.stores.postgres import paths, rounds, rows, sql
from holdfast.stores.postgres.ahead import Hint, Reach
from holdfast.stores.postgres.lanes import Glimpse, Look
from holdfast.stores.postgres.marks import Lane, Mark
from holdfast.stores.postgres.paths import GROUP, Search
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.rounds import Round
from holdfast.stores.postgres.settlement import at_once

_FRESH = 1.0
"""Seconds for which the rules are as they were read."""
_SHUT: Micros = SECOND // 4
"""How long a limit that was full is believed to be, unless something of its queue ends here or somebody calls."""
_LOOK = 0.02
"""The share of a worker's time that may go into looks at full limits: believed for longer, they cost others less."""
_VAIN = 3
"""How often in a row the short way round may lead nowhere before it is not tried for a moment."""
_DRAIN = 60.0
"""Seconds between two removals of full buckets."""


class Known(NamedTuple):
    """What is known of the rules."""

    rules: Rules = NO_RULES
    turned: frozenset[str] = frozenset()
    """Queues that have had lanes."""
    left: frozenset[str] = frozenset()
    """Those in which something stands in lanes, or aside."""
    pages: tuple[tuple[str, str], ...] = ()
    """The pages that were read, with their versions."""

    def __bool__(self) -> bool:
        return bool(self.rules or self.left)

    def plain(self, queue: str) -> bool:
        """Tell whether no rule holds for a queue, or has left something behind."""
        return queue not in self.left and self.rules.plan(queue) is None

    @property
    def broad(self) -> bool:
        """Whether there are rules over all queues."""
        return self.rules.plan(ALL) is not None


class Outlook(NamedTuple):
    """What there is to be claimed."""

    now: Micros
    found: list[str]
    """Queues that have something now."""
    later: Micros | None
    """When the next job comes due, as far as those who are due do not stand before it."""


class Turns:
    """Whose turn it is, as far as one store object knows."""

    def __init__(self, pool: Pool, given: Callable[[], Micros | None]) -> None:
        self._pool = pool
        self._schema = pool.address.schema
        self._given = given
        self.known = Known()
        self._hints: dict[str, Hint] = {}
        self._strays: set[str] = set()
        """Queues with lanes in which, the last time, something due stood in none."""
        self._drained = time.monotonic()
        self._searched: dict[str, dict[Lane, Mark]] = {}
        """Where looks for the jobs of a tenant stopped."""
        self._places: dict[str, dict[str, str]] = {}
        """Which lanes of a tenant were looked at last, by queue."""
        self._glimpsed: dict[str, Glimpse] = {}
        """Where looks on behalf of others stopped in queues with more closed lanes than one can go through."""
        self.forget()

    def forget(self) -> None:
        """Ask everything again."""
        self._read_at = self._counted_at = float("-inf")
        self._tidy: set[str] = set()
        """Queues that are tidy, by the rules that are known."""
        self._tidy_since = float("-inf")
        self._shut: dict[str, float] = {}
        """Queues in which nothing can go, and until when that is believed; never changed but replaced, since others may
        be looking.
        """
        self._loose: dict[str, float] = {}
        """Queues (or all, `*`) whose limits were far from full, and when: nobody waits there for something to end."""
        self._roomy: dict[str, float] = {}
        """Queues of which so few jobs ran that no limit could be reached, and when."""
        self._uncertain: dict[str, float] = {}
        """Queues in which the short way round led nowhere several times, and when."""
        self._tried: Counter[str] = Counter()
        """How often in a row it has."""
        self._crowded: dict[str, float] = {}
        """Queues whose turn somebody else has moved meanwhile, and when."""

    def learn(self, fresh: float = _FRESH) -> Known:
        """Give the rules: as they are, or as they were a moment ago."""
        given = self._given()
        if given is None and time.monotonic() - self._read_at < fresh:
            return self.known
        at = time.monotonic()
        text = sql.statement(self._schema, "orders")
        ((pages, turned, left),) = self._pool.run(lambda db: db.execute(text, {"now": given}).fetchall(), writes=False)
        versions = tuple((name, version) for name, version, _ in pages)
        if versions != self.known.pages:
            self.forget()
        same = versions == self.known.pages
        rules = self.known.rules if same else Rules.read((name, body) for name, _, body in pages)
        self.known = Known(rules, frozenset(turned), frozenset(left), versions)
        if at - self._tidy_since > _FRESH:
            self._tidy, self._tidy_since = set(), at
        self._read_at = at
        return self.known

    def knows(self, known: Known) -> bool:
        """Tell whether this is what is known, and was read a moment ago."""
        return known is self.known and time.monotonic() - self._read_at < _FRESH

    def prepare(self, queues: Collection[str]) -> None:
        """Make ready to store many jobs straight into lanes."""
        known = self.learn()
        laned = {queue for queue in queues if (plan := known.rules.plan(queue)) is not None and plan.shape}
        if new := sorted(laned - known.turned):
            text = sql.statement(self._schema, "add_turns")
            self._pool.run(lambda db: db.execute(text, {"queues": new}))
            self.known = known._replace(turned=known.turned | laned)

    def place(self, new: NewJob) -> str | None:
        """Give the path under which a job that is stored now may wait at once; None for its queue."""
        if new.queue not in self.known.turned or not self.known.rules:
            return None
        if new.state is not State.QUEUED or new.run_at is not None or new.delay > 0:
            return None
        plan = self.known.rules.plan(new.queue)
        if plan is not None and plan.roomy and new.queue not in self.known.left:
            return None
        return None if plan is None else paths.path(self.known.rules, plan, new.tenant, new.kind, new.group)

    def stirred(self, queues: Collection[str] | None = None) -> None:
        """Note that something may have become claimable in these queues; in any, if none is named."""
        if self._shut:
            kept = {} if queues is None else self._shut
            self._shut = {queue: until for queue, until in kept.items() if queue not in (queues or ())}

    def ended(self, queues: Collection[str]) -> Collection[str]:
        """Note that jobs of these queues run no more; give the queues in which others may start for it."""
        rules = self.known.rules
        if not rules:
            return ()
        counted = {queue for queue in queues if (plan := rules.plan(queue)) is not None and plan.counts}
        if rules.everywhere and counted:
            counted = {ALL}
        self.stirred(None if ALL in counted else counted)
        return [queue for queue in counted if not _lately(self._loose, queue)]

    def narrowed(self, want: Claim) -> tuple[Claim, bool]:
        """Leave out of a claim what is known to give nothing; tell whether the rest goes by rules, as claims for one
        tenant always do.
        """
        known, ruled = self.learn(), want.tenant is not None
        if not known:
            return want, ruled
        if want.id is not None:
            return want, ruled or bool(known.rules)
        now = time.monotonic()
        shut = frozenset(queue for queue, until in self._shut.items() if now < until)
        if want.queues is not None:
            room = {queue: most for queue, most in want.queues.items() if most > 0 and queue not in shut}
            return want._replace(queues=room), ruled or any(not known.plain(queue) for queue in room)
        names = (known.rules.rules.keys() | known.left) - want.full - shut
        return want._replace(full=want.full | shut), ruled or known.broad or bool(names)

    def spare(self, want: Claim) -> Spare | None:
        """Say what must be left of the limits of a queue for a claim to need no other rule; None if it does need one,
        or if they are not known to be far from full.
        """
        plan, most = self._lone(want)
        if plan is None or (plan.shape and not plan.roomy):
            return None
        if plan.queue in self.known.left or not self._is_roomy(plan):
            return None
        return spare(plan, most)

    def round(self, want: Claim) -> Round | None:
        """Give the short way round the lanes of a queue; None if it is not open, or has led nowhere just now."""
        plan, most = self._lone(want)
        if plan is None or not plan.shape or plan.nested or plan.ordered or not 0 < most <= rounds.MOST:
            return None
        queue = plan.queue
        if (queue in self.known.left and queue not in self._tidy) or queue in self._strays:
            return None
        if plan.weights or _lately(self._uncertain, queue) or not self._is_roomy(plan):
            return None
        found = spare(plan, most) if plan.limits else None
        if plan.limits and (found is None or found.full_in is not None):
            return None
        reach = Reach.of(plan, most, self._hints.get(queue, Hint()))
        return Round(plan, most, reach, found and found.running, _lately(self._crowded, queue))

    def went(self, way: Round, *, certain: bool, moved: bool) -> None:
        """Learn where the short way round led, and whether somebody else has moved the turn meanwhile."""
        queue = way.plan.queue
        self._tried[queue] = 0 if certain else self._tried[queue] + 1
        if self._tried[queue] >= _VAIN:
            self._tried[queue], self._uncertain[queue] = 0, time.monotonic()
        if moved:
            self._crowded[queue] = time.monotonic()

    def _lone(self, want: Claim) -> tuple[Plan | None, int]:
        """Give the plan of the one queue that a claim is from, and how many it wants; None if it is not as simple."""
        known = self.known
        if want.tenant is not None or want.id is not None or want.queues is None or len(want.queues) != 1:
            return None, 0
        [(queue, most)] = want.queues.items()
        plan = known.rules.plan(queue)
        if plan is None or plan.aging or known.rules.tenants or known.rules.kinds or queue not in known.turned:
            return None, 0
        return plan, min(most, want.limit)

    def _is_roomy(self, plan: Plan) -> bool:
        """Tell whether no limit of jobs at once could be reached a moment ago, and all that ran were counted then."""
        if not plan.counts:
            return True
        return _lately(self._roomy, plan.queue) and time.monotonic() - self._counted_at <= _FRESH

    def locked(self, want: Claim) -> None:
        """Learn that the turns of a claim have been locked, so that they are there."""
        known = self.known
        plans = {queue: known.rules.plan(queue) for queue in set(want.queues or ()) - known.turned}
        if new := {queue for queue, plan in plans.items() if plan is not None and (plan.limits or plan.shape)}:
            self.known = known._replace(turned=known.turned | new)

    def lock(self, db: Connection, want: Claim) -> None:
        """Wait for the turn of a claim from one queue."""
        db.execute(sql.statement(self._schema, "lock_turn"), {"queue": next(iter(want.queues or ()))})

    def claim(self, db: Connection, want: Claim) -> Callable[[], list[JobRecord]]:
        """Claim by the rules, in a transaction of the caller's; what was claimed is given when that is over."""
        if want.id is not None:
            one = self._claim_one(db, want, want.id)
            return lambda: one
        if want.queues is None:
            names = self._names(db, None, want.full)
            self._close((self.known.rules.rules.keys() | self.known.left) - set(names), LATER)
            room = dict.fromkeys(names, want.limit)
        else:
            room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
        look = self._look(db, room, locks=True, tenant=want.tenant)
        self._loose.update(dict.fromkeys(look.loose(want.limit), time.monotonic()))
        self._close(look.paused, LATER)
        gates = look.gates()
        if look.simple():
            return self._claim_best(look, gates, {queue: room[queue] for queue in room.keys() - look.paused}, want)
        open_ = sorted(room.keys() - look.paused)
        plain = [queue for queue in open_ if want.tenant is None and not look.holds and self.known.plain(queue)]
        rings = [self._ring(look, queue, gates) for queue in open_ if queue not in plain]
        if plain and all(ring.head() is None for ring in rings):
            self._turn(look, rings)
            return self._claim_best(look, gates, {queue: room[queue] for queue in plain}, want)
        rings += [self._ring(look, queue, gates) for queue in plain]
        chosen = [offer.ref for _, offer in choose(rings, want.limit)]
        turned = self._turn(look, rings, chosen=bool(chosen))
        values, part = {**_lease(want, look), **_places(chosen), **turned}, "turned_too" if turned else ""
        taken = look.take("take", values, part) if chosen else None
        look.draw(gates)

        def claimed() -> list[JobRecord]:
            found = {job.id: job for job in rows.claimed(taken.fetchall(), want)} if taken is not None else {}
            return [found[id_] for _, id_ in chosen if id_ in found]

        return claimed

    def _claim_best(
        self, look: Look, gates: Gates, room: Mapping[str, int], want: Claim
    ) -> Callable[[], list[JobRecord]]:
        """Claim by priority, due time and age alone, as many as the limits leave room for."""
        plans = {queue: look.plan(queue) for queue in room}
        allowed = {queue: gates.room(plans[queue], "", None, most) for queue, most in room.items()}
        for queue in (queue for queue, most in allowed.items() if most < 1):
            self._close_until(look, queue, gates.opening(plans[queue], "", None))
        values = {**_lease(want, look), "limit": want.limit, "queues": list(allowed), "most": list(allowed.values())}
        known = [look.rules.plan(queue) for queue in room]
        counted = any(plan is not None and plan.counts for plan in known)
        found = look.take("claim", values, "named_lanes", counted=counted)

        def claimed() -> list[JobRecord]:
            return rows.claimed(found.fetchall(), want)

        if not any(limit.rate for plan in plans.values() for _, limit in plan.limits):
            return claimed
        jobs = claimed()
        for queue, number in Counter(job.queue for job in jobs).items():
            gates.enter(plans[queue], "", None, number)
        look.draw(gates)
        return lambda: jobs

    def _claim_one(self, db: Connection, want: Claim, id_: str) -> list[JobRecord]:
        """Claim one job, if its gates are open."""
        found = db.execute(sql.statement(self._schema, "read"), {"ids": [id_]}).fetchall()
        job = rows.record(found[0]) if found else None
        if job is None or want.tenant not in (None, job.tenant):
            return []
        look = self._look(db, {job.queue: 1}, locks=True)
        plan = look.rules.plan(job.queue) or Plan(job.queue)
        gates, who = look.gates(), (job.tenant, limits.group_of(job))
        if look.rules.holds(job.tenant, job.kind) or gates.opening(plan, *who) != look.now:
            return []
        taken = look.take("claim_one", {**_lease(want, look), "id": id_}).fetchall()
        if taken:
            gates.enter(plan, *who)
            look.draw(gates)
        return rows.claimed(taken, want)

    def outlook(self, db: Connection, queues: Sequence[str] | None) -> Outlook:
        """Tell what there is to be claimed, now and next."""
        with at_once(db):
            return self._outlook(db, queues)

    def _outlook(self, db: Connection, queues: Sequence[str] | None) -> Outlook:
        names = self._names(db, None if queues is None else dict.fromkeys(queues, 1), ())
        ruled = [queue for queue in names if not self.known.plain(queue)]
        rest = [queue for queue in names if queue not in ruled]
        look = self._look(db, dict.fromkeys(ruled, 1), locks=False)
        gates = look.gates()
        due = {queue: at for queue in ruled if (at := look.next_at(queue, gates, self._glimpsed)) is not None}
        values = {**look.held(), "queues": ruled, "most": [1] * len(ruled), "now": look.now}
        ((later,),) = look.ask("comes_due", values, "not_held" if look.holds else "").fetchall()
        others = {"now": look.now, "queues": rest, "most": [1] * len(rest)}
        ((_, plain, first),) = look.ask("outlook", others, "named_lanes").fetchall()
        found = [queue for queue, at in due.items() if at <= look.now]
        self.stirred(found)
        nexts = (at for at in (*due.values(), later, first) if at is not None and at > look.now)
        return Outlook(look.now, found + (plain or []), min(nexts, default=None))

    def due_since(self, db: Connection) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due, of those that are not held back."""
        look = Look(db, self._schema, self.known.rules, self._given())
        values = {"now": self._given(), "holds": look.holds, **look.held()}
        return dict(look.ask("due_since", values, "every_lane").fetchall())

    def overflow(self, db: Connection, most: int) -> list[Excess]:
        """List jobs beyond full limits."""
        with at_once(db):
            return self._overflow(db, most)

    def _overflow(self, db: Connection, most: int) -> list[Excess]:
        names = self._names(db, {rule.queue: 1 for rule, _ in self.known.rules.sheds}, ())
        look = self._look(db, dict.fromkeys(names, 1), locks=False)
        found: dict[str, Excess] = {}
        for rule, limit in look.rules.sheds:
            if rule.queue in names:
                found |= {gone.job.id: gone for gone in self._beyond(look, rule, limit, most)}
        return [found[id_] for id_ in sorted(found)][:most]

    def _beyond(self, look: Look, rule: Rule, limit: Limit, most: int) -> list[Excess]:
        full = look.full(rule.queue, limit)
        if not full:
            return []
        running: dict[str | None, list[JobRecord]] = {}
        for job in map(rows.record, look.ask("running_jobs", {"queue": rule.queue}).fetchall()):
            running.setdefault(limits.subject(limit, job.tenant, limits.group_of(job)), []).append(job)
        plan, gone = look.rules.plan(rule.queue) or Plan(rule.queue), []
        for name in full:
            low, high = paths.span(plan, limit, name)
            values = {"low": low, "high": high, "now": look.now, "limit": most + 1, **look.held()}
            waiting = [rows.record(row) for row in look.ask("due_jobs", values).fetchall()]
            gone += beyond(limit, running.get(name, []), waiting)
        return gone

    def standing(self, db: Connection, queue: str) -> Standing:
        """Say what is in use of the limits of a queue."""
        values = {"queue": queue, "now": self._given(), "group": GROUP}
        running, buckets = (
            db.execute(sql.statement(self._schema, name), values).fetchall() for name in ("standing", "buckets")
        )
        return Standing(
            {(tenant, group): jobs for tenant, group, jobs in running},
            {(per, name): at for per, name, at in buckets},
        )

    def drain(self, db: Connection) -> None:
        """Remove buckets that are full again, now and then."""
        if time.monotonic() - self._drained > _DRAIN:
            self._drained = time.monotonic()
            db.execute(sql.statement(self._schema, "full_buckets"), {"now": self._given()})

    def _names(self, db: Connection, queues: Mapping[str, int] | None, full: Collection[str]) -> list[str]:
        """Name the queues that may give something: not paused, and of those asked for, or all in which jobs wait."""
        asked = list(queues or ())
        values = {"limit": 1, "full": list(full), "queues": asked, "most": [1] * len(asked)}
        text = sql.statement(self._schema, "waiting_queues", "all_lanes" if queues is None else "named_lanes")
        return sorted(queue for (queue,) in db.execute(text, values).fetchall())

    def _look(self, db: Connection, room: Mapping[str, int], *, locks: bool, tenant: str | None = None) -> Look:
        known = self.known
        search = None if tenant is None else Search(tenant, self._searched.setdefault(tenant, {}))
        look = Look(db, self._schema, known.rules, self._given(), search)
        recount = self._given() is not None or time.monotonic() - self._counted_at > _FRESH
        untidy = known.left - self._tidy
        look.begin(
            room,
            locks=locks,
            fresh={*room, ALL} - known.turned,
            untidy=untidy,
            strays=self._strays,
            laned=known.left,
            hints=self._hints if locks else None,
            recount=recount,
        )
        self._tidy |= look.tidied
        self.known = known._replace(left=known.left | look.laned)
        if locks:
            self._strays = (self._strays - room.keys()) | look.strays
            kept = {queue: at for queue, at in self._roomy.items() if queue not in room}
            self._roomy = kept | dict.fromkeys(look.roomy, time.monotonic())
        if look.uncounted is not None:
            self._counted_at = float("-inf") if look.uncounted else time.monotonic()
        return look

    def _ring(self, look: Look, queue: str, gates: Gates) -> Ring:
        lanes = self._hints.get(queue, Hint()).lanes
        return look.ring(queue, gates, lanes, self._places.setdefault(queue, {}))

    def _turn(self, look: Look, rings: Sequence[Ring], *, chosen: bool = False) -> dict[str, Any]:
        """Record where rings stopped; remember for a moment in which nothing more can go. If jobs are to be taken, and
        one ring went on, the statement that takes them can record it as well: its parameters are given then.
        """
        turned = [ring for ring in rings if ring.plan.shape and ring.cursor != ring.begun]
        written = [{"queue": look.turn(ring.plan.queue), **ring.cursor._asdict()} for ring in turned]
        for ring in rings:
            if ring.tenant is None:  # else it says nothing of the others
                self._learn_of(look, ring)
        if chosen and len(written) == 1:
            return written[0]
        for values in written:
            look.ask("turned", values)
        return {}

    def _learn_of(self, look: Look, ring: Ring) -> None:
        queue = ring.plan.queue
        if ring.plan.shape:
            shut = ring.shut and ring.seen > 0 and ring.cursor == ring.begun
            self._hints[queue] = Hint(ring.lanes or self._hints.get(queue, Hint()).lanes, ring.seen, shut)
        if ring.shut and look.whole(queue) and not self.known.plain(queue):
            self._close_until(look, queue, ring.opens_at)

    def _close_until(self, look: Look, queue: str, opens_at: Micros | None) -> None:
        took = round((time.monotonic() - look.begun) * SECOND)
        span = min(max(_SHUT, round(took / _LOOK)), SECOND) if look.rules.plan(queue) else LATER
        self._close({queue}, span if opens_at is None else min(span, opens_at - look.now))

    def _close(self, queues: Collection[str], span: Micros) -> None:
        """Believe for so long that nothing can go in these queues."""
        if self._given() is None:
            self._shut = {**self._shut, **dict.fromkeys(queues, time.monotonic() + span / SECOND)}


def _lately(times: Mapping[str, float], queue: str) -> bool:
    return time.monotonic() - times.get(queue, float("-inf")) <= _FRESH


def _lease(want: Claim, look: Look) -> dict[str, Any]:
    return {"now": look.now, "lease_id": want.lease_id, "owner": want.owner, "lease": want.lease, "group": GROUP}


def _places(chosen: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {"places": ";".join([place for place, _ in chosen]), "ids": ";".join([id_ for _, id_ in chosen])}
