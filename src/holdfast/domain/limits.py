"""The rules of flow control: in which order a queue is served, and how much of it at once.

A rule belongs to a queue, or to all of them (`*`). Rules and pauses are kept as pages of the book `flow`, so that they
can be changed while work goes on; `Rules` is what all of them together say. Nothing here looks at jobs: who may go
next is for `gates` and `ring`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND, Micros

ALL = "*"
"""Stands for all queues."""
BOOK = "flow"
"""The book of pages that rules and pauses are kept in."""
PER = ("queue", "tenant", "key")
ORDERS = ("priority", "fair")
FULL = ("wait", "drop", "replace")
ROOMY = 1_000
"""A limit of so many jobs at once, or more, may be far from being reached for long."""
MOST = 1_000_000
"""The largest number that a limit, a burst or a weight can be."""
_UNITS = {"s": SECOND, "min": MINUTE, "h": HOUR, "d": DAY}
_ALSO = {"sec": "s", "second": "s", "m": "min", "minute": "min", "hour": "h", "day": "d"}
"""Other spellings of units that are understood."""
_RATE = re.compile(rf"([0-9]{{1,7}})/([0-9]{{0,4}})({'|'.join((*_UNITS, *_ALSO))})")
_BREAK = "\x1f"
"""Between the tenant and the key of a lane's name; no name contains it."""
_END = "\x20"
"""What stands behind all that begins with a break."""


