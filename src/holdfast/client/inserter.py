"""Group commit for enqueues: callers that come while a commit is under way share the next one.

A caller that finds nobody writing writes at once, in its own thread, with no hand-over; so a lone enqueue costs what
the store costs. Whoever comes meanwhile leaves a ticket and waits; the writer, when it is done, lets the first of them
write for all. Each caller's jobs form one group, stored whole or not at all, and a conflict in one group never touches
another. Threads that share a commit wake each other one by one: woken all at once, they would queue for the
interpreter.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from holdfast.domain.errors import KeyConflict
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.port.store import Inserted, InsertGroup, Store

_MOST_GROUPS = 500


class Ticket:
    """One caller's place in a shared commit."""

    __slots__ = ("_held", "after", "future", "jobs", "outcome")

    def __init__(self, jobs: Sequence[NewJob], future: "asyncio.Future[None] | None") -> None:
        self.jobs = jobs
        self.future = future
        self.outcome: list[Inserted] | BaseException | None = None
        self.after: Ticket | None = None
        """Who is to be woken next."""
        self._held = threading.Lock()
        self._held.acquire()

    def wait(self) -> None:
        """Block until woken: to take the answer, or to write if there is none yet."""
        self._held.acquire()

    def wake(self) -> None:
        """Let a blocked caller go on; a suspended one is told through its `future`."""
        self._held.release()

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
        self._turn = threading.Lock()
        """Held by whoever writes; only its holder takes tickets."""
        self._naming = threading.Lock()
        """Held while ids are made, and never while anything is written: whoever enqueues in a transaction of its own
        may be what the writer waits for."""
        self._pending: deque[Ticket] = deque()

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together, sharing the commit with whoever else is waiting."""
        if self._turn.acquire(blocking=False):
            return self._write_own(jobs)
        ticket = Ticket(jobs, None)
        self._pending.append(ticket)
        if not self._turn.acquire(blocking=False):
            try:
                ticket.wait()
            except BaseException:  # interrupted: somebody must still do what this caller would be woken for
                threading.Thread(target=self._stand_in, args=(ticket,), name="holdfast-inserter", daemon=True).start()
                raise
        self._go_on(ticket)
        return ticket.answer()

    def _stand_in(self, ticket: Ticket) -> None:
        ticket.wait()
        self._go_on(ticket)

    def _go_on(self, ticket: Ticket) -> None:
        """Do what a caller is woken for: write, if nobody has; and wake the next who shares the commit."""
        if ticket.outcome is None:
            self._write_pending(ticket)
            self._pass_on()
        elif ticket.after is not None:
            ticket.after.wake()

    def _write_own(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write for nobody but oneself: the common case, and the shortest way."""
        try:
            (outcome,) = self._store.insert([self.group(jobs)])
        finally:
            self._pass_on()
        if isinstance(outcome, KeyConflict):
            raise outcome
        return outcome

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(jobs, loop.create_future())
        self._pending.append(ticket)
        if self._turn.acquire(blocking=False):
            loop.run_in_executor(None, self._write_for_tasks)
        assert ticket.future is not None
        await ticket.future
        return ticket.answer()

    def group(self, jobs: Sequence[NewJob]) -> InsertGroup:
        """Give each job its id."""
        return list(zip(self._take(len(jobs)), jobs, strict=True))

    def _take(self, count: int) -> list[str]:
        with self._naming:
            return self._ids.take(count)

    def _pass_on(self) -> None:
        """Give up the turn; if somebody came meanwhile, to the first of them."""
        self._turn.release()
        if self._pending and self._turn.acquire(blocking=False):
            if not self._pending:
                self._turn.release()
            elif self._pending[0].future is None:
                self._pending[0].wake()
            else:
                threading.Thread(target=self._write_for_tasks, name="holdfast-inserter", daemon=True).start()

    def _write_for_tasks(self) -> None:
        """Write for as long as a task is next; tasks cannot write, and a thread does it for them."""
        while True:
            self._write_pending()
            if not self._pending or self._pending[0].future is None:
                break
        self._pass_on()

    def _write_pending(self, own: Ticket | None = None) -> None:
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MOST_GROUPS))]
        if not batch:
            return
        ids = iter(self._take(sum(len(ticket.jobs) for ticket in batch)))
        groups = [[(next(ids), job) for job in ticket.jobs] for ticket in batch]
        try:
            outcomes: Sequence[list[Inserted] | BaseException] = self._store.insert(groups)
        except BaseException as error:  # noqa: BLE001 - every waiting caller must hear of it
            outcomes = [error] * len(batch)
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        woken: Ticket | None = None
        for ticket, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
            if ticket.future is not None:
                loops.setdefault(ticket.future.get_loop(), []).append(ticket.future)
            elif ticket is not own:
                ticket.after, woken = woken, ticket
            ticket.outcome = outcome
        if woken is not None:
            woken.wake()
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more, and the others must not suffer
                loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
