"""How the paths are written under which jobs wait in lanes; and how far a look for the jobs of one tenant has come."""

from typing import NamedTuple

from holdfast.domain import limits
from holdfast.domain.job import Flow
from holdfast.domain.limits import Limit, Plan, Rules
from holdfast.stores.postgres.marks import Lane, Mark

GROUP = Flow._fields.index("group")
BREAK, END, ASIDE = "\x1f", "\x20", "z"


def path(rules: Rules, plan: Plan, tenant: str, kind: str, group: str | None) -> str | None:
    """Give the path under which a due job waits; None if it waits in the queue itself."""
    if not plan.shape:
        return None
    lane = f"{ASIDE}{tenant}{BREAK}{kind}" if rules.holds(tenant, kind) else plan.lane(tenant, group)
    return f"{plan.queue}{BREAK}{lane}"


def span(plan: Plan, limit: Limit, name: str) -> tuple[str, str]:
    """Give the paths between which the due jobs of a subject wait."""
    if not plan.shape:
        return plan.queue, limits.behind(plan.queue)
    lanes = f"{plan.queue}{BREAK}{plan.shape}"
    match limit.per:
        case "queue":
            return lanes, f"{plan.queue}{BREAK}{ASIDE}"
        case "tenant" if plan.shape == "k":
            return f"{lanes}{name}{BREAK}", f"{lanes}{name}{END}"
        case _:
            return f"{lanes}{name}", limits.behind(f"{lanes}{name}")


class Search(NamedTuple):
    """Looks for the jobs of one tenant."""

    tenant: str
    marks: dict[Lane, Mark]
    """Where the last look stopped."""

    def stopped(self, lane: Lane, at: Mark | None) -> None:
        """Go on from here the next time, or from where the front ends."""
        if at is None:
            self.marks.pop(lane, None)
        else:
            self.marks[lane] = at
