"""Group commit for enqueues: callers that come while a commit is under way share the next one.

A caller that finds nobody writing writes at once, in its own thread, with no hand-over; so a lone enqueue costs what the store costs. Each caller's jobs
form one group, stored whole or not at all, and a conflict in one group never touches another.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from holdfast.domain.errors import KeyConflict
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.port.store import Inserted, InsertGroup, Store

_MOST_GROUPS = 500
Answer = Future[list[Inserted]]


class Inserter:
    """The one way from a process into its store."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._id_lock = threading.Lock()
        self._turn = threading.Lock()
        self._pending: deque[tuple[InsertGroup, Answer]] = deque()
        self._idle_carrier = threading.Semaphore(0)
        self._carrier: threading.Thread | None = None

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together, sharing the commit with whoever else is waiting."""
        answer: Answer = Future()
        self._pending.append((self.group(jobs), answer))
        while not answer.done():
            if self._turn.acquire(blocking=False):
                self._carry()
            elif self._turn.acquire(timeout=1):
                self._carry(unless=answer)
        return answer.result()

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store these jobs together without blocking the event loop."""
        answer: Answer = Future()
        self._pending.append((self.group(jobs), answer))
        self._start_carrier()
        self._idle_carrier.release()
        return await asyncio.wrap_future(answer)

    def group(self, jobs: Sequence[NewJob]) -> InsertGroup:
        """Give each job its id."""
        with self._id_lock:
            ids = self._ids.take(len(jobs))
        return list(zip(ids, jobs, strict=True))

    def _carry(self, unless: Answer | None = None) -> None:
        """Write what is pending; the turn is held on entry and given up on exit."""
        batch: list[tuple[InsertGroup, Answer]] = []
        try:
            if unless is not None and unless.done():
                return
            while self._pending and len(batch) < _MOST_GROUPS:
                batch.append(self._pending.popleft())
            if batch:
                self._settle(batch)
        finally:
            self._turn.release()

    def _settle(self, batch: list[tuple[InsertGroup, Answer]]) -> None:
        try:
            outcomes = self._store.insert([group for group, _ in batch])
        except BaseException as error:  # noqa: BLE001 - every waiting caller must hear of it
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, KeyConflict):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _start_carrier(self) -> None:
        with self._id_lock:
            if self._carrier is None or not self._carrier.is_alive():
                self._carrier = threading.Thread(target=self._carry_for_loops, name="holdfast-inserter", daemon=True)
                self._carrier.start()

    def _carry_for_loops(self) -> None:
        while self._idle_carrier.acquire():
            if self._pending:
                with_turn = self._turn.acquire()
                if with_turn:
                    self._carry()
