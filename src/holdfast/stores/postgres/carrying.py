"""Moves one by one, with all they carry: children to be stored, credits to be taken of an account.

Generators that yield batches of statements and are sent their rows, so that they serve blocking and awaited connections
alike. All that is written is written in one transaction of the caller's. Accounts are locked first, in one order, and
jobs after them; what the accounts hold is then certain, and each move is paid for in turn.
"""

from collections.abc import Generator, Sequence
from typing import Any, LiteralString, NamedTuple, TypeVar

from holdfast.domain import accounts, history, lifecycle
from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Move, Verb
from holdfast.stores.postgres import insertion, rows, sql
from holdfast.stores.postgres.insertion import Rows
from holdfast.stores.postgres.ledger import Ledger

T = TypeVar("T")
Written = tuple[LiteralString, Any]
"""A statement and its parameters."""
Steps = Generator[list[Written], list[Rows], T]
ROUNDS = 20
"""How often a job that others keep changing is read and decided again."""


class Changed(Exception):
    """A job was changed by somebody else between reading and writing, so that nothing reckoned with it is right."""


class Sight(NamedTuple):
    """What was read of the jobs that moves are about."""

    jobs: dict[str, JobRecord]
    steps: set[tuple[str, str | None]]
    """The steps, with their jobs, that are on record already."""
    signals: set[tuple[str, str]]
    now: Micros

    def answer(self, move: Move) -> Answer | None:
        """Answer a move that is not to be written."""
        job = self.jobs.get(move.id)
        if job is None or not lifecycle.holds(job, move):
            return lifecycle.answer(job, move)
        if move.verb is Verb.CHECKPOINT and (move.id, move.step) in self.steps:
            return Answer.OK
        return Answer.OK if move.signal is not None and (move.id, move.signal[0]) in self.signals else None


def look(schema: str, moves: Sequence[Move], now: Micros | None) -> Steps[Sight]:
    """Read all that must be known to decide moves."""
    asked = _questions(moves, now)
    answers = yield [(sql.statement(schema, name), values) for name, values in asked.items()]
    return _seen(dict(zip(asked, answers, strict=True)), now)


def _questions(moves: Sequence[Move], now: Micros | None) -> dict[str, Any]:
    """Give the statements to ask, by name, with their parameters."""
    asked: dict[str, Any] = {"read": {"ids": [move.id for move in moves]}}
    if now is None:
        asked["now"] = None
    if points := [(move.id, move.step) for move in moves if move.verb is Verb.CHECKPOINT]:
        asked["steps_known"] = _pairs(points)
    if signals := [(move.id, move.signal[0]) for move in moves if move.signal is not None]:
        asked["signals_known"] = _pairs(signals)
    return asked


def _pairs(pairs: Sequence[tuple[str, str | None]]) -> dict[str, Any]:
    return {"ids": [id_ for id_, _ in pairs], "names": [name for _, name in pairs]}


def _seen(found: dict[str, Rows], now: Micros | None) -> Sight:
    return Sight(
        {record.id: record for record in map(rows.record, found["read"])},
        {(id_, name) for id_, name in found.get("steps_known", ())},
        {(id_, name) for id_, name in found.get("signals_known", ())},
        found["now"][0][0] if now is None else now,
    )


def settle(schema: str, move: Move, now: Micros | None) -> Steps[Answer]:
    """Write one move, if its guard holds; if it meets a change it is decided again."""
    for _ in range(ROUNDS):
        sight = yield from look(schema, [move], now)
        if answer := sight.answer(move):
            return answer
        try:
            answers = yield from carry(schema, [(move, sight.jobs[move.id].tenant)], now)
        except Changed:
            continue
        return answers[move.id]
    return Answer.ALREADY_CLAIMED


def carries(move: Move, job: JobRecord, after: JobRecord) -> bool:
    """Tell whether a move changes more than its own job."""
    return bool(move.children) or move.charged or accounts.charge(job, after) is not None


def written(schema: str, move: Move, job: JobRecord, after: JobRecord, now: Micros) -> Written:
    """Give the statement that writes a move under its guard; it answers how many it wrote."""
    ended = history.ended_attempt(job, move, now)
    carried = {"attempt": ended, "step": move.step, "signal": move.signal, "events": move.events or None}
    records = tuple(name for name, value in carried.items() if value is not None)
    return sql.write(schema, job.state, after.state, records), rows.written(job, after, move, ended)


def carry(schema: str, due: Sequence[tuple[Move, str]], now: Micros | None) -> Steps[dict[str, Answer]]:
    """Write moves of different jobs, each with its tenant, and all they carry; raises `Changed` unless all that are
    paid for are written.

    Running jobs are locked before they are read, so that no heartbeat comes between; others change but seldom.
    """
    moves = [move for move, _ in due]
    offered = [one for move in moves for one in move.children]
    tenants = {tenant for _, tenant in due} | {new.tenant for _, new in offered if new.credits}
    asked = {
        "lock_accounts": {"tenants": sorted(tenants)},
        "lock_running": {"ids": [move.id for move in moves]},
        "known": {"ids": [id_ for id_, _ in offered]},
        **_questions(moves, now),
    }
    found = dict(
        zip(asked, (yield [(sql.statement(schema, name), values) for name, values in asked.items()]), strict=True)
    )
    sight, ledger = _seen(found, now), Ledger(found["lock_accounts"])
    known = {id_ for (id_,) in found["known"]}
    answers: dict[str, Answer] = {}
    statements: dict[str, Written] = {}
    children: list[tuple[str, NewJob]] = []
    for move in moves:
        if answer := sight.answer(move):
            answers[move.id] = answer
            continue
        job = sight.jobs[move.id]
        after = lifecycle.apply(job, move, sight.now)
        fresh = {id_: new for id_, new in move.children if id_ not in known}
        funded = ledger.take(move, job, after, fresh.items())
        if funded is None:
            answers[move.id] = Answer.UNPAID
            continue
        known |= fresh.keys()
        children += funded
        statements[move.id] = written(schema, move, job, after, sight.now)
    if statements:
        counts = yield [statements[id_] for id_ in sorted(statements)]
        if any(count != 1 for ((count,),) in counts):
            raise Changed
    if rest := [*insertion.statements(children, sight.now), *ledger.statements(sight.now)]:
        yield [(sql.statement(schema, name), values) for name, values in rest]
    return answers | dict.fromkeys(statements, Answer.OK)
