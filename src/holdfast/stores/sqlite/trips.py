"""Completions and claims by one statement.

After every statement that takes long, a worker has to wait for its turn among the handlers that run meanwhile. So what
a trip writes is one statement for most of them: the fewer there are, the more the disk's work and the handlers'
overlap.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import apsw
from pydantic_core import to_json

from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas

_MOST = 8
"""The most leases in a statement."""
_COUNTED = 5
"""The place of `counted` among the parameters of `trip`."""

Leases = dict[tuple[Any, ...], dict[str, str | None]]
"""Results by job id, by the lease that the jobs are held by and how long they are kept."""


class Take(NamedTuple):
    """Which jobs are claimed, and for whom: those that were picked, or the first of a queue if all is as it was."""

    seqs: str = "[]"
    """As JSON."""
    queue: str | None = None
    most: int = 0
    stamp: int = 0
    """Of the rules that hold."""
    only: bool = False
    """Whether no other queue is asked for."""
    lease_id: str | None = None
    owner: str | None = None
    lease: Micros = 0
    by_lane: bool = False
    """Whether running jobs are counted by their lanes."""


NOTHING = Take()
_NO_LEASES: Leases = {(None, None, None): {}}


class Refused(Exception):
    """Not every job is held by the lease that would complete it, or not all is as it was; nothing was written."""


def by_lease(moves: Sequence[Move]) -> Leases:
    """Sort completions by lease; a job that is in there twice is there once."""
    leases: Leases = {}
    for move in moves:
        leases.setdefault((*move.guard, move.purge_after), {})[move.id] = move.result
    return leases


def trip(db: OwnConnection, now: Micros, leases: Leases, deltas: Deltas, take: Take = NOTHING) -> None:
    """Complete the jobs of these leases, or none of them, claim others, and count them all."""
    counted = to_json([(queue, state, jobs) for (queue, state), jobs in deltas.items() if jobs]).decode()
    rows: list[tuple[Any, ...]] = [
        (to_json(results).decode(), len(results), *lease, "[]", now, *NOTHING)
        for lease, results in (leases or _NO_LEASES).items()
    ]
    rows[-1] = (*rows[-1][:_COUNTED], counted, now, *take)
    try:
        for start in range(0, len(rows), _MOST):
            few = rows[start : start + _MOST]
            db.execute(repeated(SQL["trip"], len(few)), [value for row in few for value in row])
    except apsw.ConstraintError as error:
        if not leases and not take.most:  # nothing was guessed, and there is no guard
            raise
        raise Refused from error


@lru_cache(maxsize=256)
def repeated(statement: str, rows: int) -> str:
    """Give a statement that inserts one row as one that inserts so many."""
    head, row = statement.rsplit("VALUES", 1)
    return f"{head}VALUES{','.join(repeat(row, rows))}"
