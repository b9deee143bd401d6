"""Whose turn it is: the lanes of a queue stand in a ring, and claims go round it.

Lanes are ordered by name. A visit takes up to the lane's weight of jobs, and the next claim goes on where the last one
stopped (deficit round robin), so that weights are exact in every round, a lane that comes late is served within one
round, and what a claim costs depends neither on the number of lanes nor on what waits in them. A round that a large
claim begins gives every lane several times its weight, because each lane lies in a place of its own. A lane whose gate
is closed is passed over. Inside a lane the usual order holds.

Where tenants take turns and their keys have lanes of their own, a visit is that of a tenant: it takes the best of some
of the tenant's lanes, and the next visit begins at another one.

Where nobody takes turns and lanes are there for limits only, the best of all that may start goes next, whichever lane
it stands in: among more lanes than are compared at once, the best of those, and the next claim compares others.

A store shows its lanes through a `Line`; which job goes next is decided here, the same for every store.
"""

import heapq
from collections.abc import Generator, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.domain import limits
from holdfast.domain.gates import Gates
from holdfast.domain.limits import Plan
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.way import Cursor, anew, goes_on, stretches

VISITS = 1_000
"""The most lanes that one claim looks at; the next one goes on from there."""
WINDOW = 16
"""How many lanes of a tenant are compared with each other, where tenants take turns."""
WIDE = 100
"""How many lanes are compared with each other, where nobody takes turns; half as many when some have been closed."""
PLACES = 10_000
"""For how many tenants it is remembered which of their lanes were looked at last."""
LATER: Micros = SECOND // 20
"""After a look that ended before the ring did, the next is worth while after this."""
Rank = tuple[Any, ...]


class Offer(NamedTuple):
    """A job that could go next."""

    rank: Rank
    """Smaller goes first, inside a lane and among queues."""
    ref: Any
    """The store's own word for the job."""


class Line(Protocol):
    """What a store shows of the due jobs of one queue."""

    def lanes(self, first: str, until: str, many: int, each: int) -> list[tuple[str, list[Offer]]]:
        """Show lanes by name, from `first` on and before `until`: so many, and the best jobs of each, so many.

        A queue without lanes has one, whose name is empty, and is asked for nothing else.
        """
        ...


def rank(order: Rank, aged_before: Micros | None) -> Rank:
    """Rank a job by its order (priority, due time and age): one that has waited too long goes first, oldest first."""
    _, available_at, *age = order
    if aged_before is not None and available_at <= aged_before:
        return (0, available_at, *age)
    return (1, *order)


