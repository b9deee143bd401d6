"""How a store object claims: from the front of every lane, from the marks, or by rules."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, LiteralString, NamedTuple

import psycopg

from holdfast.domain.errors import StoreError
from holdfast.domain.gates import Spare
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.port.store import Claim, TurnedAway
from holdfast.stores.postgres import arrays, gate, rows, sql
from holdfast.stores.postgres.marks import START, Lane, Mark, Marks
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.rounds import Round, stood
from holdfast.stores.postgres.settlement import Settlement, apart, completed, completing, completion, telling
from holdfast.stores.postgres.swift import Loaded, swiftly
from holdfast.stores.postgres.trouble import BAD_ROW
from holdfast.stores.postgres.turns import Known, Turns

Done = tuple[set[str], list[JobRecord]]
"""The ids of what was completed, and what was claimed."""


_FEW = 100
"""So few jobs at the most are claimed the shortest way: there is nothing to do, so one is what comes."""
_MOMENT = 1.0
_TOLD = -2
"""Where a row tells something besides: how the turn stood, or one of these."""
_EMPTY, _TURNED_AWAY = 1, 2


class Look(NamedTuple):
    """A statement that claims where no rule holds."""

    statement: LiteralString
    parameters: dict[str, Any]
    front: bool
    """It looks from the front of its lanes, and not from the marks."""
    lone: bool = False
    """It takes nothing if there is a second lane; and tells whether there is nothing at all, if it completes others."""
    gated: bool = False
    """It takes nothing if too many claims are under way; and tells so."""

    def told(self, completes: Sequence[Move], found: Sequence[Sequence[Any]]) -> int | None:
        """Give what its rows tell besides."""
        return found[0][_TOLD] if self.gated or (self.lone and completes) else None

    def is_short(self, completes: Sequence[Move]) -> bool:
        """Tell whether it can be sent the shortest way: it brings few jobs, and no value of it needs a driver."""
        return not completes and self.parameters["limit"] <= _FEW and list not in map(type, self.parameters.values())


class Ready(NamedTuple):
    """The next claim, made ready by one that found nothing: it will be sent when somebody calls, while a job waits."""

    want: Claim
    known: Known
    loaded: Loaded


class Claims:
    """The claims of one store object."""

    def __init__(
        self,
        pool: Pool,
        turns: Turns,
        given: Callable[[], Micros | None],
        nearest: Callable[[], Connection | None],
    ) -> None:
        self.marks = Marks()
        self._pool = pool
        self._schema = pool.address.schema
        self._turns = turns
        self._given = given
        self._nearest = nearest
        """Gives the connection that a call has just come over, to the thread that heard it."""
        self._took_at = self._turned_at = float("-inf")
        self._unanswered: set[str] = set()
        """Lease ids of claims of which it is not known what they took."""
        self._ready: Ready | None = None

    def trip(self, completes: Sequence[Move], want: Claim) -> Done:
        """Complete and claim, in one transaction."""
        if (done := self._at_once(completes, want)) is not None:
            return done
        narrowed, ruled = self._turns.narrowed(want) if want.limit > 0 else (want, False)
        way = self._way(narrowed) if ruled else self._by_order
        tries = iter([want.lease_id in self._unanswered])

        def work(db: Connection) -> Done:
            if next(tries, True):
                self.marks.failed()
                if answer := self._first_answer(db, want):
                    return answer
            return way(db, completes, narrowed)

        try:
            done = self._pool.run(work)
        except StoreError:
            self._unanswered.add(want.lease_id)
            raise
        self._unanswered.discard(want.lease_id)
        return self._ended(want, done, ruled=ruled)

    def _at_once(self, completes: Sequence[Move], want: Claim) -> Done | None:
        """Send what was made ready, over the connection that the call came over. None if it is not what is wanted now,
        or if that fails: then the usual way is the second try.
        """
        ready, self._ready = self._ready, None
        if ready is None or completes or not self._is(ready, want):
            return None
        near = self._nearest()
        if near is None:
            return None
        try:
            claimed = rows.claimed(ready.loaded.rows(near, want.lease_id), want)
            if claimed:
                self.marks.answered()
            elif self._turns.knows(ready.known):
                claimed = self._around(near, want)
            else:  # there may be a rule
                return None
        except psycopg.Error:
            self._unanswered.add(want.lease_id)
            return None
        return self._ended(want, (set(), claimed), ruled=False)

    def _ended(self, want: Claim, done: Done, *, ruled: bool) -> Done:
        """Learn how a claim ended, and make ready the next if it found nothing."""
        if done[1]:
            self._took_at = time.monotonic()
        elif not ruled and not isinstance(done[1], TurnedAway):
            self._ready = self._made_ready(want)
        return done

    def _made_ready(self, want: Claim) -> Ready | None:
        """Make ready what is sent if the same is asked for again: where no rule holds, and one lane is known."""
        known = self._turns.known
        if not 0 < want.limit <= _FEW or want.id is not None or known or known.pages or self._given() is not None:
            return None
        asked = look(self._schema, want, self.marks, None, None, ahead=True)
        if not asked.lone:
            return None
        return Ready(want, known, swiftly(asked.statement).loaded(asked.parameters, "lease_id"))

    def _is(self, ready: Ready, want: Claim) -> bool:
        """Tell whether a claim is what was made ready, but for its id, and nothing else was learnt since."""
        same = want[2:] == ready.want[2:] and want.owner == ready.want.owner
        return same and ready.known is self._turns.known and want.lease_id not in self._unanswered

    @property
    def busy(self) -> bool:
        """Whether something was claimed a moment ago."""
        return time.monotonic() - self._took_at < _MOMENT

    @property
    def full(self) -> bool:
        """Whether somebody was turned away a moment ago."""
        return time.monotonic() - self._turned_at < _MOMENT

    def _way(self, want: Claim) -> Callable[[Connection, Sequence[Move], Claim], Done]:
        """Choose the way of a claim by rules."""
        if (spare := self._turns.spare(want)) is not None:
            return partial(self._by_spare, spare)
        if (round_ := self._turns.round(want)) is not None:
            return partial(self._by_round, round_)
        return self._by_rules

    def look(self, want: Claim, ends: str | None = None, spare: Spare | None = None) -> Look:
        """Choose the statement that claims where no rule holds, or while limits leave so much to spare, and completes
        others if `ends` is not None.
        """
        return look(self._schema, want, self.marks, self._given(), ends, spare=spare)

    def _first_answer(self, db: Connection, want: Claim) -> Done | None:
        """Give what a claim got whose answer never came."""
        ours = db.execute(sql.statement(self._schema, "leased"), {"lease_id": want.lease_id}).fetchall()
        return (set(), [rows.record(row) for row in ours]) if ours else None

    def _by_order(self, db: Connection, completes: Sequence[Move], want: Claim) -> Done:
        """Complete and claim by one statement."""
        if want.limit <= 0:
            return Settlement(db, self._schema, self._given()).complete(completes) if completes else set(), []
        asked = self.look(want, telling(completes) if completes else None)
        began = time.monotonic()
        if asked.is_short(completes):
            found: list[Any] | None = swiftly(asked.statement).rows(db, asked.parameters)
        else:
            found = self._sent(db, asked, completes)
        if found is None:
            return Settlement(db, self._schema, self._given()).complete(completes), []
        done = completed(completes, found) if completes else set()
        told, claimed = asked.told(completes, found), rows.claimed(found, want)
        if told == _TURNED_AWAY:
            self._turned_at = time.monotonic()
            return done, TurnedAway()
        if asked.lone and not claimed and told != _EMPTY:
            return done, self._around(db, want)
        if not claimed and not asked.lone:
            self.marks.found_nothing()
        if want.id is None:
            self.marks.took(claimed, want.limit, time.monotonic() - began, front=asked.front)
        return done, claimed

    def _around(self, db: Connection, want: Claim) -> list[JobRecord]:
        """Look round all lanes, because what may be the only one gave nothing."""
        asked = look(self._schema, want, self.marks, self._given(), None, around=True)
        began = time.monotonic()
        claimed = rows.claimed(sql.ask(db, asked.statement, asked.parameters), want)
        ended = time.monotonic()
        self.marks.in_vain(claimed, ended)
        if not claimed:
            self.marks.found_nothing()
        self.marks.took(claimed, want.limit, ended - began, front=True)
        return claimed

    def _by_spare(self, spare: Spare, db: Connection, completes: Sequence[Move], want: Claim) -> Done:
        """Claim by order as long as limits are that far from full; else by rules."""
        asked = self.look(want, telling(completes) if completes else None, spare)
        began = time.monotonic()
        found = self._sent(db, asked, completes)
        if found is None:
            return Settlement(db, self._schema, self._given()).complete(completes), []
        done = completed(completes, found) if completes else set()
        claimed = rows.claimed(found, want)
        if not claimed:  # nothing is due, or not enough to spare
            if asked.lone and asked.told(completes, found) != _EMPTY:
                self.marks.not_alone(time.monotonic())
            return done, self._by_rules(db, (), want)[1]
        waited = 0.0 if asked.front else time.monotonic() - began  # for its turn, perhaps: not what the look cost
        self.marks.took(claimed, want.limit, waited, front=asked.front)
        return done, claimed

    def _by_round(self, way: Round, db: Connection, completes: Sequence[Move], want: Claim) -> Done:
        """Go once round the lanes, if it is certain who goes and nobody else is going; else by rules."""
        ends = telling(completes) if completes else None
        text = sql.statement(
            self._schema, "claim_round", counted=way.running is not None, alone=True, within=True, ends=ends
        )
        asked = Look(text, way.parameters(want, self._given()), front=False)
        found = self._sent(db, asked, completes, first=partial(self._turns.lock, db, want) if way.waits else None)
        if found is None:
            return Settlement(db, self._schema, self._given()).complete(completes), []
        done = completed(completes, found) if completes else set()
        claimed, told = rows.claimed(found, want), stood(found[0][_TOLD])
        moved = told.certain and told.chosen > len(claimed) == 0 and not way.waits  # the turn, by somebody else
        self._turns.went(way, certain=told.certain, moved=moved)
        if claimed or (told.certain and not told.chosen):
            return done, way.in_turn(claimed, told.cursor)
        if moved:
            return done, self._by_round(way._replace(waits=True), db, (), want)[1]
        return done, self._by_rules(db, (), want)[1]

    def _sent(
        self, db: Connection, asked: Look, completes: Sequence[Move], first: Callable[[], None] | None = None
    ) -> list[Any] | None:
        """Complete and claim by one statement, and something before it in the same trip; give the rows. None if some
        completion cannot be written.
        """
        values = {**asked.parameters, **(completion(completes, self._given()) if completes else {})}
        try:
            with apart(db):
                if first is None:
                    return sql.ask(db, asked.statement, values)
                with db.pipeline():
                    first()
                    found = sql.sent(db, asked.statement, values)
                return found.fetchall()
        except BAD_ROW:
            if not completes:
                raise
            return None

    def _by_rules(self, db: Connection, completes: Sequence[Move], want: Claim) -> Done:
        """Wait for a turn, and claim in as few trips as there are questions."""
        try:
            with apart(db), db.pipeline():
                done = self._complete(db, completes)
                claimed = self._turns.claim(db, want)
        except BAD_ROW:
            if not completes:
                raise
            return Settlement(db, self._schema, self._given()).complete(completes), []
        self._turns.locked(want)
        return completed(completes, done.fetchall()) if completes else set(), claimed()

    def _complete(self, db: Connection, completes: Sequence[Move]) -> Any:
        if not completes:
            return None
        return db.execute(completing(self._schema, completes), completion(completes, self._given()))


def look(
    schema: str,
    want: Claim,
    marks: Marks,
    now: Micros | None,
    ends: str | None,
    *,
    spare: Spare | None = None,
    around: bool = False,
    ahead: bool = False,
) -> Look:
    """Choose the statement that claims: one job, from the marks, from what may be the only lane, or from the front; and
    only as long as the limits of its queue leave so much to `spare`. One that looks `around` finds every lane, and what
    seems to be in somebody's hands; one that is made ready `ahead` may never be sent, and is the answer to a call.
    """
    here = time.monotonic()
    lanes, alone = (None, None) if around else (marks.lanes(here), marks.alone(here))
    shared = _shared(want, now)
    careful = (not ahead and marks.careful()) or around or spare is not None  # rules lock what does not go after all
    text = partial(sql.statement, schema, ends=ends, careful=careful)
    if spare is not None:
        text = partial(text, within=True, counted=spare.running is not None, draws=spare.full_in is not None)
        shared |= {**spare._asdict(), "home": next(iter(want.queues or ()))}
    if want.id is not None:
        return Look(text("claim_one"), {**shared, "id": want.id}, front=False)
    gated = want.defers and not around and spare is None
    if gated:
        text = partial(text, gated=True)
        shared |= {"places": gate.places(want), "gate": gate.key(schema, want)}
    if lanes is not None and (marked := _wanted(lanes, want)):
        if len(marked) == 1:
            lane, most, mark = marked[0]
            return Look(text("claim_lone"), {**shared, **_lone(lane, most, mark)}, front=False, gated=gated)
        return Look(text("claim", "marked_lanes"), {**shared, **_marked(marked)}, front=False, gated=gated)
    if not ahead:
        marks.looks(here)
    named = None if want.queues is None else {queue: most for queue, most in want.queues.items() if most > 0}
    if alone is not None and (alone.queue not in want.full if named is None else named.keys() == {alone.queue}):
        part = "alone" if named is None else "alone_in_queue"
        most = want.limit if named is None else min(named[alone.queue], want.limit)
        parameters = {**shared, **_lone(alone, most, START)}
        if ahead:
            return Look(sql.statement(schema, "claim_ready", part), parameters, front=True, lone=True)
        return Look(text("claim_lone", part), parameters, front=True, lone=True, gated=gated)
    if named is None:
        every = {**shared, "full": arrays.texts(list(want.full))}
        return Look(text("claim", "all_lanes"), every, front=True, gated=gated)
    return Look(text("claim", "named_lanes"), {**shared, **_named(want)}, front=True, gated=gated)


def _shared(want: Claim, now: Micros | None) -> dict[str, Any]:
    return {"now": now, "limit": want.limit, "lease_id": want.lease_id, "owner": want.owner, "lease": want.lease}


def _marked(marked: Sequence[tuple[Lane, int, Mark]]) -> dict[str, Any]:
    return {
        "queues": [lane.queue for lane, _, _ in marked],
        "most": [most for _, most, _ in marked],
        "ranks": [lane.rank for lane, _, _ in marked],
        "mark_ats": [mark.at for _, _, mark in marked],
        "mark_ids": [mark.id for _, _, mark in marked],
    }


def _named(want: Claim) -> dict[str, Any]:
    named = {queue: min(most, want.limit) for queue, most in (want.queues or {}).items() if most > 0}
    return {"queues": arrays.texts(list(named)), "most": arrays.numbers(list(named.values()))}


def _lone(lane: Lane, most: int, mark: Mark) -> dict[str, Any]:
    return {"queue": lane.queue, "rank": lane.rank, "mark_at": mark.at, "mark_id": mark.id, "limit": most}


def _wanted(lanes: dict[Lane, Mark], want: Claim) -> list[tuple[Lane, int, Mark]]:
    """Keep the lanes a claim asks for, with the most it wants of each."""
    if want.queues is None:
        return [(lane, want.limit, mark) for lane, mark in lanes.items() if lane.queue not in want.full]
    room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    return [(lane, room[lane.queue], mark) for lane, mark in lanes.items() if lane.queue in room]
