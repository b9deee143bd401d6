"""Group commit for enqueues: callers that come while a commit is under way share the next one.

A caller that finds nobody writing writes at once, in its own thread, with no hand-over; so a lone enqueue costs what
the store costs. Each caller's jobs
form one group, stored whole or not at all, and a conflict in one group never touches another.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.port.store import Inserted, InsertGroup, Store

_MOST_GROUPS = 500
_MOST_TURNS = 4
"""How many commits a caller makes for others before it returns to its own work."""


class Ticket:
    """One caller's place in a shared commit."""

    __slots__ = ("_future", "_held", "group", "outcome")

    def __init__(self, group: InsertGroup) -> None:
        self.group = group
        self.outcome: list[Inserted] | BaseException | None = None
        self._held: threading.Lock | None = None
        self._future: asyncio.Future[None] | None = None

    def settle(self, outcome: list[Inserted] | BaseException) -> None:
        """Give the caller its answer."""
        self.outcome = outcome
        if self._held is not None:
            self._held.release()
        elif self._future is not None:
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more, and the others must not suffer
                self._future.get_loop().call_soon_threadsafe(_resolve, self._future)

    def block(self) -> threading.Lock:
        """Prepare to block a thread on this ticket."""
        self._held = threading.Lock()
        self._held.acquire()
        return self._held

    def suspend(self) -> "asyncio.Future[None]":
        """Prepare to suspend a task on this ticket."""
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def answer(self) -> list[Inserted]:
        """Give the answer, or raise it."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class Inserter:
    """The one way from a process into its store."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._lock = threading.Lock()
        self._writing = False
        self._pending: deque[Ticket] = deque()

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together, sharing the commit with whoever else is waiting."""
        ticket = Ticket(self.group(jobs))
        with self._lock:
            blocked = ticket.block() if self._writing else None
            self._writing = True
            if blocked is not None:
                self._pending.append(ticket)
        if blocked is None:
            self._lead([ticket])
        else:
            blocked.acquire()
        return ticket.answer()

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together without blocking the event loop."""
        ticket = Ticket(self.group(jobs))
        future = ticket.suspend()
        with self._lock:
            leads = not self._writing
            self._writing = True
            self._pending.append(ticket)
        if leads:
            asyncio.get_running_loop().run_in_executor(None, self._lead, [])
        await future
        return ticket.answer()

    def group(self, jobs: Sequence[NewJob]) -> InsertGroup:
        """Give each job its id."""
        with self._lock:
            ids = self._ids.take(len(jobs))
        return list(zip(ids, jobs, strict=True))

    def _lead(self, batch: list[Ticket]) -> None:
        """Write this batch and a few more that came meanwhile; what is left then goes to a thread of its own."""
        for _ in range(_MOST_TURNS):
            if batch:
                self._write(batch)
            with self._lock:
                if not self._pending:
                    self._writing = False
                    return
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MOST_GROUPS))]
        threading.Thread(target=self._lead, args=(batch,), name="holdfast-inserter", daemon=True).start()

    def _write(self, batch: list[Ticket]) -> None:
        try:
            outcomes = self._store.insert([ticket.group for ticket in batch])
        except BaseException as error:  # noqa: BLE001 - every waiting caller must hear of it
            for ticket in batch:
                ticket.settle(error)
            return
        for ticket, outcome in zip(batch, outcomes, strict=True):
            ticket.settle(outcome)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
