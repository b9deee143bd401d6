"""Group commit: callers that come while a commit is under way share the next one.

A caller that finds nobody writing writes at once, in its own thread, with no hand-over; so a lone write costs what the
store costs. Whoever comes meanwhile leaves a ticket and waits; the writer, when it is done, lets the first of them
write for all. Threads that share a commit wake each other one by one: woken all at once, they would queue for the
interpreter.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar, cast

from holdfast.port.shelter import SHELTER

Asked = TypeVar("Asked")
Got = TypeVar("Got")
_MOST = 500


class Ticket(Generic[Asked, Got]):
    """One caller's place in a shared commit."""

    __slots__ = ("_held", "after", "answered", "asked", "future", "outcome")

    def __init__(self, asked: Asked, future: "asyncio.Future[None] | None") -> None:
        self.asked = asked
        self.future = future
        self.answered = False
        self.outcome: Got | BaseException | None = None
        self.after: Ticket[Asked, Got] | None = None
        """Who is to be woken next."""
        self._held = threading.Lock()
        self._held.acquire()

    def wait(self) -> None:
        """Block until woken: to take the answer, or to write if there is none yet."""
        self._held.acquire()

    def wake(self) -> None:
        """Let a blocked caller go on; a suspended one is told through its `future`."""
        self._held.release()

    def answer(self) -> Got:
        """Give the answer, or raise it."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return cast("Got", self.outcome)


class Sharing(ABC, Generic[Asked, Got]):
    """One way into a store that many callers share."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """Held by whoever writes; only its holder takes tickets."""
        self._pending: deque[Ticket[Asked, Got]] = deque()

    @abstractmethod
    def _write(self, batch: Sequence[Asked]) -> Sequence[Got | BaseException]:
        """Write what these callers asked for, in one commit, and answer each."""

    def share(self, asked: Asked) -> Got:
        """Write this, sharing the commit with whoever else is waiting."""
        with SHELTER:
            if not self._turn.acquire(blocking=False):
                return self._join(asked)
            try:  # nobody else is there: the common case, and the shortest way
                (outcome,) = self._write((asked,))
            finally:
                self._leave()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _join(self, asked: Asked) -> Got:
        ticket: Ticket[Asked, Got] = Ticket(asked, None)
        self._pending.append(ticket)
        if not self._turn.acquire(blocking=False):
            try:
                ticket.wait()
            except BaseException:  # interrupted: somebody must still do what this caller would be woken for
                threading.Thread(target=self._stand_in, args=(ticket,), name="holdfast-sharing", daemon=True).start()
                raise
        self._go_on(ticket)
        return ticket.answer()

    async def ashare(self, asked: Asked) -> Got:
        """Write this without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ticket: Ticket[Asked, Got] = Ticket(asked, loop.create_future())
        self._pending.append(ticket)
        if self._turn.acquire(blocking=False):
            loop.run_in_executor(None, self._write_for_tasks)
        assert ticket.future is not None
        await ticket.future
        return ticket.answer()

    def _stand_in(self, ticket: Ticket[Asked, Got]) -> None:
        ticket.wait()
        self._go_on(ticket)

    def _go_on(self, ticket: Ticket[Asked, Got]) -> None:
        """Do what a caller is woken for: write, if nobody has; and wake the next who shares the commit."""
        if not ticket.answered:
            self._write_pending(ticket)
            self._leave()
        elif ticket.after is not None:
            ticket.after.wake()

    def _leave(self) -> None:
        """Give up the turn, to the first who came meanwhile if there is one."""
        self._turn.release()
        if self._pending:
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the first who came meanwhile have the turn, which nobody has."""
        if self._turn.acquire(blocking=False):
            if not self._pending:
                self._turn.release()
            elif self._pending[0].future is None:
                self._pending[0].wake()
            else:
                threading.Thread(target=self._write_for_tasks, name="holdfast-sharing", daemon=True).start()

    def _write_for_tasks(self) -> None:
        """Write for as long as a task is next; tasks cannot write, and a thread does it for them."""
        while True:
            self._write_pending()
            if not self._pending or self._pending[0].future is None:
                break
        self._leave()

    def _write_pending(self, own: Ticket[Asked, Got] | None = None) -> None:
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MOST))]
        if not batch:
            return
        try:
            outcomes: Sequence[Got | BaseException] = self._write([ticket.asked for ticket in batch])
        except BaseException as error:  # noqa: BLE001 - every waiting caller must hear of it
            outcomes = [error] * len(batch)
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        woken: Ticket[Asked, Got] | None = None
        for ticket, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
            if ticket.future is not None:
                loops.setdefault(ticket.future.get_loop(), []).append(ticket.future)
            elif ticket is not own:
                ticket.after, woken = woken, ticket
            ticket.outcome = outcome
            ticket.answered = True
        if woken is not None:
            woken.wake()
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more, and the others must not suffer
                loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
