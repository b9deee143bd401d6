"""Flow control as an application sees it: rules that code declares, and rules as they are stored.

Code declares rules with `app.queue(...)` and `app.limit(...)`; a worker stores them when it starts. Whatever is changed
at run time (here or by `holdfast limits`) stays until code declares something else than it did before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

from holdfast.client.asynchronous import asynchronous
from holdfast.client.registry import text
from holdfast.domain import gates, limits
from holdfast.domain.errors import BadInput, StoreUnavailable
from holdfast.domain.gates import Gate, Standing
from holdfast.domain.limits import BOOK, Kept, Limit, Rule, Rules
from holdfast.domain.moments import Micros, duration, to_datetime
from holdfast.port.store import Page, Store

_TRIES = 20
_PAGES = 1_000


class Use(NamedTuple):
    """How a limit stands for one tenant, one key or the whole queue."""

    tenant: str | None
    key: str | None
    running: int | None
    """How many of its jobs run, where these are limited."""
    tokens: int | None
    """How many jobs may start now, where a rate is limited."""
    opens_at: datetime | None
    """When the next may start; None if one must end first."""
    used: int
    """How much of the limit's capacity is taken: what runs, or what has lately started."""
    full: bool
    """Whether the next must wait."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A stored limit, and what is in use of it."""

    queue: str
    """The queue, or `*` for all."""
    per: str
    rate: str | None
    burst: int | None
    concurrency: int | None
    full: str
    capacity: int
    """How many jobs may run at once, or start at once after a quiet time."""
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A queue whose order is not the usual one."""

    queue: str
    order: str
    weights: Mapping[str, int]
    aging: timedelta | None


class Share(NamedTuple):
    """What a tenant has of a queue."""

    tenant: str
    weight: int
    running: int


class Pauses(NamedTuple):
    """All that is paused."""

    queues: frozenset[str]
    tenants: frozenset[str]
    kinds: frozenset[str]


def rules_of(store: Store) -> Rules:
    """Read the rules that hold."""
    pages: list[Page] = []
    while page := store.pages(BOOK, pages[-1].name if pages else None, _PAGES):
        pages += page
    return Rules.read((page.name, page.body) for page in pages)


def standing_of(store: Store, rules: Rules, most: int | None = None) -> list[tuple[Rule, list[list[Gate]]]]:
    """Give the rules that limit something, by queue, and how each of their limits stands; only the first so many."""
    limiting = [rule for _, rule in sorted(rules.rules.items()) if rule.limits]
    return [(rule, gates.in_use(rule, store.standing(rule.queue), store.now())) for rule in limiting[:most]]


class Limits:
    """What an application knows of its rules. Calling it lists the stored limits."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._declared: dict[str, Rule] = {}

    @property
    def declared(self) -> Mapping[str, Rule]:
        """The rules that a worker stores when it starts."""
        return MappingProxyType(self._declared)

    def declare(
        self,
        queue: str,
        *,
        rate: str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        per: str = "queue",
        full: str = "wait",
    ) -> None:
        """Have workers limit a queue, or all (`*`)."""
        asked = limits.checked(rate=rate, burst=burst, concurrency=concurrency, per=per, full=full)
        self._declare(reduce(Rule.limited, asked, self._declared.get(text(queue, "queue"), Rule(queue))))

    def declare_order(
        self, queue: str, *, order: str, weights: Mapping[str, int] | None, aging: float | timedelta | None
    ) -> None:
        """Have workers serve a queue in this order."""
        rule = self._declared.get(text(queue, "queue"), Rule(queue))
        self._declare(limits.ordered(rule, order, weights, _aging(aging)))

    def _declare(self, rule: Rule) -> None:
        limits.agreeing([*(self._declared | {rule.queue: rule}).values()])
        self._declared[rule.queue] = rule

    def __call__(self) -> list[Limited]:
        """List the stored limits, by queue, with what is in use of them."""
        store = self._store()
        return [
            shown(rule.queue, limit, passed)
            for rule, used in standing_of(store, rules_of(store))
            for limit, passed in zip(rule.limits, used, strict=True)
        ]

    def queues(self) -> list[Ordered]:
        """List the queues whose order is not the usual one."""
        found = (rule for _, rule in sorted(rules_of(self._store()).rules.items()))
        return [
            Ordered(
                rule.queue,
                rule.order,
                dict(rule.weights),
                None if rule.aging is None else timedelta(microseconds=rule.aging),
            )
            for rule in found
            if rule.order != "priority" or rule.aging is not None
        ]

    def shares(self, queue: str) -> list[Share]:
        """List the tenants with running jobs in a queue, those with most first."""
        store = self._store()
        return shares_of(rules_of(store).rules.get(queue, Rule(queue)), store.standing(queue))

    def set(
        self,
        queue: str,
        *,
        rate: str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        per: str = "queue",
        full: str = "wait",
    ) -> None:
        """Limit a queue from now on, in place of a limit of the same kind; takes the same as `app.limit`."""
        asked = limits.checked(rate=rate, burst=burst, concurrency=concurrency, per=per, full=full)
        self.change(queue, lambda rule: reduce(Rule.limited, asked, rule))

    def order(
        self,
        queue: str,
        *,
        order: str = "priority",
        weights: Mapping[str, int] | None = None,
        aging: float | timedelta | None = None,
    ) -> None:
        """Serve a queue in this order from now on; takes the same as `app.queue`."""
        self.change(queue, lambda rule: limits.ordered(rule, order, weights, _aging(aging)))

    def remove(self, queue: str, *, per: str | None = None, what: str | None = None) -> bool:
        """Take the limits of a queue away: all, or those `per` something or of one kind (`rate`, `concurrency`).

        False if there was none. What code declares stays away until it declares something else.
        """
        if per is not None and per not in limits.PER:
            msg = f"A limit is per one of {', '.join(limits.PER)}; {per!r} is not."
            raise BadInput(msg)
        before = self.change(queue, lambda rule: rule.freed(per, what))
        return before.freed(per, what) != before

    def pause(self, what: str, which: str) -> None:
        """Hold back the jobs of a tenant or of a kind."""
        store = self._able()
        store.write_page(Page(BOOK, limits.page_name(what, text(which, what)), "{}"), None)

    def resume(self, what: str, which: str) -> None:
        """Let the jobs of a tenant or of a kind run again."""
        self._able().remove_page(BOOK, limits.page_name(what, text(which, what)))

    def change(self, queue: str, change: Callable[[Rule], Rule]) -> Rule:
        """Change a stored rule, again if another did in between; give the rule as it was."""
        store, name = self._able(), limits.page_name("queue", text(queue, "queue"))
        for _ in range(_TRIES):
            page = store.page(BOOK, name)
            stored = Kept(Rule(queue)) if page is None else limits.kept(page.body, queue)
            changed = change(stored.rule)
            limits.agreeing([*(rules_of(store).rules | {queue: changed}).values()])
            if changed == stored.rule:
                return stored.rule
            body = limits.encoded(stored._replace(rule=changed))
            if store.write_page(Page(BOOK, name, body), None if page is None else page.version):
                return stored.rule
        msg = f"The rule of the queue {queue!r} kept changing while it was being changed; try again."
        raise StoreUnavailable(msg)

    def _able(self) -> Store:
        store = self._store()
        refuse_unable(store)
        return store

    alist = asynchronous(__call__)
    aqueues = asynchronous(queues)
    ashares = asynchronous(shares)
    aset = asynchronous(set)  # noqa: A003 - the method, not the type
    aorder = asynchronous(order)
    aremove = asynchronous(remove)


