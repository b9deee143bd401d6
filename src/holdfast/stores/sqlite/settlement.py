"""How moves are written: completions and checkpoints by the batch, every other move one by one.

A batch is one statement or two for jobs of any number, which the differential tests compare with the lifecycle. Every
other move is read, checked and applied by the lifecycle's own functions inside the transaction.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import apsw
from pydantic_core import to_json

from holdfast.domain import accounts, history, lifecycle
from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import CreditEntry, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Move, Verb
from holdfast.stores.sqlite import books, insertion, rows, tally
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas
from holdfast.stores.sqlite.trips import NOTHING, Leases, Refused, Take, by_lease, repeated, trip

_MAKES_CLAIMABLE = frozenset(
    {Verb.REDRIVE, Verb.RELEASE, Verb.SUBMIT, Verb.REAP, Verb.CANCEL, Verb.SIGNAL, Verb.POSTPONE, Verb.ARRIVE}
)
"""After these, somebody who waits may have something to do (or, for a cancellation, to stop)."""
_STEP, _UNDOABLE, _EVENTS = (Move._fields.index(name) for name in ("step", "undoable", "events"))
_LUGGAGE = tuple(Move._field_defaults[name] for name in Move._fields[_STEP:_EVENTS])
"""What a move carries, from its step to its events, when it carries nothing."""
_BARE = tuple(Move._field_defaults[name] for name in Move._fields[_UNDOABLE:])
"""What a checkpoint carries behind its step when it carries no more."""
_COMPLETE, _CHECKPOINT = Verb.COMPLETE, Verb.CHECKPOINT


def _completes(moves: Sequence[Move]) -> list[Move]:
    """Give the completions that carry no more than a result and events."""
    return [move for move in moves if move.verb is _COMPLETE and move[_STEP:_EVENTS] == _LUGGAGE]


def _is_bare_checkpoint(move: Move) -> bool:
    """Tell whether a move is a checkpoint that carries no more than a step and events, and leaves the flow alone."""
    return (
        move.verb is Verb.CHECKPOINT
        and move[_UNDOABLE:_EVENTS] == _LUGGAGE[_UNDOABLE - _STEP :]
        and (not move.events or all(event.name != lifecycle.STARTED for event in move.events))
    )


def checkpoint(moves: Sequence[Move], now: Micros) -> tuple[str, list[Any]]:
    """Give the statement that records a step of each of a batch of jobs, or fails; and its values."""
    alike: dict[tuple[Any, ...], dict[str, str | None]] = {}
    for move in moves:
        step = move.step, move.guard, move.yields, move.advance
        if step in alike:
            alike[step][move.id] = move.result
        else:
            alike[step] = {move.id: move.result}
    values: list[Any] = []
    for (name, guard, yields, advance), results in alike.items():
        values += (to_json(results).decode(), len(results), name, *guard, yields, advance, now)
    return repeated(SQL["checkpoint"], len(alike)), values


def are_checkpoints(moves: Sequence[Move]) -> bool:
    """Tell whether moves of different jobs record steps, and nothing else."""
    for move in moves:
        if move.verb is not _CHECKPOINT or move[_UNDOABLE:] != _BARE:
            return False
    return len({move.id for move in moves}) == len(moves)


class Settlement:
    """Writes moves in one transaction."""

    def __init__(self, db: OwnConnection, now: Micros) -> None:
        self._db = db
        self._now = now
        self._told: list[Move] = []
        self.deltas: Deltas = defaultdict(int)
        self.rung: set[str] = set()
        """The queues in which somebody may have something to do, once this is committed."""
        self.pending: Leases = {}
        """Completions that are still to be written."""

    def ended(self) -> dict[str, int]:
        """Say of which queues fewer jobs run than before, and how many fewer."""
        return {queue: -jobs for (queue, state), jobs in self.deltas.items() if state is State.RUNNING and jobs < 0}

    def settle(self, moves: Sequence[Move], *, joint: bool = False) -> list[Answer]:
        """Write each move whose guard holds, those of one job in the order given.

        If there is nothing but completions, and a claim is to be written by the same statement, they are left in
        `pending`, as good as written unless `finish` is refused.
        """
        done = self._pend(moves) if joint else set()
        done = done or self._fold(moves)
        if len(done) == len(moves):
            answers = [Answer.OK] * len(moves)
            self._told = [move for move in moves if move.events]
        else:
            answers = [self._skip(move) if move.id in done else self._write(move) for move in moves]
        if self._told:
            books.tell(self._db, self._told, self._now)
        return answers

    def finish(self, take: Take = NOTHING) -> None:
        """Write what is pending, claim jobs, and count all that was written."""
        if self.pending or take is not NOTHING:
            trip(self._db, self._now, self.pending, self.deltas, take)
        else:
            tally.change(self._db, self.deltas)
        self.pending = {}
        self.deltas.clear()

    def _skip(self, move: Move) -> Answer:
        """Pass over a move that is written already; its events are told when its turn has come."""
        if move.events:
            self._told.append(move)
        return Answer.OK

    def _pend(self, moves: Sequence[Move]) -> set[str]:
        """Leave completions to be written with a claim, if there is nothing else; give the ids of the jobs."""
        done = {move.id for move in moves}
        if len(_completes(moves)) < len(moves) or len(done) < len(moves):
            return set()
        self.pending = by_lease(moves)
        self._count(moves)
        return done

    def _fold(self, moves: Sequence[Move]) -> set[str]:
        """Write by the batch what can be; give the ids of the jobs. Moves of one job must keep their order."""
        done: set[str] = set()
        completes = _completes(moves)
        if len({move.id for move in moves}) < len(moves):
            return done
        if completes and self._complete(completes):
            done.update(move.id for move in completes)
        if len(completes) < len(moves):
            checkpoints = [move for move in moves if _is_bare_checkpoint(move)]
            if checkpoints and self._checkpoint(checkpoints):
                done.update(move.id for move in checkpoints)
        return done

    def _complete(self, moves: list[Move]) -> bool:
        """Complete a whole batch, or nothing: one refused move sends the batch to be written move by move."""
        self._db.execute("SAVEPOINT batch")
        try:
            trip(self._db, self._now, by_lease(moves), defaultdict(int))
        except Refused:
            self._db.execute("ROLLBACK TO batch; RELEASE batch")
            return False
        self._db.execute("RELEASE batch")
        self._count(moves)
        return True

    def _count(self, moves: Sequence[Move]) -> None:
        for queue, jobs in Counter([move.queue for move in moves]).items():
            self.deltas[queue, State.SUCCEEDED] += jobs
            self.deltas[queue, State.RUNNING] -= jobs

    def _checkpoint(self, moves: list[Move]) -> bool:
        """Record a step of each of a whole batch of jobs, or nothing."""
        try:
            self._db.execute(*checkpoint(moves, self._now))
        except apsw.ConstraintError:
            return False
        return True

    def _write(self, move: Move) -> Answer:
        """Write one move, with all that it carries."""
        if move.verb in _MAKES_CLAIMABLE or move.awaits or move.ending:
            self.rung.add(move.queue)
        job = rows.read(self._db, move.id)
        if job is None or not lifecycle.holds(job, move):
            return lifecycle.answer(job, move)
        recorded = move.step is not None and self._is_there("recorded", move.id, move.step)
        if recorded and move.verb is Verb.CHECKPOINT:
            return Answer.OK
        if move.signal is not None and self._is_there("signalled", move.id, move.signal[0]):
            return Answer.OK
        after = lifecycle.apply(job, move, self._now)
        change = accounts.charge(job, after)
        if (change or move.children) and not self._affords(job.tenant, change, move):
            return Answer.UNPAID
        self._db.execute(SQL["write"], rows.changed(after, self._now))
        self.deltas[job.queue, job.state] -= 1
        self.deltas[job.queue, after.state] += 1
        if move.step is not None and not recorded:
            self._db.execute(SQL["record_step"], (json.dumps([(move.id, move.step, move.result)]), self._now))
        self._record(job, move)
        if change:
            self._book(after, change, move)
        if move.children:
            self._spawn(move)
        if move.events:
            self._told.append(move)
        return Answer.OK

    def _is_there(self, name: str, *parameters: str) -> bool:
        return self._db.execute(SQL[name], parameters).fetchone() is not None

    def _affords(self, tenant: str, change: accounts.Charge | None, move: Move) -> bool:
        """Tell whether the accounts hold what a move and its children take of them."""
        purse = books.Purse(self._db)
        if change and not purse.take(tenant, change):
            return False
        try:
            for _, new in move.children:
                purse.fund(new)
        except InsufficientCredits:
            return False
        return True

    def _record(self, job: JobRecord, move: Move) -> None:
        """Write what a move leaves beside the job: an ended attempt, a signal."""
        if ended := history.ended_attempt(job, move, self._now):
            self._db.execute(SQL["end_attempt"], (move.id, *ended))
        if move.signal is not None:
            self._db.execute(SQL["record_signal"], (move.id, *move.signal, self._now))

    def _book(self, job: JobRecord, change: accounts.Charge, move: Move) -> None:
        changed = change.granted, change.reserved, change.spent
        entry = CreditEntry(job.tenant, move.verb.value, job.id, job.generation, move.step, *changed, self._now)
        books.enter(self._db, [entry])

    def _spawn(self, move: Move) -> None:
        """Store a move's children, for which there is nothing left that could refuse them."""
        stored = insertion.store_group(self._db, move.children, self._now, self.deltas)
        assert isinstance(stored, list)
        self.rung.update(new.queue for _, new in move.children)
