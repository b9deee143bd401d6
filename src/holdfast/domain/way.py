"""The way once round the lanes of a queue, and where the last claim stopped on it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.domain import limits
from holdfast.domain.limits import Plan

AT_ONCE = 10
"""About how many lanes a large claim visits."""
_T = TypeVar("_T")


class Cursor(NamedTuple):
    """Where the last claim stopped: the lane, how many of its visit are used up, and how often the round that is under
    way gives a lane its weight.
    """

    lane: str = ""
    used: int = 0
    share: int = 1


def anew(most: int) -> int:
    """Give how often a round that is begun by a claim of so many jobs gives a lane its weight."""
    return max(1, most // AT_ONCE)


def goes_on(plan: Plan, cursor: Cursor) -> bool:
    """Tell whether the last visit was not used up."""
    tenant, _ = limits.split(cursor.lane)
    return cursor.lane.startswith(plan.shape) and cursor.used < plan.weights.get(tenant, 1) * cursor.share


class Stretch(NamedTuple):
    """A part of the way round: from lane to lane, as far as these names reach."""

    first: str
    until: str
    share: int
    """How often a lane is given its weight."""
    used: int
    """How many of the visit of the lane `first` are used up."""


def stretches(plan: Plan, cursor: Cursor, most: int, tenant: str | None = None) -> list[Stretch]:
    """Give the way once round the lanes, from where the last claim stopped, for a claim of so many jobs."""
    low, high = plan.span(tenant)
    share = anew(most)
    if not low <= cursor.lane < high:
        return [Stretch(low, high, share, 0)]
    open_ = goes_on(plan, cursor)
    start = cursor.lane if open_ else limits.behind(cursor.lane)
    return [Stretch(start, high, cursor.share, cursor.used if open_ else 0), Stretch(low, start, share, 0)]


def dealt(plan: Plan, cursor: Cursor, most: int, lanes: Mapping[str, Sequence[_T]]) -> list[_T]:
    """Put what a claim took of each lane, all with the same weight, in the order in which a ring lets it go."""
    gone: list[_T] = []
    rest: list[Sequence[_T]] = []
    names, share = sorted(lanes), 1
    for first, until, share, used in stretches(plan, cursor, most):
        for name in names:
            if first <= name < until:
                many = share - used if name == first else share
                gone += lanes[name][:many]
                rest.append(lanes[name][many:])
    while rest := [jobs for jobs in rest if jobs]:
        for jobs in rest:
            gone += jobs[:share]
        rest = [jobs[share:] for jobs in rest]
    return gone
