"""Group commit: callers that come while a commit is under way share the next one.

A caller that finds nobody writing writes at once, in its own thread, with no hand-over; so a lone write costs what the
store costs. Whoever comes meanwhile leaves a ticket and waits; the writer, when it is done, lets the first of them
write for all. Threads that share a commit wake each other one by one: woken all at once, they would queue for the
interpreter.

Nobody may be left waiting, whatever happens to somebody else. A task cannot write, and a signal can raise an exception
in the main thread between any two of its steps: so nothing is handed to these two, and another thread writes for them.
Only alone does the main thread write; who has the turn is noted by the step that takes it, so that whatever interrupts
a writer, the turn is given up. A task never has the turn: the thread that writes for it takes it when it comes.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from holdfast.port.shelter import SHELTER

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from concurrent.futures import ThreadPoolExecutor

Asked = TypeVar("Asked")
Got = TypeVar("Got")
_MOST = 500


class Ticket(Generic[Asked, Got]):
    """One caller's place in a shared commit."""

    __slots__ = ("after", "answered", "asked", "future", "held", "outcome", "served")

    def __init__(
        self, asked: Asked, future: "Future[Got | BaseException] | None" = None, *, served: bool = False
    ) -> None:
        self.asked = asked
        self.future = future
        """Where a suspended caller waits."""
        self.served = served
        """Whether another thread writes for this caller."""
        if future is not None:
            return
        self.answered = False
        self.outcome: Got | BaseException | None = None
        self.after: Ticket[Asked, Got] | None = None
        """Who is to be woken next."""
        self.held = threading.Lock()
        """Where a blocked caller waits: to take the answer, or to write if there is none yet."""
        self.held.acquire()

    def wake(self) -> None:
        """Let the caller go on; again does no harm."""
        with suppress(RuntimeError):  # it was woken, and has not noticed yet
            self.held.release()

    def answer(self) -> Got:
        """Give what the caller asked for, or raise why not."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return cast("Got", self.outcome)


class Sharing(ABC, Generic[Asked, Got]):
    """One way into a store that many callers share."""

    def __init__(self) -> None:
        self._turn: dict[None, object] = {}
        """Who writes, if somebody does: it is taken by `setdefault`. Only who has it takes tickets."""
        self._pending: deque[Ticket[Asked, Got]] = deque()
        self._called = False
        """Whether a thread is on its way to write for tasks."""

    @abstractmethod
    def _write(self, batch: Sequence[Asked]) -> Sequence[Got | BaseException]:
        """Write what these callers asked for, in one commit, and answer each."""

    def share(self, asked: Asked) -> Got:
        """Write this, sharing the commit with whoever else is waiting."""
        mine = (asked,)
        with SHELTER:
            try:
                if self._turn.setdefault(None, mine) is not mine:
                    return self._join(asked)
                (outcome,) = self._write(mine)  # nobody else is there: the common case, and the shortest way
                self._leave(mine)
            except BaseException:
                self._leave(mine)
                raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _join(self, asked: Asked) -> Got:
        if threading.current_thread() is threading.main_thread():
            return self._be_served(asked)
        ticket: Ticket[Asked, Got] = Ticket(asked)
        self._pending.append(ticket)
        if self._turn.setdefault(None, ticket) is not ticket:
            ticket.held.acquire()
        if not ticket.answered:
            self._write_pending(ticket)
        elif ticket.after is not None:
            ticket.after.wake()
        if self._turn.get(None) is ticket:  # whoever had it before may have written for this caller as well
            self._leave(ticket)
        return ticket.answer()

    def _be_served(self, asked: Asked) -> Got:
        ticket: Ticket[Asked, Got] = Ticket(asked, served=True)
        self._pending.append(ticket)
        if not self._turn:
            self._serve_apart()
        ticket.held.acquire()
        return ticket.answer()

    async def ashare(self, asked: Asked) -> Got:
        """Write this without blocking the event loop."""
        from asyncio import get_running_loop

        future: Future[Got | BaseException] = get_running_loop().create_future()
        self._pending.append(Ticket(asked, future, served=True))
        if not self._turn and not self._called:
            try:
                self._called = True
                self._writer.submit(self._serve)
            except BaseException:
                self._called = False
                raise
        outcome = await future
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @cached_property
    def _writer(self) -> "ThreadPoolExecutor":
        """The thread that writes for tasks; a loop's own would wake the loop once more, when it has written."""
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(1, "holdfast-sharing")

    def _leave(self, mine: object) -> None:
        """Give up the turn, to the first who came meanwhile if there is one; again, if that was interrupted."""
        if self._turn.get(None) is mine:
            del self._turn[None]
        if self._pending:
            self._pass_on(mine)

    def _pass_on(self, mine: object) -> None:
        """Let the first who came meanwhile have the turn, if nobody has."""
        holder = self._turn.setdefault(None, mine)
        if holder is mine:
            if not self._pending or self._pending[0].served:
                del self._turn[None]
                if self._pending:
                    self._serve_apart()
                return
            holder = self._turn[None] = self._pending[0]
        if isinstance(holder, Ticket):  # perhaps it was let have the turn, and not told
            holder.wake()

    def _serve_apart(self) -> None:
        threading.Thread(target=self._serve, name="holdfast-sharing", daemon=True).start()

    def _serve(self) -> None:
        """Write for as long as one who cannot is next; if somebody else has the turn, it is passed on."""
        self._called = False
        mine = object()
        if self._turn.setdefault(None, mine) is not mine:
            return
        while self._pending and self._pending[0].served:
            self._write_pending()
        self._leave(mine)

    def _write_pending(self, own: Ticket[Asked, Got] | None = None) -> None:
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MOST))]
        if not batch:
            return
        try:
            outcomes: Sequence[Got | BaseException] = self._write([ticket.asked for ticket in batch])
        except BaseException as error:  # noqa: BLE001 - every waiting caller must hear of it
            outcomes = [error] * len(batch)
        loops: dict[AbstractEventLoop, list[tuple[Future[Got | BaseException], Got | BaseException]]] = {}
        served: list[Ticket[Asked, Got]] = []
        woken: Ticket[Asked, Got] | None = None
        for ticket, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
            if ticket.future is not None:
                loops.setdefault(ticket.future.get_loop(), []).append((ticket.future, outcome))
                continue
            if ticket.served:
                served.append(ticket)
            elif ticket is not own:
                ticket.after, woken = woken, ticket
            ticket.outcome = outcome
            ticket.answered = True
        for ticket in served:
            ticket.wake()
        if woken is not None:
            woken.wake()
        for loop, answers in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more, and the others must not suffer
                loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: "list[tuple[Future[Got | BaseException], Got | BaseException]]") -> None:
    for future, outcome in reversed(answers):
        if not future.done():
            future.set_result(outcome)