def able(store: Store) -> bool:
    """Tell whether a store can keep to rules."""
    return store.capabilities.fair and store.capabilities.limits


def refuse_unable(store: Store) -> None:
    """Refuse rules on a store that cannot keep to them."""
    if not able(store):
        msg = "This store has no flow control: orders, limits and pauses of tenants need SQLite or PostgreSQL."
        raise BadInput(msg)


def shares_of(rule: Rule, standing: Standing) -> list[Share]:
    """Say which tenants have what of a queue, those with most first."""
    running: dict[str, int] = {}
    for (tenant, _), jobs in standing.running.items():
        running[tenant] = running.get(tenant, 0) + jobs
    shares = [Share(tenant, rule.weights.get(tenant, 1), jobs) for tenant, jobs in running.items()]
    return sorted(shares, key=lambda share: (-share.running, share.tenant))


def store_declared(store: Store, declared: Mapping[str, Rule]) -> int:
    """Store the rules that code declares, where they are not what it last declared; give the number of those."""
    return sum(_store_one(store, rule) for rule in declared.values())


def _store_one(store: Store, rule: Rule) -> bool:
    name = limits.page_name("queue", rule.queue)
    for _ in range(_TRIES):
        page = store.page(BOOK, name)
        if page is not None and limits.kept(page.body, rule.queue).declared == rule:
            return False
        body = limits.encoded(Kept(rule, rule))
        if store.write_page(Page(BOOK, name, body), None if page is None else page.version):
            return True
    msg = f"The rule of the queue {rule.queue!r} kept changing while it was being stored."
    raise StoreUnavailable(msg)


def _aging(value: float | timedelta | None) -> Micros | None:
    return None if value is None else duration(value, "aging")


def shown(queue: str, limit: Limit, found: list[Gate]) -> Limited:
    """Give a limit as an application sees it."""
    return Limited(
        queue,
        limit.per,
        None if limit.rate is None else limits.spelled(limit.rate),
        None if limit.rate is None else limit.burst,
        limit.concurrency,
        limit.full,
        limit.capacity,
        tuple(
            Use(
                gate.tenant,
                gate.key,
                gate.running,
                gate.tokens,
                None if gate.opens_at is None else to_datetime(gate.opens_at),
                gate.used,
                gate.full,
            )
            for gate in found
        ),
    )
