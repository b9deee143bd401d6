"""Lanes that were read before a ring asked for them, so that a claim need not wait for its own questions.

A ring's first question depends on where the turn stands, which is known only when the turn's row is locked. The
statement that reads ahead begins there by itself, and shows a few lanes more than will be asked for; whether they are
what was asked for is found out here, and if not, the question is put as usual.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

from holdfast.domain import limits
from holdfast.domain.limits import Plan
from holdfast.domain.ring import VISITS, Offer, Rank, rank, reach
from holdfast.domain.way import Cursor

Shown = list[tuple[str, list[Offer]]]
"""Lanes by name, with the best jobs of each."""


class Hint(NamedTuple):
    """What the last claim saw of a queue's lanes."""

    lanes: int = 0
    """How many there were, if all were seen."""
    seen: int = 0
    """How many it went through."""
    shut: bool = False
    """Whether nothing could go."""


class Reach(NamedTuple):
    """How much is read ahead."""

    many: int
    each: int

    @classmethod
    def of(cls, plan: Plan, most: int, hint: Hint) -> Self:
        """Read as much as a claim of so many asks for that begins a round, or as the last one needed; and one lane
        more, because the one at which the turn stands may have been served. Of closed lanes one job is enough.
        """
        many, each = reach(plan, most, hint.lanes)
        return cls(min(max(many, hint.seen) + 1, VISITS), 1 if hint.shut else each)


class Ahead:
    """Lanes that were read, once round from where the turn stands."""

    def __init__(self, span: tuple[str, str], cursor: Cursor, read: Reach, shown: Mapping[str, list[Offer]]) -> None:
        low, high = span
        begin = min(max(low, cursor.lane), high)
        self._each = read.each
        self._shown = shown
        self._names = sorted(shown)
        again = [name for name in self._names if name < begin]
        if len(shown) < read.many:
            self._known = [(low, high)]
        elif again:
            self._known = [(begin, high), (low, limits.behind(again[-1]))]
        else:
            self._known = [(begin, limits.behind(self._names[-1]))]

    def lanes(self, first: str, until: str, many: int, each: int, closed: Callable[[str], bool]) -> Shown | None:
        """Answer a ring's question; None if more would have to be known. Of lanes that are closed nothing can go,
        however much of them is shown.
        """
        end = next((end for begin, end in self._known if begin <= first < end), None)
        if end is None:
            return None
        names = [name for name in self._names if first <= name < min(until, end)][:many]
        if len(names) < many and end < until:
            return None
        lanes = [(name, self._shown[name]) for name in names]
        if each > self._each and not all(len(offers) < self._each or closed(name) for name, offers in lanes):
            return None
        return [(name, offers[:each]) for name, offers in lanes]


def offers(places: str | None, ids: str | None, orders: Sequence[str | None] = ()) -> list[Offer]:
    """Read the jobs of a lane, best first: where they lie and their ids, and what ranks them among those of other
    queues, if anything does.
    """
    if places is None or ids is None:
        return []
    refs = list(zip(places.split(";"), ids.split(";"), strict=True))
    ranks = [_rank(*each) for order in orders for each in zip((order or "").split(";"), ids.split(";"), strict=True)]
    return [Offer(*each) for each in zip(ranks, refs, strict=True)] if ranks else [Offer((), ref) for ref in refs]


def _rank(order: str, id_: str) -> Rank:
    lower, due = order.split()
    return rank((int(lower), int(due), id_), None)
