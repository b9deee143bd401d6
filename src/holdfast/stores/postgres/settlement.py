"""How moves are written: completions and checkpoints by the batch, every other move by one statement that checks its
guard.

A move is decided on what was read, and its statement writes only if the job still is at the version that was read; if
it is not, the job is read and decided again. So nothing is locked between reading and writing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from pydantic_core import to_json

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Held, Move, Verb
from holdfast.stores.postgres import arrays, carrying, sql
from holdfast.stores.postgres.insertion import Rows
from holdfast.stores.postgres.pool import Connection
from holdfast.stores.postgres.trouble import BAD_ROW

T = TypeVar("T")
_Due = tuple[Move, JobRecord, JobRecord]
"""A move, its job as it was read, and as it will be."""
_ID, _GUARD = attrgetter("id"), attrgetter("guard")
_STEP, _EVENTS = Move._fields.index("step"), Move._fields.index("events")
_NOTHING = tuple(Move._field_defaults[name] for name in Move._fields[_STEP:_EVENTS])
"""What lies between these two in a move that carries nothing."""
_UNDOABLE = Move._fields.index("undoable")
_UNCHANGED = _NOTHING[_UNDOABLE - _STEP :]
"""And from here on in one that leaves its job's flow as it is."""
_Write = Callable[[Sequence[_Due], Micros], dict[str, Answer]]


def completing(schema: str, moves: Sequence[Move]) -> LiteralString:
    """Give the statement that completes a batch."""
    return sql.statement(schema, "complete", ends=telling(moves))


def telling(moves: Sequence[Move]) -> str:
    """Name the block of what completions tell, if they do."""
    return "told" if any(move.events for move in moves) else ""


def completion(moves: Sequence[Move], now: Micros | None) -> dict[str, Any]:
    """Give the parameters of `complete`; all are kept as long as the first."""
    return {**_batch(moves, now), "purge_after": moves[0].purge_after}


def completed(moves: Sequence[Move], answer: Rows) -> set[str]:
    """Give the ids of what was completed, from what is answered at the end of each row."""
    some = answer[0][-1]
    return {move.id for move in moves} if some is None else set(some)


def completable(moves: Sequence[Move]) -> list[Move]:
    """Pick the completions that one statement can write: those that carry nothing but events, and are kept as long."""
    completes = [move for move in moves if move.verb is Verb.COMPLETE and move[_STEP:_EVENTS] == _NOTHING]
    return [move for move in completes if move.purge_after == completes[0].purge_after]


def recordable(moves: Sequence[Move]) -> dict[int, list[Move]]:
    """Pick the checkpoints that change nothing but the cursor and the steps, by how far they move the cursor."""
    by_advance: dict[int, list[Move]] = {}
    for move in moves:
        if move.verb is Verb.CHECKPOINT and move.yields and move[_UNDOABLE:_EVENTS] == _UNCHANGED and not _starts(move):
            by_advance.setdefault(move.advance, []).append(move)
    return by_advance


def _starts(move: Move) -> bool:
    """Tell whether a move tells of its job's start, which is then on record in the flow."""
    return any(event.name == lifecycle.STARTED for event in move.events)


def _batch(moves: Sequence[Move], now: Micros | None) -> dict[str, Any]:
    """Give what all statements that write a batch are given, in the order in which everybody locks."""
    moves = sorted(moves, key=_ID)
    leases = [guard for guard in map(_GUARD, moves) if isinstance(guard, Held)]
    values = {
        "now": now,
        "ids": arrays.ids([move.id for move in moves]),
        "tokens": arrays.numbers([guard.token for guard in leases]),
        "lease_ids": arrays.texts([guard.lease_id for guard in leases]),
        "results": to_json({move.id: move.result for move in moves}).decode(),
    }
    if events := [(move.id, event) for move in moves for event in move.events]:
        values["event_jobs"] = [id_ for id_, _ in events]
        values["event_ids"] = [event.id for _, event in events]
        values["event_names"] = [event.name for _, event in events]
        values["event_bodies"] = [event.body for _, event in events]
    return values


def apart(db: Connection) -> AbstractContextManager[object]:
    """Keep what may fail from spoiling the transaction it is done in, if it is done in one."""
    return nullcontext() if db.info.transaction_status == TransactionStatus.IDLE else db.transaction()


