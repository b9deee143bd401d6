"""Where asynchronous handlers run: one event loop on a thread of its own."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.runtime.attempt import Attempt
from holdfast.runtime.slots import Slots

Run = Callable[[Attempt], Coroutine[Any, Any, None]]


class LoopLane:
    """An event loop that runs at most `most` attempts at a time; the rest wait in order.

    `slots` is given when other lanes share the limit; whoever gives one back then pokes this lane.
    """

    def __init__(self, run: Run, most: int, slots: Slots | None, idle: Callable[[], None]) -> None:
        self._run = run
        self._most = most
        self._slots = slots
        self._idle = idle
        self._inbox: deque[Attempt] = deque()
        self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def put(self, attempts: list[Attempt]) -> None:
        """Hand attempts over, in order."""
        self._inbox.extend(attempts)
        self._ensure().call_soon_threadsafe(self._start)

    def waiting(self) -> int:
        """Count the attempts that have no task yet."""
        return len(self._inbox)

    def take_back(self) -> list[Attempt]:
        """Take out the attempts that have no task yet."""
        back: list[Attempt] = []
        while self._inbox:
            try:
                back.append(self._inbox.popleft())
            except IndexError:
                break
        return back

    def interrupt(self, attempt: Attempt) -> None:
        """Cancel the task that runs this attempt."""
        task = attempt.runner
        if isinstance(task, asyncio.Task) and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def replace(self) -> None:
        """Make up for a task that does not stop."""
        self._most += 1
        self.poke()

    def poke(self) -> None:
        """Look whether a waiting attempt can start."""
        if self._inbox and self._loop is not None:
            self._loop.call_soon_threadsafe(self._start)

    def close(self) -> None:
        """Stop the loop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(self._loop,), name="holdfast-loop", daemon=True).start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while True:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # a handler's; its attempt has recorded it
                    continue
                break
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _start(self) -> None:
        loop = self._loop
        assert loop is not None
        while self._inbox and self._running < self._most:
            if self._slots is not None and not self._slots.try_take():
                return
            attempt = self._inbox.popleft()
            self._running += 1
            task = loop.create_task(self._run(attempt))
            attempt.runner = task
            task.add_done_callback(partial(self._ended, attempt))

    def _ended(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        self._running -= 1
        self._most -= attempt.abandoned
        if self._slots is not None and not attempt.abandoned:
            self._slots.give_back()
        if not task.cancelled():
            task.exception()
        self._start()
        if not self._inbox:
            self._idle()
