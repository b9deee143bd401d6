"""Where synchronous handlers run: a crew of threads that take attempts from one inbox.

Threads are started only when all others are busy, and are daemons, so a handler that never returns cannot keep a
process from ending. A thread can be
asked to stop its handler (`interrupt`): Python raises `AttemptStopped` in it at its next bytecode, which a handler
blocked in C does not see.
"""

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue

from holdfast.client.context import AttemptStopped
from holdfast.runtime.attempt import Attempt

Run = Callable[[Attempt], None]


class ThreadLanes:
    """A crew of at most `most` threads."""

    def __init__(self, run: Run, most: int) -> None:
        self._run = run
        self._most = most
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    def put(self, attempts: list[Attempt]) -> None:
        """Hand attempts over, in order."""
        for attempt in attempts:
            self._inbox.put(attempt)
        self._hire()

    def waiting(self) -> int:
        """Count the attempts that no thread has taken yet."""
        return self._inbox.qsize()

    def take_back(self) -> list[Attempt]:
        """Take out the attempts that no thread has taken yet."""
        back: list[Attempt] = []
        while not self._inbox.empty():
            attempt = self._inbox.get()
            if attempt is not None:
                back.append(attempt)
        return back

    def interrupt(self, attempt: Attempt) -> None:
        """Raise `AttemptStopped` in the thread that runs this attempt."""
        with self._lock:
            if isinstance(attempt.runner, int):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(attempt.runner), ctypes.py_object(AttemptStopped)
                )

    def replace(self) -> None:
        """Make up for a thread whose handler does not stop."""
        with self._lock:
            self._most += 1
        self._hire()

    def close(self) -> None:
        """Let every thread end once it is free."""
        for _ in range(self._started):
            self._inbox.put(None)

    def _hire(self) -> None:
        if self._started < self._most and self._idle < self._inbox.qsize():
            with self._lock:
                if self._started >= self._most:
                    return
                self._started += 1
                self._idle += 1
            threading.Thread(target=self._work, name=f"holdfast-lane-{self._started}", daemon=True).start()

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            attempt = None
            try:
                attempt = self._inbox.get()
                if attempt is None:
                    return
                with self._lock:
                    self._idle -= 1
                    attempt.runner = me
                self._hire()
                try:
                    self._run(attempt)
                finally:
                    with self._lock:
                        attempt.runner = None
                        self._idle += 1
            except AttemptStopped:
                if attempt is not None:
                    attempt.runner = None
