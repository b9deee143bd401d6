"""Notes of jobs that are about to end: of many in one item, by the time that they may go.

A finished job is found for purging by its entry in the index, which costs a unit. Where several end together, one note
is cheaper. It is written before their rows, so there is none without a note; a note of a job that did not end after all
is let go a day after its time.
"""

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from holdfast.domain import lifecycle
from holdfast.domain.dialects import timestamp
from holdfast.domain.errors import StoreError
from holdfast.domain.job import TERMINAL, State
from holdfast.domain.moments import DAY, HOUR, Micros
from holdfast.domain.move import Move
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.layout import Layout
from holdfast.stores.dynamodb.wire import Wire, op_token

_NOTES = "ends"
_NOTED = frozenset({State.SUCCEEDED, State.CANCELLED})
"""A dead job has an entry in any case: its message may have to be put into the dead-letter queue."""
_MOST = 1_000
"""How many jobs are in one note: 16 bytes each."""
_PATIENCE: Micros = DAY


class Note(NamedTuple):
    """A note whose time has come."""

    place: Place
    until: Micros
    """How long jobs of it that have not ended yet are waited for."""
    over: frozenset[str]
    """Those of its jobs that may go."""
    live: frozenset[str]


class Ends:
    """The notes of a table."""

    def __init__(self, wire: Wire, layout: Layout) -> None:
        self._wire = wire
        self._layout = layout

    def note(self, moves: Sequence[Move], now: Micros) -> frozenset[str]:
        """Note the jobs that these moves end, unless it is one alone; give those that need no entry for it."""
        if not self._layout.notes_ends:
            return frozenset()
        ending: dict[Micros, set[str]] = defaultdict(set)
        for move in moves:
            ends = move.state in _NOTED and move.purge_after is not None and move.restores is None
            if ends and str(UUID(move.id)) == move.id:
                ending[now + (move.purge_after or 0)].add(move.id)
        noted: set[str] = set()
        with suppress(StoreError):  # they have entries then
            for at, ids in ending.items():
                if len(ids) > 1:
                    self._write(sorted(ids), at, at + _PATIENCE)
                    noted |= ids
        return frozenset(noted)

    def _write(self, ids: Sequence[str], at: Micros, until: Micros) -> None:
        for start in range(0, len(ids), _MOST):
            place = Place(_NOTES, f"{timestamp(at)}#{op_token()}")
            jobs = {"BS": [UUID(id_).bytes for id_ in ids[start : start + _MOST]]}
            item = {**place.key, "jobs": jobs, "until_at": items.wire(until)}
            self._wire.call("put_item", writes=True, Item=item)

    def due(self, limit: int, now: Micros) -> tuple[list[Note], list[Item]]:
        """Read the notes whose time has come, and the items of those of their jobs that may go."""
        notes: list[Note] = []
        found: list[Item] = []
        for item in self._wire.walk(_NOTES, "0", items.upto("", now), limit=100) if self._layout.notes_ends else ():
            if len(found) >= limit:
                break
            rows = self._layout.fetch(self._wire, [str(UUID(bytes=bytes(raw))) for raw in item["jobs"]["BS"]])
            jobs = {id_: job for id_, row in rows.items() if (job := self._layout.understood(row)) is not None}
            over = [id_ for id_, job in jobs.items() if lifecycle.purgeable(job, now)]
            live = frozenset(id_ for id_, job in jobs.items() if job.state not in TERMINAL)
            found += [rows[id_] for id_ in over]
            place = Place(item["PK"]["S"], item["SK"]["S"])
            notes.append(Note(place, int(item["until_at"]["N"]), frozenset(over), live))
        return notes, found[:limit]

    def settle(self, notes: Sequence[Note], removed: AbstractSet[str], now: Micros) -> None:
        """Remove the notes whose jobs are gone; those that have not ended yet are looked at again in an hour."""
        for note in notes:
            if note.over <= removed:
                if note.live and now < note.until:
                    self._write(sorted(note.live), now + HOUR, note.until)
                self._wire.delete(note.place)
