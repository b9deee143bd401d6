"""How a store object claims: from the front of every lane, from the marks, or by rules."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, LiteralString

from holdfast.domain.errors import StoreError
from holdfast.domain.gates import Spare
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.port.store import Claim
from holdfast.stores.postgres import rows, sql
from holdfast.stores.postgres.lanes import GROUP
from holdfast.stores.postgres.marks import Lane, Mark, Marks
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.settlement import Settlement, apart, completing, completion
from holdfast.stores.postgres.trouble import BAD_ROW
from holdfast.stores.postgres.turns import Turns

Done = tuple[set[str], list[JobRecord]]
"""The ids of what was completed, and what was claimed."""


class Claims:
    """The claims of one store object."""

    def __init__(self, pool: Pool, turns: Turns, given: Callable[[], Micros | None]) -> None:
        self.marks = Marks()
        self._pool = pool
        self._schema = pool.address.schema
        self._turns = turns
        self._given = given
        self._unanswered: set[str] = set()
        """Lease ids of claims of which it is not known what they took."""

    def trip(self, completes: Sequence[Move], want: Claim) -> Done:
        """Complete and claim, in one transaction."""
        narrowed, ruled = self._turns.narrowed(want) if want.limit > 0 else (want, False)
        spare = self._turns.spare(narrowed) if ruled else None
        way = self._by_rules if ruled and spare is None else partial(self._by_order, spare=spare)
        tries = iter([want.lease_id in self._unanswered])
        try:
            done = self._pool.run(
                lambda db: (self._first_answer(db, want) if next(tries, True) else None) or way(db, completes, narrowed)
            )
        except StoreError:
            self._unanswered.add(want.lease_id)
            raise
        self._unanswered.discard(want.lease_id)
        return done

    def look(self, want: Claim, spare: Spare | None = None) -> tuple[LiteralString, dict[str, Any], bool]:
        """Choose the statement that claims where no rule holds, or as long as its limits leave so much to spare."""
        return look(self._schema, want, self.marks.lanes(time.monotonic()), self._given(), spare)

    def _first_answer(self, db: Connection, want: Claim) -> Done | None:
        """Give what a claim got whose answer never came."""
        ours = db.execute(sql.statement(self._schema, "leased"), {"lease_id": want.lease_id}).fetchall()
        return (set(), [rows.record(row) for row in ours]) if ours else None

    def _by_order(self, db: Connection, completes: Sequence[Move], want: Claim, spare: Spare | None = None) -> Done:
        statement, parameters, front = self.look(want, spare)
        began = time.monotonic()
        try:
            with apart(db), db.pipeline():
                done = self._complete(db, completes)
                if spare is not None:
                    self._turns.lock(db, want)
                found = db.execute(statement, parameters) if want.limit > 0 else None
        except BAD_ROW:
            if not completes:
                raise
            return Settlement(db, self._schema, self._given()).complete(completes), []
        claimed = rows.claimed(found.fetchall(), want) if found is not None else []
        if want.id is None and (claimed or spare is None):
            waited = spare is not None and front  # for its turn, perhaps, which says nothing of what the look cost
            self.marks.took(claimed, want.limit, 0.0 if waited else time.monotonic() - began, front=front)
        if spare is not None and not claimed:  # nothing is due, or not enough to spare
            return {id_ for (id_,) in done}, self._by_rules(db, (), want)[1]
        return {id_ for (id_,) in done}, claimed

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
        return {id_ for (id_,) in done}, claimed()

    def _complete(self, db: Connection, completes: Sequence[Move]) -> Any:
        if not completes:
            return ()
        return db.execute(completing(self._schema, completes), completion(completes, self._given()))


def look(
    schema: str, want: Claim, lanes: dict[Lane, Mark] | None, now: Micros | None, spare: Spare | None = None
) -> tuple[LiteralString, dict[str, Any], bool]:
    """Choose the statement that claims, with its parameters; and tell whether it looks from the front."""
    shared = {"now": now, "limit": want.limit, "lease_id": want.lease_id, "owner": want.owner, "lease": want.lease}
    text = partial(sql.statement, schema, "claim")
    if spare is not None:
        counted, draws = spare.running is not None, spare.full_in is not None
        text = partial(text, counted=counted, free=True, draws=draws)
        shared |= {**spare._asdict(), "recount": now is not None and counted, "group": GROUP}
    if want.id is not None:
        return sql.statement(schema, "claim_one"), {**shared, "id": want.id}, False
    if lanes is not None and (marked := _wanted(lanes, want)):
        parameters = {
            **shared,
            "queues": [lane.queue for lane, _, _ in marked],
            "most": [most for _, most, _ in marked],
            "ranks": [lane.rank for lane, _, _ in marked],
            "mark_ats": [mark.at for _, _, mark in marked],
            "mark_ids": [mark.id for _, _, mark in marked],
        }
        return text("marked_lanes"), parameters, False
    if want.queues is None:
        return sql.statement(schema, "claim", "all_lanes"), {**shared, "full": list(want.full)}, True
    named = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    parameters = {**shared, "queues": list(named), "most": list(named.values())}
    return text("named_lanes"), parameters, True


def _wanted(lanes: dict[Lane, Mark], want: Claim) -> list[tuple[Lane, int, Mark]]:
    """Keep the lanes a claim asks for, with the most it wants of each."""
    if want.queues is None:
        return [(lane, want.limit, mark) for lane, mark in lanes.items() if lane.queue not in want.full]
    room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    return [(lane, room[lane.queue], mark) for lane, mark in lanes.items() if lane.queue in room]
