"""Flow control in the memory store: the lanes, gates and buckets of a dictionary of jobs."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from holdfast.domain import lifecycle, limits
from holdfast.domain.excess import Excess, beyond
from holdfast.domain.gates import Gates, Standing, Subject, far
from holdfast.domain.job import CLAIMABLE, JobRecord, State
from holdfast.domain.limits import ALL, Plan, Rules
from holdfast.domain.moments import Micros
from holdfast.domain.ring import Offer, Ring, choose, rank
from holdfast.domain.way import Cursor


class Turns:
    """Whose turn it is among the jobs of a store."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self._jobs = jobs
        self._cursors: dict[tuple[str, str | None], Cursor] = {}
        """Where the last claim of a queue stopped, or the last one for a tenant."""
        self._buckets: dict[Subject, Micros] = {}
        self._places: dict[str, dict[str, str]] = defaultdict(dict)
        """Which lanes of a tenant were looked at last, by queue."""

    def choose(
        self, rules: Rules, room: Mapping[str, int], most: int, now: Micros, tenant: str | None
    ) -> list[JobRecord]:
        """Choose jobs to be claimed, no more of each queue than there is room for; of one tenant, if one is named."""
        gates = self._gates(now)
        rings = [self._ring(rules, queue, gates, now, wanted, tenant=tenant) for queue, wanted in room.items()]
        chosen = choose(rings, most)
        self._cursors |= {(ring.plan.queue, tenant): ring.cursor for ring in rings if ring.plan.shape}
        self._buckets |= gates.drawn
        return [offer.ref for _, offer in chosen]

    def admits(self, rules: Rules, job: JobRecord, now: Micros) -> bool:
        """Let one job pass its gates, if they are open."""
        plan, gates = rules.plan(job.queue), self._gates(now)
        if plan is None:
            return True
        who = job.tenant, limits.group_of(job)
        if rules.holds(job.tenant, job.kind) or gates.opening(plan, *who) != now:
            return False
        gates.enter(plan, *who)
        self._buckets |= gates.drawn
        return True

    def next_at(self, rules: Rules, queue: str, now: Micros) -> Micros | None:
        """Give the instant when a job of a queue can next be claimed."""
        ring = self._ring(rules, queue, self._gates(now), now, 1)
        later = [
            job.available_at
            for job in self._jobs.values()
            if job.state in CLAIMABLE
            and job.queue == queue
            and job.available_at > now
            and not lifecycle.overdue(job, job.available_at)
            and not rules.holds(job.tenant, job.kind)
        ]
        return min((at for at in (ring.next_at(), *later) if at is not None), default=None)

    def standing(self, queue: str, now: Micros) -> Standing:
        """Say what is in use."""
        running = Counter((job.tenant, limits.group_of(job)) for job in self._running(queue))
        buckets = {(per, name): at for (of, per, name), at in self._buckets.items() if of == queue and at > now}
        return Standing(dict(running), buckets)

    def overflow(self, rules: Rules, paused: Collection[str], now: Micros) -> list[Excess]:
        """List jobs beyond full limits."""
        found: dict[str, Excess] = {}
        for rule, limit in rules.sheds:
            if rule.queue in paused:
                continue
            running, waiting = defaultdict(list), defaultdict(list)
            for job in self._running(rule.queue):
                running[limits.subject(limit, job.tenant, limits.group_of(job))].append(job)
            for job in self._due(rules, rule.queue, now):
                waiting[limits.subject(limit, job.tenant, limits.group_of(job))].append(job)
            for name in waiting.keys() - {None}:
                found |= {gone.job.id: gone for gone in beyond(limit, running[name], waiting[name])}
        return [found[id_] for id_ in sorted(found)]

    def _running(self, queue: str) -> list[JobRecord]:
        return [job for job in self._jobs.values() if job.state is State.RUNNING and queue in (ALL, job.queue)]

    def _due(self, rules: Rules, queue: str, now: Micros) -> list[JobRecord]:
        return [
            job
            for job in self._jobs.values()
            if job.queue == queue and lifecycle.runnable(job, now) and not rules.holds(job.tenant, job.kind)
        ]

    def _gates(self, now: Micros) -> Gates:
        return Gates(now, self._count, self._buckets.get)

    def _count(self, subject: Subject) -> int:
        queue, per, name = subject
        limit = limits.Limit(per)
        return sum(limits.subject(limit, job.tenant, limits.group_of(job)) == name for job in self._running(queue))

    def _ring(
        self, rules: Rules, queue: str, gates: Gates, now: Micros, most: int, *, tenant: str | None = None
    ) -> Ring:
        plan = rules.plan(queue) or Plan(queue)
        if tenant is None and plan.roomy and far(plan, len(self._running(queue)), most):
            plan = plan.in_line()
        lanes: dict[str, list[Offer]] = defaultdict(list) if plan.shape else {"": []}
        for job in self._due(rules, queue, now):
            if tenant not in (None, job.tenant):
                continue
            offer = Offer(rank(lifecycle.order(job), None if plan.aging is None else now - plan.aging), job)
            lanes[plan.lane(job.tenant, limits.group_of(job))].append(offer)
        cursor = self._cursors.get((queue, tenant), Cursor())
        places = self._places[queue]
        return Ring(plan, _Lanes(lanes), gates, now, cursor=cursor, most=most, tenant=tenant, places=places)


class _Lanes:
    """The lanes of one queue."""

    def __init__(self, lanes: Mapping[str, list[Offer]]) -> None:
        self._lanes = {name: sorted(lanes[name]) for name in sorted(lanes)}

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        """Show some lanes."""
        names = [name for name in self._lanes if name == first == "" or first <= name < until]
        return [(name, self._lanes[name][:each]) for name in names[:many]]
