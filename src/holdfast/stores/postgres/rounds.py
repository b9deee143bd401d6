"""The short way round the lanes of a queue: completions, a look, the claim and the turn, all by one statement.

It goes where every lane has the same weight and no gate can close. What it takes, and where the turn stops, is what a
`domain.ring.Ring` comes to; if the statement cannot be certain of that, it takes nothing.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord
from holdfast.domain.limits import Plan
from holdfast.domain.moments import Micros
from holdfast.domain.way import Cursor, anew, dealt
from holdfast.port.store import Claim
from holdfast.stores.postgres.ahead import Reach

MOST = 500
"""For so many jobs at the most, fewer lanes than a ring looks at are enough."""
_BREAK = "\x1f"


class Round(NamedTuple):
    """A claim that goes the short way."""

    plan: Plan
    most: int
    reach: Reach
    running: int | None
    """The most jobs of the queue that may be running, if these are limited."""
    waits: bool
    """Whether it waits for its turn first, because others claim as well."""

    def parameters(self, want: Claim, now: Micros | None) -> dict[str, Any]:
        """Give the parameters of `claim_round`."""
        low, high = (f"{self.plan.queue}{_BREAK}{end}" for end in self.plan.span())
        return {
            "now": now, "limit": self.most, "lease_id": want.lease_id, "owner": want.owner, "lease": want.lease,
            "home": self.plan.queue, "low": low, "high": high, "anew": anew(self.most), "running": self.running,
            **self.reach._asdict(),
        }  # fmt: skip

    def in_turn(self, jobs: Iterable[JobRecord], cursor: Cursor) -> list[JobRecord]:
        """Put jobs that were taken, best first, in the order in which they went from where the turn stood."""
        by_party: dict[tuple[str, str | None], list[JobRecord]] = {}
        for job in jobs:
            by_party.setdefault((job.tenant, None if job.flow is None else job.flow.group), []).append(job)
        lanes: dict[str, list[JobRecord]] = {}
        for party, ones in by_party.items():
            lanes.setdefault(self.plan.lane(*party), []).extend(ones)
        if len(lanes) < len(by_party):  # a tenant's jobs with keys and without
            for ones in lanes.values():
                ones.sort(key=lifecycle.order)
        return dealt(self.plan, cursor, self.most, lanes)


class Stood(NamedTuple):
    """What the statement tells besides the jobs it took."""

    cursor: Cursor
    chosen: int
    """How many were to go."""
    certain: bool
    """Whether it was certain who goes."""


def stood(text: str | None) -> Stood:
    """Read it; nothing is told where the queue is paused, or jobs stand in no lane yet."""
    if text is None:
        return Stood(Cursor(), 0, certain=False)
    used, share, chosen, sure, lane = text.split(" ", 4)
    return Stood(Cursor(lane, int(used), int(share)), int(chosen), sure == "1")
