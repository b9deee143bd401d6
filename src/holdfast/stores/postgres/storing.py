"""How a store object stores jobs on its own connections: one alone, a few by statements, or many by COPY."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from psycopg import errors

from holdfast.domain.alike import Named
from holdfast.domain.errors import InsufficientCredits, KeyConflict
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup, Refusal
from holdfast.stores.answers import whole
from holdfast.stores.postgres import guests, insertion, rows, sql
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.loading import Portion, loaded, portions, series
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.swift import Loaded, Swift
from holdfast.stores.postgres.turns import Known, Turns

_MANY = 100
"""Whoever stores so many jobs at once asks for the rules first."""
_WAYS = 100
"""The most kinds of lone jobs whose ways are remembered."""
_new = tuple.__new__
_LOADED = 1_000
"""So many jobs are worth the trips that a COPY takes."""


class Way(NamedTuple):
    """How a lone job is stored that waits in its queue, and every job that is like it but for its payload."""

    like: NewJob
    known: Known
    silent: Loaded
    calling: Loaded
    later: bool
    """It may come due later."""


class Storing:
    """The way of new jobs into one store object's tables."""

    def __init__(self, pool: Pool, turns: Turns, bell: Bell, given: Callable[[], Micros | None]) -> None:
        self._pool = pool
        self._schema = pool.address.schema
        self._turns = turns
        self._bell = bell
        self._given = given
        self._one, self._like = self._swift("insert_one"), self._swift("insert")
        self._at_once = self._swift("insert_one", at_once=True)
        self._ways: dict[str, Way] = {}
        """That of the last lone job of each kind."""

    def _swift(self, name: str, *, at_once: bool = False) -> tuple[Swift, Swift]:
        """Make a statement ready, as it is and with a notification."""
        prepared = f"holdfast_{name}_at_once" if at_once else f"holdfast_{name}"
        return (
            Swift(prepared, sql.statement(self._schema, name, at_once=at_once)),
            Swift(f"{prepared}_calling", sql.statement(self._schema, name, "calling", at_once=at_once)),
        )

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all; all in one transaction, if nothing stands in the way of any."""
        if len(groups) == 1 == len(groups[0]) and (one := self._insert_alone(*groups[0][0])) is not None:
            return [[one]]
        if len(groups) == 1 and isinstance(groups[0], Named) and (stored := self._insert_series(groups[0])):
            return [stored]
        jobs = [one for group in groups for one in group]
        if not jobs:
            return [[] for _ in groups]
        queues = {new.queue for _, new in jobs}
        self._turns.stirred(queues)
        if len(jobs) >= _MANY:
            self._turns.prepare(queues)
        batches = rows.batches(jobs) if all(new.key is None for _, new in jobs) else []
        try:
            if batches and all(shared.plain for shared, _ in batches):
                return _divided(groups, self._insert_plain(jobs, batches))
            answers = _divided(groups, self._pool.run(lambda db: self._carry_out(db, jobs, again=False)))
        except (errors.UniqueViolation, KeyConflict, InsufficientCredits):
            answers = [self._insert_group(group) for group in groups]
        self._ring(jobs)
        return answers

    def _simple(self, new: NewJob) -> bool:
        """Tell whether a job needs nothing but a row that waits in its queue."""
        return new.state is State.QUEUED and insertion.plain(new) and self._turns.place(new) is None

    def _insert_alone(self, id_: str, new: NewJob) -> Inserted | None:
        """Store one job: the most common call. None if it needs more, or is there already: both take a closer look."""
        way = self._ways.get(new.kind)
        if way is None or new[2:] != way.like[2:] or way.known is not self._turns.known:
            if not self._simple(new):
                return None
            try:
                way = self._way_of(new)
            except errors.DataError:
                return None
        self._turns.stirred((new.queue,))
        call = self._bell.turn(new.queue, later=way.later)
        try:
            if call is None:
                at = self._pool.run(lambda db: way.silent.value(db, id_, new.payload))
                self._bell.ring((new.queue,), later=way.later)
            else:
                at = self._pool.run(lambda db: way.calling.value(db, id_, new.payload, *call.values()))
        except BaseException as error:
            if call is not None:
                self._bell.missed(call)
            if isinstance(error, errors.UniqueViolation):
                return None
            raise
        return _new(Inserted, (id_, new, int(at), None, False))

    def _way_of(self, new: NewJob) -> Way:
        """Write all of a lone job but what is its own; and keep it for the next like it, unless the time is told."""
        now = self._given()
        later = new.delay > 0 or new.run_at is not None
        plain = now is None and not later and new.expires_after is None
        values, (silent, calling) = rows.alone("", new, now), self._at_once if plain else self._one
        way = Way(
            new,
            self._turns.known,
            silent.loaded(values, "id", "payload"),
            calling.loaded(values, "id", "payload", "channel", "message"),
            later,
        )
        if now is None:
            if len(self._ways) >= _WAYS:
                self._ways.clear()
            self._ways[new.kind] = way
        return way

    def _insert_series(self, group: Named) -> list[Inserted] | None:
        """Store many jobs that are alike. None if something may stand in their way, which takes a closer look."""
        like = group.jobs.like
        if len(group) < _LOADED:
            return None
        self._turns.stirred((like.queue,))
        self._turns.prepare((like.queue,))
        if not self._simple(like):
            return None
        try:
            stored = self._pool.run(lambda db: self._load(db, group, list(series(group))))
        except errors.UniqueViolation:
            return None
        self._bell.ring((like.queue,), later=like.delay > 0 or like.run_at is not None)
        return stored

    def _send(self, statement: tuple[Swift, Swift], values: dict[str, Any], like: NewJob) -> Micros:
        """Store jobs by one statement, and notify in it if nobody did just now; give the time."""
        silent, calling = statement
        later = like.delay > 0 or like.run_at is not None
        call = self._bell.turn(like.queue, later=later)
        if call is None:
            (at,) = self._pool.run(lambda db: silent.row(db, values))
            self._bell.ring((like.queue,), later=later)
            return int(at)
        try:
            return int(self._pool.run(lambda db: calling.row(db, values | call))[0])
        except BaseException:
            self._bell.missed(call)
            raise

    def _insert_group(self, group: InsertGroup) -> list[Inserted] | Refusal:
        try:
            return self._pool.run(lambda db: self._carry_out(db, group, again=True))
        except (KeyConflict, InsufficientCredits) as refused:
            return refused

    def _carry_out(self, db: Connection, group: InsertGroup, *, again: bool) -> list[Inserted]:
        steps = insertion.store(group, self._given(), again=again, place=self._turns.place)
        with db.transaction():
            return guests.run(
                steps, lambda name, values: db.execute(sql.statement(self._schema, name), values).fetchall()
            )

    def _insert_plain(self, jobs: InsertGroup, batches: Sequence[rows.Batch]) -> list[Inserted]:
        """Store jobs that nothing can stand in the way of but themselves: in one trip, or by COPY; and ring."""
        if len(jobs) >= _LOADED and all(self._waits(batch) for batch in batches):
            later = any(shared.delay or any(new.run_at is not None for _, new in ones) for shared, ones in batches)
            stored = self._pool.run(lambda db: self._load(db, jobs, list(portions(batches))))
            self._bell.ring({shared.queue for shared, _ in batches}, later=later)
            return stored
        asked = [insertion.statement(batch, self._given(), self._turns.place) for batch in batches]
        name, values = asked[0]
        if len(asked) == 1 and name == "insert" and values["run_ats"] is None:
            at = self._send(self._like, values, jobs[0][1])
            return whole(jobs, at)
        at = self._pool.run(lambda db: self._together(db, asked))
        self._ring(jobs)
        return whole(jobs, at)

    def _together(self, db: Connection, asked: Sequence[insertion.Statement]) -> Micros:
        """Carry statements out in one trip, with no transaction around it; give the time, which is the same for all:
        jobs that are stored together come due in the order in which they were given, whatever they are.
        """
        at = self._given()
        if at is None and len(asked) > 1:
            ((at,),) = db.execute(sql.statement(self._schema, "now")).fetchall()
        with db.pipeline():
            done = [db.execute(sql.statement(self._schema, name), {**values, "now": at}) for name, values in asked]
        return int(done[0].fetchall()[0][0])

    def _waits(self, batch: rows.Batch) -> bool:
        """Tell whether all jobs of a batch wait in their queue as soon as they are stored."""
        shared, ones = batch
        return shared.state == State.QUEUED.value and (
            not self._turns.known.rules or all(self._turns.place(new) is None for _, new in ones)
        )

    def _load(self, db: Connection, group: InsertGroup, some: Sequence[Portion]) -> list[Inserted]:
        """Store many jobs. While the server stores some of them, the rows of the next are made, and answers."""
        counts = Counter[str]()
        for portion in some:
            counts[portion.shared.queue] += len(portion.ids)
        with db.transaction():
            at = self._given()
            if at is None:
                ((at,),) = db.execute(sql.statement(self._schema, "now")).fetchall()
            made, told = loaded(some, at), list[Inserted]()
            answers = (whole(group[start : start + rows.LARGEST], at) for start in range(0, len(group), rows.LARGEST))
            for statement, slices in (("copy_jobs", made.jobs), ("copy_waiting", made.waiting)):
                with db.cursor().copy(sql.statement(self._schema, statement)) as copy:
                    for data in slices:
                        copy.write(data)
                        told += next(answers, ())
            counted = {"queues": list(counts), "jobs": list(counts.values())}
            db.execute(sql.statement(self._schema, "count_stored"), counted)
        return [*told, *chain.from_iterable(answers)]

    def _ring(self, jobs: InsertGroup) -> None:
        queues = {new.queue for _, new in jobs}
        self._bell.ring(queues, later=any(new.delay or new.run_at is not None for _, new in jobs))


def _divided(groups: Sequence[InsertGroup], stored: list[Inserted]) -> list[list[Inserted] | Refusal]:
    """Give each group its own answers."""
    if len(groups) == 1:
        return [stored]
    each = iter(stored)
    return [[next(each) for _ in group] for group in groups]