class Limit(NamedTuple):
    """How fast the jobs of one subject may start, or how many of them may run at once: one of the two."""

    per: str = "queue"
    """Whose limit it is: that of the whole `queue`, of each `tenant` in it, or of each `key`."""
    rate: tuple[int, Micros] | None = None
    """So many jobs in so long a time."""
    burst: int = 1
    """How many may start at once after a quiet time."""
    concurrency: int | None = None
    full: str = "wait"
    """What becomes of jobs that find `concurrency` used up: they wait, are dropped, or replace the oldest."""

    @property
    def what(self) -> str:
        """The word for what is limited."""
        return "rate" if self.concurrency is None else "concurrency"

    @property
    def capacity(self) -> int:
        """How many jobs may run at once, or start at once after a quiet time."""
        return self.burst if self.concurrency is None else self.concurrency

    @property
    def interval(self) -> Micros:
        """The time in which one more job may start."""
        count, period = self.rate or (1, 0)
        return -(-period // count)

    def __str__(self) -> str:
        if self.rate is None:
            return f"{self.concurrency} at once per {self.per}"
        return f"{spelled(self.rate)} per {self.per}"


class Rule(NamedTuple):
    """What was asked for one queue."""

    queue: str
    order: str = "priority"
    weights: Mapping[str, int] = {}
    """How many jobs a tenant has in one round, where it is not one."""
    aging: Micros | None = None
    """A job that has waited for so long goes before all others."""
    limits: tuple[Limit, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it asks for nothing."""
        return self == Rule(self.queue)

    def limited(self, limit: Limit) -> "Rule":
        """Add a limit, in place of one of the same kind."""
        others = self.freed(limit.per, limit.what).limits
        return self._replace(limits=tuple(sorted((*others, limit), key=lambda one: (one.per, one.what))))

    def freed(self, per: str | None = None, what: str | None = None) -> "Rule":
        """Take away the limits of this kind; all, if none is named."""
        kept = (one for one in self.limits if (per or one.per) != one.per or (what or one.what) != one.what)
        return self._replace(limits=tuple(kept))


class Plan(NamedTuple):
    """All that holds for one queue: its own rule and what is said for all queues."""

    queue: str
    shape: str = ""
    """What makes a lane: nothing (one line for all), `t` (a tenant) or `k` (a tenant's key)."""
    weights: Mapping[str, int] = {}
    aging: Micros | None = None
    limits: tuple[tuple[str, Limit], ...] = ()
    """Each with the queue that it was asked for: this one or `*`."""
    nested: bool = False
    """Whether tenants take turns, though their keys have lanes of their own."""
    ordered: bool = False
    """Whether nobody takes turns: lanes are there for limits only, and the best of all that may start goes next."""

    def lane(self, tenant: str, group: str | None) -> str:
        """Name the lane of a job."""
        match self.shape:
            case "t":
                return f"t{tenant}"
            case "k":
                return f"k{tenant}{_BREAK}{group or ''}"
            case _:
                return ""

    def span(self, tenant: str | None = None) -> tuple[str, str]:
        """Give where the lanes of a tenant begin and end, or those of all."""
        if tenant is None:
            return self.shape, chr(ord(self.shape) + 1)
        lane = f"{self.shape}{tenant}"
        return (f"{lane}{_BREAK}", f"{lane}{_END}") if self.shape == "k" else (lane, behind(lane))

    @property
    def roomy(self) -> bool:
        """Whether its limits may be so far that nobody need ask whose a job is: then no lane is needed either. Where a
        limit is small, jobs had better stand in lanes from the beginning.
        """
        own = [(of, limit.concurrency or 0) for of, limit in self.limits if limit.per != "queue"]
        waits = all(limit.full == "wait" for _, limit in self.limits)
        return self.ordered and waits and all(of == self.queue and most >= ROOMY for of, most in own)

    def in_line(self) -> "Plan":
        """Give what holds while the limits of tenants and keys cannot be reached: all jobs may stand in one line."""
        whole = tuple((of, limit) for of, limit in self.limits if limit.per == "queue")
        return self._replace(shape="", limits=whole, ordered=False)

    @property
    def counts(self) -> bool:
        """Whether something can start because something else has ended."""
        return any(limit.concurrency is not None for _, limit in self.limits)


def split(lane: str) -> tuple[str, str | None]:
    """Give the tenant and the key that a lane is for."""
    tenant, _, group = lane[1:].rpartition(_BREAK) if lane.startswith("k") else (lane[1:], "", "")
    return tenant, group or None


def behind(lane: str) -> str:
    """Give a text that stands behind this lane, and before every other that does."""
    return f"{lane}\x01"


def subject(limit: Limit, tenant: str, group: str | None) -> str | None:
    """Name the subject whose limit a job comes under; None if it comes under none."""
    match limit.per:
        case "tenant":
            return tenant
        case "key":
            return None if group is None else f"{tenant}{_BREAK}{group}"
        case _:
            return ""


def parties(limit: Limit, name: str) -> tuple[str | None, str | None]:
    """Give the tenant and the key that a subject's name stands for."""
    match limit.per:
        case "tenant":
            return name, None
        case "key":
            tenant, _, group = name.rpartition(_BREAK)
            return tenant, group
        case _:
            return None, None


def group_of(job: JobRecord) -> str | None:
    """Give the key that a job is limited by."""
    return None if job.flow is None else job.flow.group


class Rules:
    """What all rules and pauses of a store say."""

    def __init__(
        self, rules: Mapping[str, Rule], tenants: frozenset[str] = frozenset(), kinds: frozenset[str] = frozenset()
    ) -> None:
        self.rules = dict(rules)
        self.tenants = tenants
        """Those whose jobs are held back."""
        self.kinds = kinds
        """Those that are held back."""
        self.sheds = tuple(
            (rule, limit) for rule in self.rules.values() for limit in rule.limits if limit.full != "wait"
        )
        """The limits at which jobs are not just kept waiting."""
        self.by_lane = any(
            limit.concurrency is not None and limit.per != "queue" for rule in rules.values() for limit in rule.limits
        )
        """Whether the running jobs of tenants or keys are counted."""
        self._everywhere = self.rules.get(ALL)
        self._plans: dict[str, Plan | None] = {}

    @classmethod
    def read(cls, pages: Iterable[tuple[str, str]]) -> Self:
        """Read the pages (name and body) of the book."""
        rules, paused = {}, {"tenant": set[str](), "kind": set[str]()}
        for name, body in pages:
            what, _, which = name.partition(":")
            if what == "queue":
                rules[which] = kept(body, which).rule
            elif what in paused:
                paused[what].add(which)
        return cls(
            {queue: rule for queue, rule in rules.items() if not rule.empty},
            frozenset(paused["tenant"]),
            frozenset(paused["kind"]),
        )

    def __bool__(self) -> bool:
        return bool(self.rules or self.tenants or self.kinds)

    def plan(self, queue: str) -> Plan | None:
        """Give what holds for a queue; None if nothing does."""
        if queue not in self._plans:
            self._plans[queue] = self._planned(queue)
        return self._plans[queue]

    def laned(self, queue: str) -> bool:
        """Tell whether a queue has lanes."""
        plan = self.plan(queue)
        return plan is not None and plan.shape != ""

    def holds(self, tenant: str, kind: str) -> bool:
        """Tell whether a tenant or a kind is paused."""
        return tenant in self.tenants or kind in self.kinds

    @property
    def everywhere(self) -> bool:
        """Whether something can start in one queue because something has ended in another."""
        return (
            self._everywhere is not None
            and Plan(ALL, limits=tuple((ALL, limit) for limit in self._everywhere.limits)).counts
        )

    def _planned(self, queue: str) -> Plan | None:
        own, everywhere = self.rules.get(queue), self._everywhere
        if not (own or everywhere or self.tenants or self.kinds):
            return None
        own = own or Rule(queue)
        limits = tuple((rule.queue, limit) for rule in (own, everywhere) if rule is not None for limit in rule.limits)
        per = {limit.per for _, limit in limits}
        shape = "k" if "key" in per else "t" if own.order == "fair" or "tenant" in per else ""
        fair = own.order == "fair"
        return Plan(
            queue,
            shape,
            own.weights if fair else {},
            own.aging,
            limits,
            nested=fair and shape == "k",
            ordered=shape != "" and not fair,
        )


NO_RULES = Rules({})


class Kept(NamedTuple):
    """A rule as it is stored: as it holds, and as code last declared it."""

    rule: Rule
    declared: Rule | None = None


def page_name(what: str, which: str) -> str:
    """Name the page of a queue's rule, or of the pause of a tenant or a kind."""
    return f"{what}:{which}"


def spelled(rate: tuple[int, Micros]) -> str:
    """Write a rate as a user does."""
    count, period = rate
    unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if period % size == 0)
    return f"{count}/{'' if period == size else period // size}{unit}"


def parse_rate(value: Any) -> tuple[int, Micros]:
    """Read a rate such as `100/min` or `1/10s`."""
    match = _RATE.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
    count, period = (int(match[1]), int(match[2] or 1) * _UNITS[_ALSO.get(match[3], match[3])]) if match else (0, 0)
    if not 0 < count <= period:
        msg = f"A rate is written like 100/min, 5/s or 1/10min (units: {', '.join(_UNITS)}), not {str(value)[:60]!r}."
        raise BadInput(msg)
    return count, period


def checked(
    *,
    rate: str | None = None,
    burst: int | None = None,
    concurrency: int | None = None,
    per: str = "queue",
    full: str = "wait",
) -> list[Limit]:
    """Make the limits that a caller asks for: of a rate, of jobs at once, or both."""
    _one_of(per, PER, "A limit is per")
    _one_of(full, FULL, "What becomes of jobs at a full limit is")
    if rate is None and concurrency is None:
        msg = "A limit takes rate=, concurrency= or both."
        raise BadInput(msg)
    if burst is not None and rate is None:
        msg = "burst= goes with rate=."
        raise BadInput(msg)
    if full != "wait" and concurrency is None:
        msg = f"full={full!r} goes with concurrency=; what a rate holds back waits."
        raise BadInput(msg)
    asked = []
    if rate is not None:
        asked.append(Limit(per, parse_rate(rate), _number(1 if burst is None else burst, "burst")))
    if concurrency is not None:
        asked.append(Limit(per, concurrency=_number(concurrency, "concurrency"), full=full))
    return asked


def ordered(rule: Rule, order: str, weights: Mapping[str, int] | None, aging: Micros | None) -> Rule:
    """Say in which order a queue is served."""
    _one_of(order, ORDERS, "The order of a queue is")
    if weights is not None and not isinstance(weights, Mapping):
        msg = f"weights= is a mapping of tenants to whole numbers, as in {{'acme': 3}}, not {str(weights)[:60]!r}."
        raise BadInput(msg)
    if weights and order != "fair":
        msg = "weights= goes with order='fair'."
        raise BadInput(msg)
    if aging is not None and aging <= 0:
        msg = "aging= is a time longer than zero."
        raise BadInput(msg)
    shares = {str(tenant): _number(weight, f"The weight of {tenant!r}") for tenant, weight in (weights or {}).items()}
    return rule._replace(order=order, weights=shares, aging=aging)


def agreeing(rules: Sequence[Rule]) -> None:
    """Refuse rules that cannot hold together."""
    everywhere = next((rule for rule in rules if rule.queue == ALL), None)
    if everywhere is not None:
        if everywhere.order != "priority" or everywhere.aging is not None:
            msg = "An order is for one queue; for all queues (*) there are limits only."
            raise BadInput(msg)
        if any(limit.full != "wait" for limit in everywhere.limits):
            msg = "Jobs are dropped or replaced at the limits of one queue; at those of all queues (*) they wait."
            raise BadInput(msg)


def encoded(stored: Kept) -> str:
    """Write a rule as JSON."""
    return json.dumps({"rule": _spelling(stored.rule), "declared": stored.declared and _spelling(stored.declared)})


def kept(body: str, queue: str) -> Kept:
    """Read a rule that was written."""
    try:
        found = json.loads(body)
        declared = found["declared"]
        return Kept(_read(queue, found["rule"]), None if declared is None else _read(queue, declared))
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, BadInput) as error:
        msg = f"The rule of the queue {queue!r} cannot be read; set it again."
        raise StoreError(msg) from error


def _spelling(rule: Rule) -> dict[str, Any]:
    limits = [
        {"per": limit.per, "concurrency": limit.concurrency, "full": limit.full}
        if limit.rate is None
        else {"per": limit.per, "rate": spelled(limit.rate), "burst": limit.burst}
        for limit in rule.limits
    ]
    return {"order": rule.order, "weights": dict(rule.weights), "aging": rule.aging, "limits": limits}


def _read(queue: str, spelling: Mapping[str, Any]) -> Rule:
    rule = ordered(Rule(queue), spelling["order"], spelling["weights"], spelling["aging"])
    for limit in spelling["limits"]:
        for one in checked(**limit):
            rule = rule.limited(one)
    return rule


def _one_of(value: Any, known: tuple[str, ...], sentence: str) -> None:
    if not isinstance(value, str) or value not in known:
        msg = f"{sentence} one of {', '.join(known)}; {str(value)[:60]!r} is not."
        raise BadInput(msg)


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        msg = f"{what} is a whole number from 1 to {MOST:,}, not {str(value)[:60]!r}."
        raise BadInput(msg)
    return value
