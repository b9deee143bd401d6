"""How moves are written: completions by the batch, every other move by one statement that checks its guard.

A move is decided on what was read, and its statement writes only if the job still is at the version that was read; if
it is not, the job is read and decided again. So nothing is locked between reading and writing.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from psycopg.pq import TransactionStatus
from pydantic_core import to_json

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord
from holdfast.domain.lifecycle import Answer, Held, Move, Verb
from holdfast.domain.moments import Micros
from holdfast.stores.postgres import rows, sql
from holdfast.stores.postgres.pool import Connection
from holdfast.stores.postgres.trouble import BAD_ROW

_ROUNDS = 20


def completion(moves: Sequence[Move], now: Micros | None) -> dict[str, Any]:
    """Give the parameters of `complete`, in the order in which everybody locks; all are kept as long as the first."""
    moves = sorted(moves, key=lambda move: move.id)
    leases = [move.guard for move in moves if isinstance(move.guard, Held)]
    return {
        "now": now,
        "ids": [move.id for move in moves],
        "tokens": [guard.token for guard in leases],
        "lease_ids": [guard.lease_id for guard in leases],
        "results": to_json({move.id: move.result for move in moves}).decode(),
        "purge_after": moves[0].purge_after,
    }


def completable(moves: Sequence[Move]) -> list[Move]:
    """Pick the completions that one statement can write: those that are kept equally long."""
    completes = [move for move in moves if move.verb is Verb.COMPLETE]
    return [move for move in completes if move.purge_after == completes[0].purge_after]


def apart(db: Connection) -> AbstractContextManager[object]:
    """Keep what may fail from spoiling the transaction it is done in, if it is done in one."""
    return nullcontext() if db.info.transaction_status == TransactionStatus.IDLE else db.transaction()


class Settlement:
    """Writes moves on one connection."""

    def __init__(self, connection: Connection, schema: str, now: Micros | None) -> None:
        self._db = connection
        self._schema = schema
        self._now = now

    def settle(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds, those of one job in the order given."""
        if len({move.id for move in moves}) == len(moves):
            return self._complete_first(moves)
        answers: list[Answer | None] = [None] * len(moves)
        waiting = list(range(len(moves)))
        while waiting:
            first: dict[str, int] = {}
            for place in waiting:
                first.setdefault(moves[place].id, place)
            now = list(first.values())
            for place, answer in zip(now, self.write([moves[place] for place in now]), strict=True):
                answers[place] = answer
            waiting = [place for place in waiting if answers[place] is None]
        return [answer for answer in answers if answer is not None]

    def _complete_first(self, moves: Sequence[Move]) -> list[Answer]:
        """Write moves of different jobs: completions together, and then what is left."""
        completes = completable(moves)
        done = self.complete(completes) if completes else set()
        rest = [move for move in moves if move.id not in done]
        answers = dict(zip([move.id for move in rest], self.write(rest) if rest else [], strict=True))
        return [answers.get(move.id, Answer.OK) for move in moves]

    def complete(self, moves: Sequence[Move]) -> set[str]:
        """Complete a batch; give the ids of those that were. One bad row is found by halving, and left out."""
        statement = sql.statement(self._schema, "complete")
        try:
            with apart(self._db):
                return {id_ for (id_,) in self._db.execute(statement, completion(moves, self._now))}
        except BAD_ROW:
            if len(moves) == 1:
                return set()
            half = len(moves) // 2
            return self.complete(moves[:half]) | self.complete(moves[half:])

    def write(self, moves: Sequence[Move]) -> list[Answer]:
        """Write moves of different jobs; one that meets a change is decided again."""
        answers: dict[str, Answer] = {}
        left = list(moves)
        for _ in range(_ROUNDS):
            jobs, now = self._read([move.id for move in left])
            steps = self._recorded(left)
            due: list[tuple[Move, JobRecord]] = []
            for move in left:
                job = jobs.get(move.id)
                if job is None or not lifecycle.holds(job, move):
                    answers[move.id] = lifecycle.answer(job, move)
                elif move.verb is Verb.CHECKPOINT and (move.id, move.step) in steps:
                    answers[move.id] = Answer.OK
                else:
                    due.append((move, job))
            answers.update(self._apply(due, now))
            left = [move for move, _ in due if move.id not in answers]
            if not left:
                break
        return [answers.get(move.id, Answer.ALREADY_CLAIMED) for move in moves]

    def _read(self, ids: Sequence[str]) -> tuple[dict[str, JobRecord], Micros]:
        with self._db.pipeline():
            found = self._db.execute(sql.statement(self._schema, "read"), {"ids": list(ids)})
            clock = None if self._now is not None else self._db.execute(sql.statement(self._schema, "now"))
        now = self._now if clock is None else clock.fetchone()[0]  # type: ignore[index]
        assert now is not None
        return {record.id: record for record in map(rows.record, found)}, now

    def _recorded(self, moves: Sequence[Move]) -> set[tuple[str, str | None]]:
        points = [move for move in moves if move.verb is Verb.CHECKPOINT]
        if not points:
            return set()
        parameters = {"ids": [move.id for move in points], "names": [move.step for move in points]}
        return set(self._db.execute(sql.statement(self._schema, "steps_known"), parameters))

    def _apply(self, due: Sequence[tuple[Move, JobRecord]], now: Micros) -> dict[str, Answer]:
        """Write all at once; if a row among them is bad, the halves, until it stands alone."""
        if not due:
            return {}
        try:
            with apart(self._db), self._db.pipeline():
                written = [(move, self._write(move, job, now)) for move, job in due]
            return {move.id: Answer.OK for move, cursor in written if cursor.fetchone() == (1,)}
        except BAD_ROW:
            if len(due) == 1:
                return {due[0][0].id: Answer.UNWRITABLE}
            half = len(due) // 2
            return self._apply(due[:half], now) | self._apply(due[half:], now)

    def _write(self, move: Move, job: JobRecord, now: Micros) -> Any:
        after = lifecycle.apply(job, move, now)
        ended = lifecycle.ended_attempt(job, move, now)
        text = sql.write(
            self._schema, job.state, after.state, attempt=ended is not None, step=move.verb is Verb.CHECKPOINT
        )
        return self._db.execute(text, rows.written(job, after, move, ended))
