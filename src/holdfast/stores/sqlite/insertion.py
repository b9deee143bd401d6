"""How jobs are stored: group by group inside a transaction, each whole or not at all.

A group is stored as if it were new; only if an id of it turns out to be there already is it looked at more closely.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import apsw
from pydantic_core import to_json

from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits
from holdfast.domain.job import CreditEntry, JobRecord, NewJob, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup, Refusal
from holdfast.stores.sqlite import books, rows
from holdfast.stores.sqlite.guests import Connection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas

ONE_STATEMENT = 32
"""Up to so many jobs are inserted by one statement, which needs no savepoint and gives up the interpreter once."""
Place = Callable[[NewJob], str | None]
"""Names the lane of a new job."""
_QUEUE, _STATE, _PAYLOAD = (JobRecord._fields.index(name) for name in ("queue", "state", "payload"))
_REST = NewJob._fields.index("payload") + 1
"""Where the fields of a new job begin that others may have in common with it, besides the kind."""


def plain(new: NewJob) -> bool:
    """Tell whether nothing but a row is to be written for a job, and nothing but its id can be in its way."""
    return new.key is None and not new.credits and not new.steps and new.state is State.QUEUED


def enter(groups: Sequence[InsertGroup], now: Micros) -> tuple[str, Sequence[Any]] | None:
    """Give the statement that stores jobs in whose way nothing can be but their ids, and its values.

    None if that takes more than one statement: there are keys, or many jobs that differ in more than their payloads.
    """
    jobs = [one for group in groups for one in group]
    if len(jobs) > 1 and (together := _alike(jobs)):
        id_, new = jobs[0]
        row = rows.fresh(id_, new, now)
        return SQL["insert_alike"], (to_json(together).decode(), len(jobs), *row[1:_PAYLOAD], *row[_PAYLOAD + 1 :])
    if not 1 < len(jobs) == len(groups) <= ONE_STATEMENT or not all(plain(new) for _, new in jobs):
        return None
    if any(rows.is_laden(new) for _, new in jobs):
        return _entry(len(jobs), laden=True), [value for job in jobs for value in rows.laden(*job, now)]
    return _entry(len(jobs)), [value for id_, new in jobs for value in rows.fresh(id_, new, now)]


def alone(id_: str, new: NewJob, now: Micros) -> tuple[str, Sequence[Any]] | None:
    """Give the same for one job."""
    if new[rows.PARENT :] == rows.BARE:  # as `is_laden` tells
        return (_ALONE, rows.fresh(id_, new, now)) if new.key is None and new.state is _QUEUED else None
    return (_entry(1, laden=True), rows.laden(id_, new, now)) if plain(new) else None


def _alike(jobs: InsertGroup) -> dict[str, str] | None:
    """Give payloads by id, if that is all that jobs differ in and none has more than most."""
    first = jobs[0][1]
    kind, rest = first.kind, first[_REST:]
    if not plain(first) or rows.is_laden(first) or any(new[_REST:] != rest or new.kind != kind for _, new in jobs):
        return None
    payloads = {id_: new.payload for id_, new in jobs}
    return payloads if len(payloads) == len(jobs) else None


@cache
def _entry(jobs: int, *, laden: bool = False) -> str:
    """Give the statement that stores so many jobs, and leaves them to be counted."""
    head, _, rows_ = _insert(jobs, "insert_laden" if laden else "insert").partition(")\nVALUES ")
    return f"{head}, uncounted)\nVALUES {rows_.replace('?)', '?, TRUE)')}"


@cache
def _insert(jobs: int, name: str) -> str:
    """Give the statement that inserts so many jobs at once, which all or none of them survive."""
    head, _, row = SQL[name].partition("VALUES ")
    return f"{head}VALUES {', '.join([row] * jobs)}"


_ALONE, _QUEUED = _entry(1), State.QUEUED
"""What the most common call asks for every time."""


def store_groups(
    db: Connection, groups: Sequence[InsertGroup], now: Micros, deltas: Deltas, place: Place | None = None
) -> list[list[Inserted] | Refusal]:
    """Store groups one by one; or, if nothing could refuse one of them, all in one go."""
    if len(groups) == 1 or any(new.key is not None or new.credits for group in groups for _, new in group):
        return [store_group(db, group, now, deltas, place) for group in groups]
    answers = store_group(db, [one for group in groups for one in group], now, deltas, place)
    assert isinstance(answers, list)
    each = iter(answers)
    return [list(islice(each, len(group))) for group in groups]


def store_group(
    db: Connection, group: InsertGroup, now: Micros, deltas: Deltas, place: Place | None = None
) -> list[Inserted] | Refusal:
    """Store a group as if it were new; if an id of it is there already, the group is asked again: look closer."""
    laden = any(rows.is_laden(new) for _, new in group)
    if laden and any(new.credits for _, new in group):  # what is there already need not be paid for again
        return _Group(db, now, deltas, _known(db, group), place, laden=laden).store(group)
    several = len(group) > ONE_STATEMENT
    if several:
        db.execute("SAVEPOINT insertion")
    try:
        answers = _Group(db, now, deltas, set(), place, laden=laden).store(group)
    except apsw.ConstraintError:
        if several:
            db.execute("ROLLBACK TO insertion")
        answers = _Group(db, now, deltas, _known(db, group), place, laden=laden).store(group)
    if several:
        db.execute("RELEASE insertion")
    return answers


def _known(db: Connection, group: InsertGroup) -> set[str]:
    """Find the ids of a group that are stored already."""
    return set(json.loads(db.execute(SQL["known"], (json.dumps([id_ for id_, _ in group]),)).fetchone()[0]))


class _Group:
    """A group on its way into the store. Nothing is written until every job of it has its answer."""

    def __init__(
        self, db: Connection, now: Micros, deltas: Deltas, known: set[str], place: Place | None, *, laden: bool
    ) -> None:
        self._db = db
        self._now = now
        self._deltas = deltas
        self._known = known
        self._laden = laden
        self._place = place
        self._purse = books.Purse(db)
        self._answers: list[Inserted] = []
        self._stored: list[tuple[Any, ...]] = []
        self._keys: dict[tuple[str, str], JobRecord] = {}
        self._lifetimes: list[tuple[str, str, Micros | None, str]] = []
        self._steps: list[tuple[str, int, str, str | None, Micros]] = []
        self._entries: list[CreditEntry] = []

    def store(self, group: InsertGroup) -> list[Inserted] | Refusal:
        """Store the jobs that are not there yet."""
        now, laden, place = self._now, self._laden, self._place
        row = rows.laden if laden else rows.fresh
        for id_, given in group:
            if id_ in self._known:
                self._answers.append(Inserted(id_, given, now, self._found(id_)))
                continue
            self._known.add(id_)
            if given.key is not None and (owner := self._owner(given)):
                there = None if owner.id == id_ else rows.read(self._db, id_)
                if there is None and not lifecycle.same_request(owner, given):
                    return lifecycle.key_conflict(given, owner)
                duplicate = there is None and owner.id != id_
                self._answers.append(Inserted(id_, given, now, there or owner, duplicate=duplicate))
                continue
            try:
                new = self._load(id_, given) if laden else given
            except InsufficientCredits as refusal:
                return refusal
            if new.key is not None:
                self._take_key(id_, new, new.key)
            self._stored.append(row(id_, new, now) if place is None else rows.laned(id_, new, now, place(new)))
            self._answers.append(Inserted(id_, new, now))
        self._write()
        return self._answers

    def _found(self, id_: str) -> JobRecord | None:
        """Give a job that is there already, or that came earlier in the group."""
        return rows.read(self._db, id_) or next((one.job for one in self._answers if one.id == id_), None)

    def _owner(self, new: NewJob) -> JobRecord | None:
        """Give the job that keeps a key from a new one."""
        assert new.key is not None
        owner = self._keys.get((new.tenant, new.key))
        if owner is None:
            row = self._db.execute(SQL["key_owner"], (new.tenant, new.key, self._now)).fetchone()
            owner = None if row is None else rows.read(self._db, row[0])
        return owner if owner and lifecycle.owns_key(owner, new) else None

    def _take_key(self, id_: str, new: NewJob, key: str) -> None:
        self._keys[new.tenant, key] = lifecycle.create(id_, new, self._now)
        self._lifetimes.append((new.tenant, key, None if new.key_ttl is None else self._now + new.key_ttl, id_))

    def _load(self, id_: str, given: NewJob) -> NewJob:
        """Set credits aside for a job, and keep its steps to be written; raises `InsufficientCredits`."""
        new = self._purse.fund(given)
        first = -len(new.steps)
        self._steps += [(id_, first + place, *step, self._now) for place, step in enumerate(new.steps)]
        if new.credits and new.reserved:
            self._entries.append(CreditEntry(new.tenant, "reserve", id_, 1, None, 0, new.reserved, 0, self._now))
        return new

    def _write(self) -> None:
        name = "insert_laned" if self._place is not None else "insert_laden" if self._laden else "insert"
        if len(self._stored) > ONE_STATEMENT:
            self._db.executemany(SQL[name], self._stored)
        elif self._stored:
            statement = _insert(len(self._stored), name)
            self._db.execute(statement, [value for row in self._stored for value in row])
        if self._lifetimes:
            self._db.executemany(SQL["take_key"], self._lifetimes)
        if self._steps:
            self._db.executemany(SQL["inherit_step"], self._steps)
        if self._entries:
            books.enter(self._db, self._entries)
        for row in self._stored:
            self._deltas[row[_QUEUE], row[_STATE]] += 1
