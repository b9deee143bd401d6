"""The way of new jobs into the store: ids are given here, and enqueues that come together share a commit.

Each caller's jobs form one group, stored whole or not at all; a conflict in one group never touches another.
"""

import random
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from holdfast.client.sharing import Sharing
from holdfast.domain.alike import Alike, Named
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.port.clock import Clock
from holdfast.port.shelter import SHELTER
from holdfast.port.store import Inserted, InsertGroup, Store


class Producing(Protocol):
    """Who watches jobs on their way into the store, and may send the trace they belong to with them."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]: ...
    def enqueued(self, jobs: Sequence[Inserted]) -> None: ...


class Inserter(Sharing[Sequence[NewJob], list[Inserted]]):
    """The one way from a process into its store."""

    def __init__(self, store: Store, clock: Clock, watch: Producing | None = None) -> None:
        super().__init__()
        self._watch = watch
        self._store = store
        self._now = clock.now
        self._ids = Ids(lambda: clock.now() // 1000, random.Random().getrandbits)  # noqa: S311 - names, not secrets
        self._naming = threading.Lock()
        """Held while ids are made, and never while anything is written: whoever enqueues in a transaction of its own
        may be what the writer waits for."""

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together, sharing the commit with whoever else is waiting."""
        if self._watch is None:
            return self.share(jobs)
        with self._watch.enqueuing(jobs) as sent:
            stored = self.share(sent)
            self._watch.enqueued(stored)
        return stored

    def insert_one(self, new: NewJob) -> Inserted:
        """Store one job: the most common call, and with nobody else about the one with the least around it."""
        if self._watch is not None or SHELTER.exposed:
            return self.insert((new,))[0]
        jobs = (new,)
        try:
            if self._turn.setdefault(None, jobs) is not jobs:
                return self._join(jobs)[0]
            with self._naming:
                id_ = self._ids.one(self._now())
            (outcome,) = self._store.insert([[(id_, new)]])
            self._leave(jobs)
        except BaseException:
            self._leave(jobs)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome[0]

    def ainsert(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, list[Inserted]]:
        """Store these jobs together without blocking the event loop."""
        return self.ashare(jobs) if self._watch is None else self._watched(jobs, self._watch)

    async def _watched(self, jobs: Sequence[NewJob], watch: Producing) -> list[Inserted]:
        with watch.enqueuing(jobs) as sent:
            stored = await self.ashare(sent)
            watch.enqueued(stored)
        return stored

    def group(self, jobs: Sequence[NewJob]) -> InsertGroup:
        """Give each job its id."""
        ids = self.take(len(jobs))
        return Named(ids, jobs) if isinstance(jobs, Alike) else list(zip(ids, jobs, strict=True))

    def take(self, count: int) -> list[str]:
        """Make fresh ids."""
        with self._naming:
            return self._ids.take(count)

    def _write(self, batch: Sequence[Sequence[NewJob]]) -> Sequence[list[Inserted] | BaseException]:
        if len(batch) == 1:
            return self._store.insert([self.group(batch[0])])
        ids = iter(self.take(sum(len(jobs) for jobs in batch)))
        return self._store.insert([[(next(ids), job) for job in jobs] for jobs in batch])
