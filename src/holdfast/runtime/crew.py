"""The crew: every lane that runs handlers, and what must be true before one begins."""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer, Move
from holdfast.port.clock import Clock
from holdfast.port.store import Store
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.committer import Committer
from holdfast.runtime.desk import Desk
from holdfast.runtime.executor import Executor
from holdfast.runtime.lanes import ThreadLanes
from holdfast.runtime.loop import LoopLane
from holdfast.runtime.processes import ProcessLanes
from holdfast.runtime.slots import Slots

Finish = Callable[[Attempt, Move | None], None]
FENCE = 0.8
"""The share of a lease after which a worker that could not renew it may not begin or go on."""


_LOOK = 0.02


class Lane(Protocol):
    """Where handlers run."""

    def put(self, attempts: list[Attempt]) -> None: ...
    def waiting(self) -> int: ...
    def take_back(self) -> list[Attempt]: ...
    def interrupt(self, attempt: Attempt) -> None: ...
    def replace(self) -> None: ...
    def close(self) -> None: ...


class Crew:
    """Runs attempts and reports each outcome once, through `finish`; calls `idle` when a lane has nothing left to take.

    `mixed` says that kinds run in more than one sort of lane, which then share one limit.
    """

    def __init__(
        self,
        *,
        store: Store,
        settings: Settings,
        executor: Executor,
        clock: Clock,
        concurrency: int,
        mixed: bool,
        finish: Finish,
        idle: Callable[[], None],
    ) -> None:
        self._starts = Committer(store)
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._fence = settings.lease * FENCE / SECOND
        self._finish = finish
        self._suspects = threading.Lock()
        self.on_begin: Callable[[Attempt], None] | None = None
        """Told of each attempt whose kind has a timeout, as it begins."""
        self.closing = False
        """Set when nothing more may begin: what comes to its turn is given back instead."""
        self._slots = Slots(concurrency) if mixed else None
        self._loop = LoopLane(self._arun, concurrency, self._slots, idle)
        self._desk = Desk(store)
        self._threads = ThreadLanes(self._run, concurrency, idle, self._desk)
        self._lanes: dict[str, Lane] = {
            "thread": self._threads,
            "loop": self._loop,
            "process": ProcessLanes(self._run_in_child, concurrency, idle, settings.folder),
        }

    def put(self, mode: str, attempts: list[Attempt]) -> None:
        """Hand attempts to a lane, in order."""
        self._lanes[mode].put(attempts)

    def welcomes(self, attempt: Attempt) -> bool:
        """Keep a place for a thread that brings its own attempt to `run_here`; false if it had better hand it over."""
        kind = attempt.kind
        return kind is not None and kind.run_in == "thread" and not kind.links and self._threads.welcome()

    def run_here(self, attempt: Attempt) -> None:
        """Run an attempt that is welcome in the thread that calls."""
        self._threads.run_here(attempt)

    def waiting(self) -> int:
        """Count the attempts that have not begun."""
        return sum(lane.waiting() for lane in self._lanes.values())

    def take_back(self) -> list[Attempt]:
        """Take out the attempts that have not begun."""
        return [attempt for lane in self._lanes.values() for attempt in lane.take_back()]

    def stop(self, attempt: Attempt, reason: Stop) -> None:
        """Ask the handler of an attempt to stop."""
        if attempt.stop is None or reason is Stop.LOST:
            attempt.stop = reason
            attempt.stopped_at = self._clock.monotonic()
        if attempt.kind is not None:
            self._lanes[attempt.kind.run_in].interrupt(attempt)

    def give_up(self, attempt: Attempt) -> None:
        """Settle an attempt whose handler does not stop, and make up for the lane it blocks."""
        if not attempt.settled and attempt.kind is not None:
            attempt.abandoned = True
            self._finish(attempt, self._executor.stopped(attempt))
            if self._slots is not None:
                self._slots.give_back()
            self._lanes[attempt.kind.run_in].replace()
            self._loop.poke()

    def close(self) -> None:
        """Let the lanes go."""
        for lane in self._lanes.values():
            lane.close()

    def _run(self, attempt: Attempt) -> None:
        recorded = lifecycle.must_record_start(attempt.job)
        if self._slots is None and not recorded:
            self._call(attempt, recorded=False)
            return
        self._take_slot()
        try:
            if recorded and lifecycle.one_crash_left(attempt.job):
                with self._suspects:
                    self._call(attempt, recorded=True)
            else:
                self._call(attempt, recorded=recorded)
        finally:
            self._give_slot_back(attempt)

    def _call(self, attempt: Attempt, *, recorded: bool) -> None:
        if attempt.script is None:
            if not self._may_begin(attempt) or (recorded and not self._start_on_record(attempt)):
                return
            self._begin(attempt)
            executor = self._executor
            if not executor.opens(attempt):
                self._finish(attempt, executor.call(attempt))
                return
            self._desk.begin(attempt)
        written, move = self._executor.walk(attempt)
        if written is not None:
            self._desk.leave(attempt, written)
        else:
            self._desk.end(attempt)
            self._finish(attempt, move)

    def _take_slot(self) -> None:
        """Take one of the slots that several kinds of lanes share."""
        if self._slots is not None:
            self._slots.take()

    def _give_slot_back(self, attempt: Attempt) -> None:
        """Give it back; an abandoned attempt's was given back before."""
        if self._slots is not None:
            if not attempt.abandoned:
                self._slots.give_back()
            self._loop.poke()

    async def _arun(self, attempt: Attempt) -> None:
        alone = lifecycle.one_crash_left(attempt.job)
        while alone and not self._suspects.acquire(blocking=False):  # noqa: ASYNC110 - threads take the same lock
            await asyncio.sleep(_LOOK)
        try:
            if not self._may_begin(attempt):
                return
            if lifecycle.must_record_start(attempt.job) and not await asyncio.to_thread(self._start_on_record, attempt):
                return
            self._begin(attempt)
            self._finish(attempt, await self._executor.acall(attempt))
        finally:
            if alone:
                self._suspects.release()

    def _run_in_child(self, attempt: Attempt, call: Callable[[Executor], Move | None]) -> None:
        self._take_slot()
        try:
            if not self._may_begin(attempt):
                return
            if lifecycle.must_record_start(attempt.job) and not self._start_on_record(attempt):
                return
            self._begin(attempt)
            self._finish(attempt, call(self._executor))
        finally:
            self._give_slot_back(attempt)

    def _may_begin(self, attempt: Attempt) -> bool:
        """Fence: nothing begins once the lease may have ended, or after the attempt was told to stop."""
        if attempt.settled:
            return False
        if attempt.stop is not None:
            self._finish(attempt, self._executor.stopped(attempt))
            return False
        late = self._clock.monotonic() > attempt.renewed + self._fence
        if late or self.closing:
            self._finish(attempt, lifecycle.release(attempt.job))
            return False
        if attempt.kind is not None and attempt.kind.timeout is not None and self.on_begin is not None:
            self.on_begin(attempt)
        return True

    def _start_on_record(self, attempt: Attempt) -> bool:
        """Write the start of an attempt that needs it on record; false if it may not begin after all."""
        try:
            answer = self._starts.share(lifecycle.start(attempt.job))
        except StoreError:
            self._finish(attempt, lifecycle.release(attempt.job))
            return False
        if answer is not Answer.OK:
            attempt.stop = Stop.CANCEL if answer is Answer.CANCEL_REQUESTED else Stop.LOST
            self._finish(attempt, self._executor.stopped(attempt))
            return False
        return True

    def _begin(self, attempt: Attempt) -> None:
        attempt.begun = True
        if self._executor.watch is not None:
            self._executor.watch.began(attempt)
