"""How a store object stores jobs on its own connections: one alone, a few by statements, or many by COPY."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from psycopg import errors

from holdfast.domain.errors import InsufficientCredits, KeyConflict
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup, Refusal
from holdfast.stores.postgres import guests, insertion, rows, sql
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.loading import loads
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.swift import Swift
from holdfast.stores.postgres.turns import Turns

_MANY = 100
"""Whoever stores so many jobs at once asks for the rules first."""
_LOADED = 1_000
"""So many jobs are worth the trips that a COPY takes."""


class Storing:
    """The way of new jobs into one store object's tables."""

    def __init__(self, pool: Pool, turns: Turns, bell: Bell, given: Callable[[], Micros | None]) -> None:
        self._pool = pool
        self._schema = pool.address.schema
        self._turns = turns
        self._bell = bell
        self._given = given
        self._one = Swift("holdfast_one", sql.statement(self._schema, "insert_one"))
        self._one_calling = Swift("holdfast_one_calling", sql.statement(self._schema, "insert_one", "calling"))

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all; all in one transaction, if nothing stands in the way of any."""
        if len(groups) == 1 and len(groups[0]) == 1 and self._simple(groups[0][0][1]):
            with suppress(errors.UniqueViolation):
                return [self._insert_alone(*groups[0][0])]
        jobs = [one for group in groups for one in group]
        if not jobs:
            return [[] for _ in groups]
        queues = {new.queue for _, new in jobs}
        self._turns.stirred(queues)
        if len(jobs) >= _MANY:
            self._turns.prepare(queues)
        try:
            stored = self._pool.run(lambda db: self._insert_all(db, jobs, again=False))
            ends = iter(stored)
            answers: list[list[Inserted] | Refusal] = (
                [stored] if len(groups) == 1 else [[next(ends) for _ in group] for group in groups]
            )
        except (errors.UniqueViolation, KeyConflict, InsufficientCredits):
            answers = [self._insert_group(group) for group in groups]
        self._bell.ring(queues, later=any(new.delay or new.run_at is not None for _, new in jobs))
        return answers

    def _simple(self, new: NewJob) -> bool:
        """Tell whether a job needs nothing but a row that waits in its queue."""
        return new.state is State.QUEUED and insertion.plain(new) and self._turns.place(new) is None

    def _insert_alone(self, id_: str, new: NewJob) -> list[Inserted]:
        """Store one job, the most common call; and notify in the same statement, if nobody did just now."""
        self._turns.stirred((new.queue,))
        values = rows.alone(id_, new, self._given())
        later = new.delay > 0 or new.run_at is not None
        call = self._bell.turn(new.queue, later=later)
        if call is None:
            at = self._pool.run(lambda db: self._one.row(db, values))[0]
            self._bell.ring((new.queue,), later=later)
        else:
            values |= call
            try:
                at = self._pool.run(lambda db: self._one_calling.row(db, values))[0]
            except BaseException:
                self._bell.missed(call)
                raise
        return [Inserted(id_, new, int(at))]

    def _insert_group(self, group: InsertGroup) -> list[Inserted] | Refusal:
        try:
            return self._pool.run(lambda db: self._insert_all(db, group, again=True))
        except (KeyConflict, InsufficientCredits) as refused:
            return refused

    def _insert_all(self, db: Connection, group: InsertGroup, *, again: bool) -> list[Inserted]:
        if not again and all(new.key is None for _, new in group):
            batches = rows.batches(group)
            if all(shared.plain for shared, _ in batches):
                return self._insert_plain(db, group, batches)
        steps = insertion.store(group, self._given(), again=again, place=self._turns.place)
        with db.transaction():
            return guests.run(
                steps, lambda name, values: db.execute(sql.statement(self._schema, name), values).fetchall()
            )

    def _insert_plain(self, db: Connection, group: InsertGroup, batches: Sequence[rows.Batch]) -> list[Inserted]:
        """Store jobs that nothing can stand in the way of but themselves."""
        if len(group) >= _LOADED and all(self._loadable(batch) for batch in batches):
            return self._load(db, group, batches)
        with db.pipeline():
            asked = [insertion.statement(batch, self._given(), self._turns.place) for batch in batches]
            done = [db.execute(sql.statement(self._schema, name), values) for name, values in asked]
        stored: dict[str, Inserted] = {}
        for (_, ones), cursor in zip(batches, done, strict=True):
            (at,) = cursor.fetchone()  # type: ignore[misc]
            stored.update({id_: Inserted(id_, new, at) for id_, new in ones})
        return [stored[id_] for id_, _ in group]

    def _loadable(self, batch: rows.Batch) -> bool:
        """Tell whether all jobs of a batch wait in their queue as soon as they are stored."""
        shared, ones = batch
        return shared.state == State.QUEUED.value and (
            not self._turns.known.rules or all(self._turns.place(new) is None for _, new in ones)
        )

    def _load(self, db: Connection, group: InsertGroup, batches: Sequence[rows.Batch]) -> list[Inserted]:
        """Store many jobs. While the server stores some of them, the rows of the next are made."""
        counts = Counter(new.queue for _, new in group)
        with db.transaction():
            at = self._given()
            if at is None:
                ((at,),) = db.execute(sql.statement(self._schema, "now")).fetchall()
            ahead = loads(batches, at)
            load, stored = next(ahead, None), list[Inserted]()
            while load is not None:
                with db.cursor().copy(sql.statement(self._schema, load.statement)) as copy:
                    copy.write(load.data)
                    load = next(ahead, None)
                    stored = stored or [Inserted(id_, new, at) for id_, new in group]
            counted = {"queues": list(counts), "jobs": list(counts.values())}
            db.execute(sql.statement(self._schema, "count_stored"), counted)
        return stored
