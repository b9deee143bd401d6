"""The way of new jobs into the file.

One job at a time is the most common call, and goes with the least around it. It comes right after a wait for the disk,
when the processor has forgotten what it ran before: each function on that way takes several times as long there as in
a loop. So what elsewhere would be a call is written out in `insert` and in `OpenFile.at_once`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apsw

from holdfast.port.clock import Clock
from holdfast.port.store import Inserted, InsertGroup, Refusal
from holdfast.stores.answers import whole
from holdfast.stores.sqlite import insertion, tally
from holdfast.stores.sqlite.bell import Bell
from holdfast.stores.sqlite.file import OpenFile
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.tally import Deltas
from holdfast.stores.sqlite.turns import Turns

_new = tuple.__new__
"""Makes a named tuple at a fraction of what its own way takes."""
_MANY = 100


@contextmanager
def ruled(file: OpenFile, turns: Turns) -> Iterator[OwnConnection]:
    """Give a write transaction in which turns are taken; if it fails, so does all that was learnt of them."""
    try:
        with file.write() as db:
            yield db
    except BaseException:
        turns.forget()
        raise


class Storing:
    """Stores jobs; those that few rows are enough for are counted by whoever comes next."""

    def __init__(self, file: OpenFile, turns: Turns, bell: Bell, clock: Clock) -> None:
        self._file = file
        self._turns = turns
        self._bell = bell
        self._now = clock.now
        self._uncounted = 0
        """About how many jobs were stored here since somebody counted."""

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all."""
        if len(groups) == 1 == len(groups[0]):
            ((id_, new),) = groups[0]
            rules = self._turns.glance(self._file)
            now = self._now()
            free = rules is not None and not (rules.rules and rules.laned(new.queue))
            if free and (entry := insertion.alone(id_, new, now)) is not None:
                try:
                    self._file.at_once(*entry)
                except apsw.ConstraintError:  # something is in the way, which takes a closer look
                    return self._closely(groups, laned=False)
                self._bell.ring((new.queue,))
                self._uncounted += 1
                if self._uncounted >= tally.UNCOUNTED:
                    self._count(0)
                return [[_new(Inserted, (id_, new, now, None, False))]]
        return self._together(groups)

    def _together(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store groups by one statement, if nothing is in their way."""
        jobs = sum(map(len, groups))
        rules = self._turns.glance(self._file)
        if rules is None and jobs > _MANY:
            with ruled(self._file, self._turns) as db:
                rules = self._turns.refresh(db)
        laned = rules is None or (bool(rules) and any(rules.laned(new.queue) for group in groups for _, new in group))
        now = self._now()
        entry = None if laned else insertion.enter(groups, now)
        if entry is None:
            return self._closely(groups, laned=laned)
        try:
            self._file.at_once(*entry)
        except apsw.ConstraintError:
            return self._closely(groups, laned=laned)
        self._bell.ring({new.queue for group in groups for _, new in group})
        self._count(jobs)
        return [whole(group, now) for group in groups]

    def _closely(self, groups: Sequence[InsertGroup], *, laned: bool) -> list[list[Inserted] | Refusal]:
        """Store groups one after the other, each with a look at what is there."""
        deltas: Deltas = defaultdict(int)
        with ruled(self._file, self._turns) as db:
            place = self._turns.places(db) if laned else None
            answers = insertion.store_groups(db, groups, self._now(), deltas, place)
            tally.change(db, deltas)
            if laned:
                self._turns.stored(db, {queue for queue, _ in deltas})
        self._bell.ring({queue for queue, _ in deltas})
        return answers

    def _count(self, jobs: int) -> None:
        """Have new jobs counted, now and then: nobody may be there to claim them."""
        self._uncounted += jobs
        if self._uncounted >= tally.UNCOUNTED:
            self._uncounted = 0
            with self._file.write() as db:
                tally.fold(db)