@contextmanager
def at_once(db: Connection) -> Iterator[None]:
    """Run a transaction whose statements go out together until an answer is asked for, its beginning and its end among
    them; psycopg's own waits for an answer at both.
    """
    if db.info.transaction_status != TransactionStatus.IDLE:
        with db.transaction():
            yield
        return
    try:
        with db.pipeline():
            db.execute("BEGIN")
            yield
            db.execute("COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            db.rollback()
        raise


class Settlement:
    """Writes moves on one connection."""

    def __init__(self, connection: Connection, schema: str, now: Micros | None) -> None:
        self._db = connection
        self._schema = schema
        self._now = now

    def settle(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds, those of one job in the order given."""
        if len({move.id for move in moves}) == len(moves):
            return self._batches_first(moves)
        answers: list[Answer | None] = [None] * len(moves)
        waiting = list(range(len(moves)))
        while waiting:
            first: dict[str, int] = {}
            for place in waiting:
                first.setdefault(moves[place].id, place)
            now = list(first.values())
            for place, answer in zip(now, self._batches_first([moves[place] for place in now]), strict=True):
                answers[place] = answer
            waiting = [place for place in waiting if answers[place] is None]
        return [answer for answer in answers if answer is not None]

    def _batches_first(self, moves: Sequence[Move]) -> list[Answer]:
        """Write moves of different jobs: completions together, checkpoints together, and then what is left."""
        completes = completable(moves)
        done = self.complete(completes) if completes else set()
        for advance, points in recordable(moves).items():
            done |= self._record(points, advance)
        rest = [move for move in moves if move.id not in done]
        answers = dict(zip([move.id for move in rest], self.write(rest) if rest else [], strict=True))
        return [answers.get(move.id, Answer.OK) for move in moves]

    def complete(self, moves: Sequence[Move]) -> set[str]:
        """Complete a batch; give the ids of those that were."""
        return self._at_once(
            moves, lambda some: (completing(self._schema, some), completion(some, self._now)), completed
        )

    def _record(self, moves: Sequence[Move], advance: int) -> set[str]:
        """Record a step for each of a batch of jobs; give the ids of those that had none of its name."""

        def statement(some: Sequence[Move]) -> carrying.Written:
            text = sql.statement(self._schema, "checkpoint", "told" if any(move.events for move in some) else "")
            steps = to_json({move.id: move.step for move in some}).decode()
            return text, {**_batch(some, self._now), "steps": steps, "advance": advance}

        return self._at_once(moves, statement, lambda _, answer: {id_ for (id_,) in answer})

    def _at_once(
        self,
        moves: Sequence[Move],
        statement: Callable[[Sequence[Move]], carrying.Written],
        written: Callable[[Sequence[Move], Rows], set[str]],
    ) -> set[str]:
        """Write a batch by one statement; give the ids it wrote. One bad row is found by halving, and left out."""
        try:
            with apart(self._db):
                return written(moves, self._db.execute(*statement(moves)).fetchall())
        except BAD_ROW:
            if len(moves) == 1:
                return set()
            half = len(moves) // 2
            return self._at_once(moves[:half], statement, written) | self._at_once(moves[half:], statement, written)

    def write(self, moves: Sequence[Move]) -> list[Answer]:
        """Write moves of different jobs; one that meets a change is decided again."""
        answers: dict[str, Answer] = {}
        left = list(moves)
        for round_ in range(carrying.ROUNDS):
            sight = self._run(carrying.look(self._schema, left, self._now))
            due: list[_Due] = []
            for move in left:
                if answer := sight.answer(move):
                    answers[move.id] = answer
                else:
                    job = sight.jobs[move.id]
                    due.append((move, job, lifecycle.apply(job, move, sight.now)))
            answers.update(self._apply(due, sight.now, again=round_ > 0))
            left = [move for move, _, _ in due if move.id not in answers]
            if not left:
                break
        return [answers.get(move.id, Answer.ALREADY_CLAIMED) for move in moves]

    def _apply(self, due: Sequence[_Due], now: Micros, *, again: bool) -> dict[str, Answer]:
        """Write what was decided; what carries more than its job first, because accounts are locked before jobs.

        Jobs that changed under our hands once, as they do while heartbeats come, are locked the next time.
        """
        carried = [each for each in due if again or carrying.carries(*each)]
        if not carried:
            return self._halved(due, now, self._write)
        alone = [] if again else [each for each in due if not carrying.carries(*each)]
        return self._halved(carried, now, self._carry) | self._halved(alone, now, self._write)

    def _halved(self, due: Sequence[_Due], now: Micros, write: _Write) -> dict[str, Answer]:
        """Write all at once; if a row among them is bad, or was changed, the halves, until it stands alone."""
        if not due:
            return {}
        try:
            return write(due, now)
        except (*BAD_ROW, carrying.Changed) as error:
            if len(due) == 1:
                return {} if isinstance(error, carrying.Changed) else {due[0][0].id: Answer.UNWRITABLE}
            half = len(due) // 2
            return self._halved(due[:half], now, write) | self._halved(due[half:], now, write)

    def _write(self, due: Sequence[_Due], now: Micros) -> dict[str, Answer]:
        """Write moves that change nothing but their own jobs, in the order in which everybody locks."""
        ordered = sorted(due, key=lambda each: each[0].id)
        with apart(self._db):
            counts = self._pipelined([carrying.written(self._schema, *each, now) for each in ordered])
        return {move.id: Answer.OK for (move, _, _), ((count,),) in zip(ordered, counts, strict=True) if count == 1}

    def _carry(self, due: Sequence[_Due], now: Micros) -> dict[str, Answer]:
        """Write moves with all they carry, under locks; what was read before need not hold any more."""
        with self._db.transaction():
            return self._run(carrying.carry(self._schema, [(move, job.tenant) for move, job, _ in due], self._now))

    def _run(self, steps: carrying.Steps[T]) -> T:
        try:
            batch = next(steps)
            while True:
                batch = steps.send(self._pipelined(batch))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _pipelined(self, batch: Sequence[carrying.Written]) -> list[Rows]:
        with self._db.pipeline():
            cursors = [self._db.execute(*each) for each in batch]
        return [cursor.fetchall() for cursor in cursors]
