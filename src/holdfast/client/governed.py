"""How the queues with rules stand, told in a bounded way: one read of the rules, and one of each queue.

Of the tenants and keys that a limit or a queue is shared among, the fullest are told and the others are counted, so
that ten thousand of them make no page long. Whoever is bound to a tenant is told of that tenant alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from holdfast.client.limits import Limited, Pauses, Share, rules_of, shares_of, shown
from holdfast.domain import gates
from holdfast.domain.gates import Gate
from holdfast.domain.limits import Limit, Rule
from holdfast.port.store import Store

MOST = 50
"""The most tenants or keys that are told of one limit or of one queue."""


@dataclass(frozen=True, slots=True)
class Fullness:
    """A limit, with the fullest of those that use it."""

    limit: Limited
    left_out: int
    """How many others use it."""
    full: int
    """How many of all are at the limit."""


@dataclass(frozen=True, slots=True)
class Governed:
    """A queue with rules."""

    queue: str
    """The queue, or `*` for all."""
    order: str
    weights: Mapping[str, int]
    aging: timedelta | None
    limits: tuple[Fullness, ...]
    shares: tuple[Share, ...]
    """Of a fair queue, the tenants with most running jobs."""
    left_out: int
    """How many other tenants have running jobs there."""
    running: int
    """How many jobs of all tenants run, of a fair queue."""


@dataclass(frozen=True, slots=True)
class Flow:
    """All that is governed, and all that is paused."""

    queues: tuple[Governed, ...]
    more: int
    """How many queues with rules were not looked at."""
    paused: Pauses


def flow(store: Store, *, tenant: str | None = None, queue: str | None = None, most: int | None = None) -> Flow:
    """Look at all queues with rules, or at one, or at the first so many; of everybody, or of one tenant alone."""
    rules = rules_of(store)
    found = [rule for name, rule in sorted(rules.rules.items()) if queue in (None, name)]
    looked = [look(store, rule, tenant) for rule in found[:most]]
    if tenant is None:
        return Flow(tuple(looked), len(found) - len(looked), Pauses(store.paused(), rules.tenants, rules.kinds))
    concerned = tuple(each for each in looked if each.limits or each.shares or each.weights)
    return Flow(concerned, 0, Pauses(frozenset(), rules.tenants & {tenant}, frozenset()))


def look(store: Store, rule: Rule, tenant: str | None = None) -> Governed:
    """Look at one queue with rules."""
    standing = store.standing(rule.queue)
    used = zip(rule.limits, gates.in_use(rule, standing, store.now()), strict=True)
    limits = [_fullness(rule.queue, limit, passed, tenant) for limit, passed in used]
    shares = shares_of(rule, standing) if rule.order == "fair" else []
    own = [share for share in shares if tenant in (None, share.tenant)]
    return Governed(
        rule.queue,
        rule.order,
        {name: weight for name, weight in rule.weights.items() if tenant in (None, name)},
        None if rule.aging is None else timedelta(microseconds=rule.aging),
        tuple(each for each in limits if tenant is None or each.limit.uses),
        tuple(own[:MOST]),
        len(own[MOST:]),
        sum(share.running for share in own),
    )


def _fullness(queue: str, limit: Limit, passed: list[Gate], tenant: str | None) -> Fullness:
    uses = [gate for gate in passed if tenant is None or gate.tenant == tenant]
    uses.sort(key=lambda gate: (-gate.used, gate.tenant or "", gate.key or ""))
    return Fullness(shown(queue, limit, uses[:MOST]), len(uses[MOST:]), sum(gate.full for gate in uses))