def reach(plan: Plan, most: int, lanes: int) -> tuple[int, int]:
    """Give how many lanes a claim looks at first if it begins a round, and how many jobs of each; `lanes` is how many
    there were, if known. A store that shows so much before it is asked is asked for no more, most of the time.
    """
    if plan.ordered:
        return max(most, WIDE), _depth(most, lanes) + (most > 1)
    return -(-most // anew(most)), max(_depth(most, lanes), anew(most))


def _depth(most: int, lanes: int) -> int:
    """Give how many jobs of each lane are enough, if all have some."""
    return max(1, -(-most // lanes)) if lanes else 1


class _Stand:
    """A lane, as far as it has been looked into."""

    __slots__ = ("closed", "depth", "group", "name", "offers", "taken", "tenant", "whole")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tenant, self.group = limits.split(name)
        self.offers: list[Offer] = []
        self.depth = self.taken = 0
        self.whole = self.closed = False

    def show(self, offers: list[Offer], each: int) -> None:
        """Learn what stands in the lane; what was taken from it already still stands there."""
        self.depth = each
        self.whole = len(offers) < each
        self.offers = offers[self.taken :]

    @property
    def over(self) -> bool:
        """Whether nothing more can come from it."""
        return self.closed or (self.whole and not self.offers)


class _Party:
    """A tenant whose keys have lanes of their own, as far as they have been looked at."""

    __slots__ = ("ahead", "first", "last", "stands", "tenant")

    def __init__(self, tenant: str, ahead: list[tuple[str, str]]) -> None:
        self.tenant = tenant
        self.ahead = ahead
        """Between which names the lanes are that have not been looked at."""
        self.stands: list[_Stand] = []
        self.first = self.last = ""

    @property
    def over(self) -> bool:
        """Whether nothing more can come from it."""
        return not self.stands and not self.ahead


_Visit = tuple[_Stand, int, list[Offer]]
"""What goes from a lane at once, and how much of the visit it uses up."""


class Ring:
    """One claim's way round the lanes of a queue, for at most so many jobs."""

    def __init__(
        self,
        plan: Plan,
        line: Line,
        gates: Gates,
        now: Micros,
        *,
        cursor: Cursor,
        most: int,
        lanes: int = 0,
        tenant: str | None = None,
        places: MutableMapping[str, str] | None = None,
    ) -> None:
        """`lanes` is how many there were last time, if known: it says how deep to look at once. `places` tells for
        tenants which of their lanes were looked at last, and is kept by the caller; it may be forgotten.

        A claim for one `tenant` goes round that tenant's lanes alone, by a cursor of its own: it is no turn of the
        others.
        """
        self.plan = plan
        self.tenant = tenant
        self.begun = self.cursor = cursor
        self.opens_at: Micros | None = None
        """When the first of the closed gates opens by itself."""
        self.shut = False
        """Whether a whole round has shown that nothing more can go."""
        self.lanes = 0
        """How many lanes there are, if all were seen."""
        self.seen = 0
        """How many were seen."""
        self._line = line
        self._gates = gates
        self._gated = bool(plan.limits)
        self._now = now
        self.most = most
        self._known = lanes
        self._each = _depth(most, lanes)
        self._last = ""
        self._share = cursor.share
        self._places = {} if places is None else places
        self._place = ""
        self._seen = 0
        self._walk = self._way()
        self._next: _Visit | None = None
        self._left = most
        self._walking = self._bulk = False

    def _way(self) -> Generator[_Visit, bool, None]:
        if not self.plan.shape:
            return self._along()
        if self.plan.ordered:
            return self._in_order()
        return self._by_tenants() if self.plan.nested and self.tenant is None else self._round()

    def head(self) -> Offer | None:
        """Give the job that goes next."""
        if self._next is not None:
            stand = self._next[0]
            if self._opening(stand) == self._now:
                return self._next[2][0]
            self._next = self._advance(refused=True)
        elif self._left > 0 and not self.shut:
            self._next = self._advance(refused=False)
        return None if self._next is None else self._next[2][0]

    def take(self) -> Offer:
        """Let the head go."""
        assert self._next is not None
        visit, self._next = self._next, None
        self._pass(visit)
        return visit[2][0]

    def drain(self) -> list[Offer]:
        """Let as many go as may: what asking for one head after another comes to, in one go."""
        gone: list[Offer] = []
        self._bulk = True
        for visit in self._walk if self._left > 0 else ():
            gone += visit[2]
            self._pass(visit)
            if self._left == 0:
                break
        return gone

    def _pass(self, visit: _Visit) -> None:
        stand, used, offers = visit
        stand.taken += len(offers)
        self._left -= len(offers)
        if self._gated:
            self._gates.enter(self.plan, stand.tenant, stand.group, len(offers))
        if not self.plan.ordered:
            self.cursor = Cursor(stand.name, used, self._share)
        if self._place:
            if len(self._places) >= PLACES:
                self._places.clear()
            self._places[stand.tenant] = self._place

    def next_at(self) -> Micros | None:
        """Give the instant when something can go, without letting it; None if something must end first."""
        if self.head() is not None:
            return self._now
        return self.opens_at if self.shut else self._now + LATER

    def _advance(self, *, refused: bool) -> _Visit | None:
        try:
            if not self._walking:
                self._walking = True
                return next(self._walk)
            return self._walk.send(refused)
        except StopIteration:
            return None

    def _opening(self, stand: _Stand) -> Micros | None:
        return self._gates.opening(self.plan, stand.tenant, stand.group) if self._gated else self._now

    def _close(self, stand: _Stand) -> None:
        self._close_until(stand, self._opening(stand))

    def _close_until(self, stand: _Stand, at: Micros | None) -> None:
        stand.closed = True
        if at is not None:
            self.opens_at = at if self.opens_at is None else min(at, self.opens_at)

    def _along(self) -> Generator[_Visit, bool, None]:
        """Go along a queue that has no lanes."""
        stand = _Stand("")
        if self._opening(stand) == self._now:
            [(_, offers)] = self._line.lanes("", "", 1, self.most)
            stand.show(offers, self.most)
        elif any(offers for _, offers in self._line.lanes("", "", 1, 1)):
            self._close(stand)
        yield from self._visit(stand, 0, self.most)
        self.shut = True

    def _round(self) -> Generator[_Visit, bool, None]:
        """Go round the lanes until a round brings nothing."""
        stands: list[_Stand] = []
        begun = self.begun
        for stand in self._stands():
            stands.append(stand)
            self.seen = len(stands)
            used = begun.used if stand.name == begun.lane and len(stands) == 1 and goes_on(self.plan, begun) else 0
            yield from self._visit(stand, used, self._weight(stand))
        self.lanes = len(stands)
        if len(stands) >= VISITS:
            self.cursor = Cursor(stands[-1].name, self._weight(stands[-1]), self._share)
            return
        while stands := [stand for stand in stands if not stand.over]:
            if any(not stand.offers for stand in stands):
                self._deepen(stands, -(-self._left // len(stands)))
            for stand in stands:
                yield from self._visit(stand, 0, self._weight(stand))
        self.shut = True

    def _visit(self, stand: _Stand, used: int, weight: int) -> Generator[_Visit, bool, None]:
        while used < weight and not stand.over:
            if not stand.offers:
                self._deepen([stand], weight - used)
                continue
            if self._opening(stand) != self._now:
                self._close(stand)
                return
            many = self._many(stand, weight - used)
            used += many
            if (yield stand, used, stand.offers[:many]):
                self._close(stand)
                return
            del stand.offers[:many]

    def _many(self, stand: _Stand, most: int) -> int:
        """Count the jobs of a lane whose gate is open that go at once."""
        if not self._bulk:
            return 1
        most = min(most, len(stand.offers), self._left)
        return self._gates.room(self.plan, stand.tenant, stand.group, most) if self._gated else most

    def _stands(self) -> Iterator[_Stand]:
        """Show the lanes, once round from where the last claim stopped."""
        seen = 0
        for begin, until, share, _ in stretches(self.plan, self.cursor, self.most, self.tenant):
            self._share = share
            first, many, each = begin, -(-self._left // share), max(self._each, share)
            while first < until and seen < VISITS:
                many, left = min(max(many, 1), VISITS - seen), self._left
                chunk = self._line.lanes(first, until, many, each)
                for name, offers in chunk:
                    stand = _Stand(name)
                    stand.show(offers, each)
                    seen += 1
                    yield stand
                if len(chunk) < many:
                    break
                first = limits.behind(chunk[-1][0])
                many = 2 * many if self._left == left else min(2 * many, self._left)

    def _by_tenants(self) -> Generator[_Visit, bool, None]:
        """Go round tenants whose keys have lanes of their own, until a round brings nothing."""
        parties: list[_Party] = []
        for party, used in self._parties():
            parties.append(party)
            yield from self._serve(party, used)
        while self._seen < VISITS and (parties := [party for party in parties if not party.over]):
            for party in parties:
                yield from self._serve(party, 0)
        self.shut = self._seen < VISITS
        if not self.shut:
            tenant, last = parties[-1].tenant, parties[-1].last
            self._places[tenant] = last
            self.cursor = Cursor(self.plan.lane(tenant, None), self._weight_of(tenant), self._share)

    def _parties(self) -> Iterator[tuple[_Party, int]]:
        """Show the tenants, once round from where the last claim stopped, and how much of their visits is used up."""
        low, high = self.plan.span()
        begun, (tenant, _) = self.begun, limits.split(self.begun.lane)
        fresh = not low <= begun.lane < high
        open_ = not fresh and goes_on(self.plan, begun)
        start = low if fresh else self.plan.span(tenant)[0 if open_ else 1]
        for begin, until, is_new in ((start, high, fresh), (low, start, True)):
            if is_new:
                self._share = anew(self.most)
            first = begin
            while first < until and self._seen < VISITS and (shown := self._line.lanes(first, until, 1, 1)):
                self._seen += 1
                who, _ = limits.split(shown[0][0])
                lowest, highest = self.plan.span(who)
                place = max(lowest, limits.behind(self._places.get(who, "")))
                yield _Party(who, [(place, highest), (lowest, place)]), begun.used if open_ and who == tenant else 0
                first = highest

    def _serve(self, party: _Party, used: int) -> Generator[_Visit, bool, None]:
        """Visit a tenant: the best that stands in the lanes that were looked at goes first."""
        weight = self._weight_of(party.tenant)
        while used < weight and self._has_some(party, min(weight, self._left)):
            stand = min(party.stands, key=lambda one: one.offers[0].rank)
            self._place = party.first
            if (yield stand, used + 1, stand.offers[:1]):
                self._close(stand)
                continue
            used += 1
            del stand.offers[:1]

    def _has_some(self, party: _Party, each: int) -> bool:
        """Leave out lanes of which nothing can go, and look at further ones if no other is left; false if none is."""
        while True:
            for stand in party.stands:
                if not stand.offers and not stand.over:
                    self._deepen([stand], each)
                if not stand.over and self._opening(stand) != self._now:
                    self._close(stand)
            party.stands = [stand for stand in party.stands if not stand.over]
            if party.stands or not party.ahead:
                return bool(party.stands)
            self._look_ahead(party, each)

    def _look_ahead(self, party: _Party, each: int) -> None:
        party.first, room = "", WINDOW
        while room > 0 and party.ahead:
            first, until = party.ahead.pop(0)
            chunk = self._line.lanes(first, until, room, each) if first < until and self._seen < VISITS else []
            if len(chunk) == room:
                party.ahead.insert(0, (limits.behind(chunk[-1][0]), until))
            room -= len(chunk)
            self._seen += len(chunk)
            for name, offers in chunk:
                party.first, party.last = party.first or name, name
                stand = _Stand(name)
                stand.show(offers, each)
                party.stands.append(stand)

    def _in_order(self) -> Generator[_Visit, bool, None]:
        """Take the best of the lanes that are compared, until nothing more can go."""
        low, high = self.plan.span(self.tenant)
        begun = self.begun.lane
        start = limits.behind(begun) if low <= begun < high else low
        ahead = [(start, high), (low, start)]
        wide, each = reach(self.plan, self.most, self._known)
        heads: list[tuple[Rank, str, _Stand]] = []
        while True:
            while ahead and self.seen < VISITS and len(heads) <= wide // 2:
                for stand in self._next_lanes(ahead, wide - len(heads), each):
                    if not stand.offers:
                        continue
                    if (at := self._opening(stand)) != self._now:
                        self._close_until(stand, at)
                    else:
                        heapq.heappush(heads, (stand.offers[0].rank, stand.name, stand))
            if not heads:
                break
            stand = heads[0][2]
            if self._opening(stand) != self._now or (yield stand, 0, stand.offers[:1]):
                self._close(stand)
                heapq.heappop(heads)
                continue
            del stand.offers[:1]
            if not stand.offers and not stand.whole and self._left > 0:
                self._deepen_some(heads, start)
            elif stand.offers:
                heapq.heapreplace(heads, (stand.offers[0].rank, stand.name, stand))
            else:
                heapq.heappop(heads)
        self.shut = not ahead
        self.lanes = self.seen if self.shut else 0

    def _next_lanes(self, ahead: list[tuple[str, str]], many: int, each: int) -> list[_Stand]:
        """Look at further lanes that are compared; the next claim begins behind them, unless there are no others."""
        first, until = ahead.pop(0)
        chunk = self._line.lanes(first, until, many, each) if first < until else []
        if len(chunk) == many:
            ahead.insert(0, (limits.behind(chunk[-1][0]), until))
        self.seen += len(chunk)
        stands = []
        for name, offers in chunk:
            stand = _Stand(name)
            stand.show(offers, each)
            stands.append(stand)
            self._last = name
        self.cursor = Cursor(self._last) if ahead and self._last else self.begun
        return stands

    def _deepen_some(self, heads: list[tuple[Rank, str, _Stand]], start: str) -> None:
        """Look deeper into the lanes of which hardly anything is known, those on each side of `start` at once."""
        shallow = [stand for _, _, stand in heads if len(stand.offers) <= 1 and not stand.whole]
        for side in (True, False):
            if some := [stand for stand in shallow if (stand.name < start) is side]:
                self._deepen(some, -(-self._left // len(heads)))
        heads[:] = [(stand.offers[0].rank, stand.name, stand) for _, _, stand in heads if stand.offers]
        heapq.heapify(heads)

    def _deepen(self, stands: Sequence[_Stand], share: int) -> None:
        """Look deeper into lanes: so many jobs further, at least."""
        if len(stands) == 1:
            [stand] = stands
            each = max(2 * stand.depth, stand.taken + share)
            shown = self._line.lanes(stand.name, limits.behind(stand.name), 1, each)
            stand.show(shown[0][1] if shown else [], each)
            return
        each = max(max(stand.depth, stand.taken + share) for stand in stands) + 1
        names = [stand.name for stand in stands]
        shown_by = dict(self._line.lanes(min(names), limits.behind(max(names)), VISITS, each))
        for stand in stands:
            stand.show(shown_by.get(stand.name, []), each)

    def _weight(self, stand: _Stand) -> int:
        return self._weight_of(stand.tenant)

    def _weight_of(self, tenant: str) -> int:
        return self.plan.weights.get(tenant, 1) * self._share


def choose(rings: Sequence[Ring], most: int) -> list[tuple[str, Offer]]:
    """Take jobs from queues, the best of their heads first; give each with its queue."""
    if len(rings) == 1 and rings[0].most <= most:
        return [(rings[0].plan.queue, offer) for offer in rings[0].drain()]
    chosen: list[tuple[str, Offer]] = []
    while len(chosen) < most:
        heads = [(head.rank, place) for place, ring in enumerate(rings) if (head := ring.head()) is not None]
        if not heads:
            break
        ring = rings[min(heads)[1]]
        chosen.append((ring.plan.queue, ring.take()))
    return chosen
