"""How the flow of jobs is governed: orders, limits, and what is paused."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import Literal

from holdfast.client.asynchronous import asynchronous
from holdfast.client.limits import Limits, Pauses, rules_of
from holdfast.client.registry import queue_name, text
from holdfast.domain.errors import BadInput
from holdfast.domain.limits import ALL
from holdfast.port.store import Store

Per = Literal["queue", "tenant", "key"]


class Governor(ABC):
    """Says in which order the jobs of one store go, how fast, and which do not."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """The store whose jobs these are."""

    @cached_property
    def limits(self) -> Limits:
        """The stored limits, which calling it lists: set, order and remove them, and see who has which share."""
        return Limits(lambda: self.store)

    def queue(
        self,
        name: str,
        *,
        order: Literal["priority", "fair"] = "priority",
        weights: Mapping[str, int] | None = None,
        aging: float | timedelta | None = None,
    ) -> None:
        """Have workers serve a queue by priority, or tenant by tenant (`fair`), with `weights` for some of them.

        A job that has waited for `aging` since it was due goes before all others.
        """
        self.limits.declare_order(name, order=order, weights=weights, aging=aging)

    def limit(
        self,
        queue: str,
        *,
        rate: str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        per: Per = "queue",
        full: Literal["wait", "drop", "replace"] = "wait",
    ) -> None:
        """Have workers limit a queue (or all: `*`): how fast its jobs start (`rate="100/min"`, of which `burst` at
        once), how many run at once (`concurrency`), or both; in all, for each tenant, or for each key.

        The key is what `using(group=...)` says. `full` says what becomes of jobs that find as many running as may:
        they wait, are dropped, or replace the oldest.
        """
        self.limits.declare(queue, rate=rate, burst=burst, concurrency=concurrency, per=per, full=full)

    def unlimit(
        self, queue: str, *, per: Per | None = None, what: Literal["rate", "concurrency"] | None = None
    ) -> bool:
        """Take stored limits of a queue away, all or some; false if there was none."""
        return self.limits.remove(queue, per=per, what=what)

    def pause(self, queue: str | None = None, *, tenant: str | None = None, kind: str | None = None) -> None:
        """Let no worker claim from a queue, or jobs of a tenant, or of a kind."""
        match _one(queue=queue, tenant=tenant, kind=kind):
            case "queue", which:
                self.store.pause(queue_name(which, "pause each by its name, or stop the workers"))
            case what, which:
                self.limits.pause(what, which)

    def resume(self, queue: str | None = None, *, tenant: str | None = None, kind: str | None = None) -> None:
        """Let workers claim from a queue again, or jobs of a tenant, or of a kind."""
        match _one(queue=queue, tenant=tenant, kind=kind):
            case "queue", which:
                if which == ALL and ALL not in (held := self.store.paused()):
                    queue_name(which, f"resume each by its name (paused: {', '.join(sorted(held)) or 'none'})")
                self.store.resume(which)
            case what, which:
                self.limits.resume(what, which)

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        return self.store.paused()

    def pauses(self) -> Pauses:
        """Name all that is paused: queues, tenants and kinds."""
        rules = rules_of(self.store)
        return Pauses(self.store.paused(), rules.tenants, rules.kinds)

    aunlimit = asynchronous(unlimit)
    apause = asynchronous(pause)
    aresume = asynchronous(resume)
    apaused = asynchronous(paused)
    apauses = asynchronous(pauses)


def _one(*, queue: str | None, tenant: str | None, kind: str | None) -> tuple[str, str]:
    given = (("queue", queue), ("tenant", tenant), ("kind", kind))
    named = [(what, which) for what, which in given if which is not None]
    if len(named) != 1:
        msg = "Name one queue, tenant= or kind= at a time."
        raise BadInput(msg)
    [(what, which)] = named
    return what, text(which, "queue") if what == "queue" else which
