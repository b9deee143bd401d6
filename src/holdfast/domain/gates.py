"""Gates: whether the next job of a subject may start now, and if not, when.

A rate is a bucket of tokens kept as one number, the instant at which it would be full again (the generic cell rate
algorithm): no bucket on record means a full one. A limit of jobs at once is a count of those that run. Both are read
and written in the transaction of the claim, so they hold exactly whoever claims.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.domain import limits
from holdfast.domain.limits import Limit, Plan, Rule
from holdfast.domain.moments import Micros

Subject = tuple[str, str, str]
"""Whose limit: the queue it was asked for (or `*`), what it is per, and the name of the subject."""
Running = Callable[[Subject], int]
Bucket = Callable[[Subject], Micros | None]


class Standing(NamedTuple):
    """What is in use of the limits of one queue (or, for `*`, of those of all)."""

    running: Mapping[tuple[str, str | None], int]
    """Running jobs by tenant and key."""
    buckets: Mapping[tuple[str, str], Micros]
    """The buckets that are not full, by what the rate is per and the name of the subject."""


class Gate(NamedTuple):
    """How one limit stands for one subject."""

    queue: str
    """The queue that it was asked for, or `*`."""
    limit: Limit
    tenant: str | None
    key: str | None
    running: int | None
    """How many of its jobs run, if these are limited."""
    tokens: int | None
    """How many may start now, if a rate is limited."""
    opens_at: Micros | None
    """When the next may start; None if something must end first."""

    @property
    def used(self) -> int:
        """How much of the limit is taken: jobs that run, or tokens that are not in the bucket."""
        return self.limit.burst - (self.tokens or 0) if self.running is None else self.running

    @property
    def full(self) -> bool:
        """Whether the next job must wait."""
        return self.used >= self.limit.capacity


def level(limit: Limit, full_at: Micros | None, now: Micros) -> Micros:
    """Give the instant when a bucket is full again. One that is emptier than it can be by this rate was drawn from at
    another; it starts anew.
    """
    return now if full_at is None or not now < full_at <= now + limit.burst * limit.interval else full_at


def tokens(limit: Limit, full_at: Micros | None, now: Micros) -> int:
    """Count the tokens in a bucket."""
    return (limit.burst * limit.interval - (level(limit, full_at, now) - now)) // limit.interval


def refill(limit: Limit, full_at: Micros | None, now: Micros) -> Micros:
    """Give the instant when a bucket holds a token: now, if it does."""
    return max(now, level(limit, full_at, now) - (limit.burst - 1) * limit.interval)


class Spare(NamedTuple):
    """How little of a queue's limits must be in use for no gate to close, whatever starts."""

    running: int | None
    """The most jobs of the queue that may be running, whosever they are, if these are limited."""
    full_in: Micros | None
    """In how long, at the latest, the bucket is to be full again, if a rate is limited."""
    interval: Micros
    """By how much later it is full again for each job that starts."""


def spare(plan: Plan, jobs: int) -> Spare | None:
    """Say when so many jobs of a queue may start whatever they are; None if that cannot be told by what is in use of
    the queue as a whole, or is never so. Whoever finds it so need not ask any gate.
    """
    if any(of != plan.queue or (limit.rate and limit.per != "queue") for of, limit in plan.limits):
        return None
    running = [limit.concurrency - jobs - 1 for _, limit in plan.limits if limit.concurrency is not None]
    rates = [limit for _, limit in plan.limits if limit.rate is not None]
    full_in = [(limit.burst - jobs) * limit.interval for limit in rates]
    if len(rates) > 1 or min((*running, *full_in), default=-1) < 0:
        return None
    return Spare(min(running, default=None), min(full_in, default=None), sum(limit.interval for limit in rates))


def far(plan: Plan, running: int, jobs: int) -> bool:
    """Tell whether no limit of a tenant or key can be reached if so many jobs of a queue run and so many more start,
    even if all of them were of one: then they may go by one line (`Plan.in_line`).
    """
    counts = [limit.concurrency for _, limit in plan.limits if limit.per != "queue" and limit.concurrency is not None]
    return plan.roomy and running + jobs <= min(counts)


class Gates:
    """The gates of one claim. What passes counts at once for what comes after it."""

    def __init__(self, now: Micros, running: Running, bucket: Bucket) -> None:
        self._now = now
        self._running = running
        self._bucket = bucket
        self._counted: dict[Subject, int] = {}
        self._levels: dict[Subject, Micros | None] = {}
        self.drawn: dict[Subject, Micros] = {}
        """The buckets that tokens were taken from, as they are now."""

    def opening(self, plan: Plan, tenant: str, group: str | None) -> Micros | None:
        """Give the instant when a job of these may start: now, if all gates are open; None, if something must end
        first.
        """
        now = self._now
        at = now
        for subject, limit in _faced(plan, tenant, group):
            if limit.concurrency is not None:
                if self._count(subject) >= limit.concurrency:
                    return None
            else:
                at = max(at, refill(limit, self._level(subject), now))
        return at

    def enter(self, plan: Plan, tenant: str, group: str | None, jobs: int = 1) -> None:
        """Let a job pass, or so many of them."""
        for subject, limit in _faced(plan, tenant, group):
            if limit.concurrency is not None:
                self._counted[subject] = self._count(subject) + jobs
            else:
                full_at = level(limit, self._level(subject), self._now) + jobs * limit.interval
                self._levels[subject] = self.drawn[subject] = full_at

    def room(self, plan: Plan, tenant: str, group: str | None, most: int) -> int:
        """Count the jobs of these that may pass now, up to so many."""
        for subject, limit in _faced(plan, tenant, group):
            if limit.concurrency is not None:
                most = min(most, limit.concurrency - self._count(subject))
            else:
                most = min(most, tokens(limit, self._level(subject), self._now))
        return max(most, 0)

    def learn(self, running: Mapping[Subject, int], buckets: Mapping[Subject, Micros | None]) -> None:
        """Take in what was read ahead; what is known already stays."""
        self._counted = {**running, **self._counted}
        self._levels = {**buckets, **self._levels}

    def _count(self, subject: Subject) -> int:
        if subject not in self._counted:
            self._counted[subject] = self._running(subject)
        return self._counted[subject]

    def _level(self, subject: Subject) -> Micros | None:
        if subject not in self._levels:
            self._levels[subject] = self._bucket(subject)
        return self._levels[subject]


def _faced(plan: Plan, tenant: str, group: str | None) -> list[tuple[Subject, Limit]]:
    """Give the limits that a job comes under, each with its subject."""
    named = [(queue, limit, limits.subject(limit, tenant, group)) for queue, limit in plan.limits]
    return [((queue, limit.per, name), limit) for queue, limit, name in named if name is not None]


def running_of(standing: Standing, limit: Limit, name: str) -> int:
    """Count the running jobs of a subject."""
    return sum(jobs for who, jobs in standing.running.items() if limits.subject(limit, *who) == name)


def gate(queue: str, limit: Limit, name: str, standing: Standing, now: Micros) -> Gate:
    """Say how a limit stands for a subject."""
    if limit.concurrency is not None:
        return _counted(queue, limit, name, running_of(standing, limit, name), now)
    full_at = standing.buckets.get((limit.per, name))
    tenant, key = limits.parties(limit, name)
    return Gate(queue, limit, tenant, key, None, tokens(limit, full_at, now), refill(limit, full_at, now))


def _counted(queue: str, limit: Limit, name: str, running: int, now: Micros) -> Gate:
    tenant, key = limits.parties(limit, name)
    return Gate(queue, limit, tenant, key, running, None, now if running < limit.capacity else None)


def gates_of(
    plan: Plan, tenant: str, group: str | None, standing: Callable[[str], Standing], now: Micros
) -> list[Gate]:
    """Give the gates that a job of this tenant and key must pass."""
    subjects = [(queue, limit, limits.subject(limit, tenant, group)) for queue, limit in plan.limits]
    return [gate(queue, limit, name, standing(queue), now) for queue, limit, name in subjects if name is not None]


def in_use(rule: Rule, standing: Standing, now: Micros) -> list[list[Gate]]:
    """Give, for each limit of a rule, all gates that something has passed lately; of a whole queue, the one it has."""
    return [_passed(rule.queue, limit, standing, now) for limit in rule.limits]


def _passed(queue: str, limit: Limit, standing: Standing, now: Micros) -> list[Gate]:
    whole = {"": 0} if limit.per == "queue" else {}
    if limit.concurrency is None:
        names = whole.keys() | {name for per, name in standing.buckets if per == limit.per}
        return [gate(queue, limit, name, standing, now) for name in sorted(names)]
    running = Counter(whole)
    for who, jobs in standing.running.items():
        if (name := limits.subject(limit, *who)) is not None:
            running[name] += jobs
    return [_counted(queue, limit, name, jobs, now) for name, jobs in sorted(running.items())]
