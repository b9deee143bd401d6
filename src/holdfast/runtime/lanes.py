"""Where synchronous handlers run: a crew of threads that take attempts from one inbox.

As few threads are awake as the work needs. One is enough for handlers that return at once, and twenty awake threads
would only fight for the interpreter; so a further thread is woken when a tick passes in which nobody took an attempt,
which is what blocking handlers look like. Threads are daemons: a handler that never returns cannot keep a process from
ending. A thread can be asked to stop its handler (`interrupt`): Python raises `AttemptStopped` in it at its next
bytecode, which a handler blocked in C does not see.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from holdfast.client.context import AttemptStopped
from holdfast.port.shelter import SHELTER
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.desk import Desk

Run = Callable[[Attempt], None]
_TICK = 0.001
_MANY = 100
_HEAD_START = 0.001
"""Seconds for which a thread that wakes to so many attempts leaves the interpreter to the worker that brought them.
Once its next trip is under way, both get on; if handlers began at once, that trip would begin when they have run
dry."""


class ThreadLanes:
    """A crew of at most `most` threads."""

    def __init__(self, run: Run, most: int, idle: Callable[[], None], desk: Desk) -> None:
        self._run = run
        self._most = most
        self._idle = idle
        self._desk = desk
        self._inbox: deque[Attempt] = deque()
        self._lock = threading.Lock()
        self._calls: SimpleQueue[None] = SimpleQueue()
        """One for each parked thread that is to wake."""
        self._awake = 0
        self._hired = 0
        self._guests = 0
        """How many places are kept for threads that bring their own attempt."""
        self._taken = 0
        self._closed = False
        self._work_waits = threading.Event()
        self._foreman: threading.Thread | None = None

    def put(self, attempts: list[Attempt]) -> None:
        """Hand attempts over, in order."""
        with self._lock:
            self._inbox.extend(attempts)
            # The thread that is woken for the only attempt takes it: one who looks whether anybody does would only be
            # in its way.
            taken = not self._awake and self._wake_one() and len(self._inbox) == 1 and not self._desk.begun
            if self._foreman is None and self._most > 1:
                self._foreman = threading.Thread(target=self._oversee, name="holdfast-foreman", daemon=True)
                self._foreman.start()
        if not taken:
            self._work_waits.set()

    def waiting(self) -> int:
        """Count the attempts that no thread has taken yet."""
        return len(self._inbox)

    def take_back(self) -> list[Attempt]:
        """Take out the attempts that no thread has taken yet."""
        back: list[Attempt] = []
        while (attempt := _pop(self._inbox)) is not None:
            back.append(attempt)
        return back

    def welcome(self) -> bool:
        """Keep a place for a thread that brings its own attempt; false if there is none."""
        with self._lock:
            room = self._awake + self._guests < self._most
            self._guests += room
            return room

    def run_here(self, attempt: Attempt) -> None:
        """Run an attempt in the thread that calls, for which a place was kept."""
        SHELTER.expose()
        try:
            self._do(attempt, threading.get_ident())
        except AttemptStopped:
            pass
        finally:
            with self._lock:
                attempt.runner = None
                self._guests -= 1
                if self._inbox and not self._awake:
                    self._wake_one()
        self._idle()

    def interrupt(self, attempt: Attempt) -> None:
        """Raise `AttemptStopped` in the thread that runs this attempt."""
        with self._lock:
            if isinstance(attempt.runner, int):
                SHELTER.stop(attempt.runner, AttemptStopped)

    def replace(self) -> None:
        """Make up for a thread whose handler does not stop."""
        with self._lock:
            self._most += 1

    def close(self) -> None:
        """Let every thread end once it is free."""
        self._closed = True
        self._work_waits.set()
        for _ in range(self._hired or 1):
            self._calls.put(None)

    def _wake_one(self) -> bool:
        """Wake a parked thread, or hire one; false if all are awake. The lock is held."""
        if self._awake + self._guests >= self._most:
            return False
        self._awake += 1
        if self._awake > self._hired:
            self._hired += 1
            threading.Thread(target=self._work, name=f"holdfast-lane-{self._hired}", daemon=True).start()
        else:
            self._calls.put(None)
        return True

    def _oversee(self) -> None:
        """Wake more threads while attempts wait and nobody takes them."""
        pause = threading.Event()
        while not self._closed:
            self._work_waits.wait()
            self._work_waits.clear()
            more = 1
            while self._waits() and not self._closed:
                taken = self._taken
                pause.wait(_TICK)
                if taken != self._taken or not self._waits():
                    more = 1
                    continue
                with self._lock:
                    for _ in range(min(more, self._waits())):
                        if not self._wake_one():
                            break
                more *= 2

    def _next(self) -> Attempt | None:
        """Take what goes on, or what may begin: no more pipelines are begun than there may be threads."""
        desk = self._desk
        if desk.answered and (attempt := _pop(desk.answered)) is not None:
            return attempt
        return _pop(self._inbox) if self._inbox and desk.room(self._most) else None

    def _waits(self) -> int:
        """Count what a thread could do now."""
        fresh = len(self._inbox) if self._inbox and self._desk.room(self._most) else 0
        return len(self._desk.answered) + fresh + self._desk.calls

    def _flush(self) -> bool:
        """Write what lies at the desk, and what is left there meanwhile by another thread, which goes on with the rest;
        false if there is nothing, or another writes.
        """
        if self._inbox and self._desk.crowded(self._most):
            self._wake_partner()
        if not self._desk.flush(self._most):
            return False
        while self._desk.calls:
            self._wake_partner()
            if not self._desk.flush(self._most):
                break
        if not self._work_waits.is_set():  # what is set already will be looked at
            self._work_waits.set()
        return True

    def _wake_partner(self) -> None:
        with self._lock:
            if self._awake < 2:  # noqa: PLR2004 - one runs, one writes
                self._wake_one()

    def _park(self) -> bool:
        """Sleep until woken; false once the crew is closed."""
        with self._lock:
            if self._waits():
                return True
            self._awake -= 1
        self._idle()
        self._calls.get()
        if len(self._inbox) >= _MANY:
            self._taken += 1  # lest the foreman take this for a handler that blocks
            time.sleep(_HEAD_START)
        return not self._closed

    def _work(self) -> None:
        me, do = threading.get_ident(), self._do
        inbox, desk = self._inbox, self._desk
        SHELTER.expose()
        while True:
            try:
                # Where nothing is a pipeline, there is nothing to choose.
                attempt = _pop(inbox) if inbox and not desk.begun else self._next()
                if attempt is None:
                    if not self._flush() and not self._park():
                        return
                    continue
                do(attempt, me)
            except AttemptStopped:
                continue

    def _do(self, attempt: Attempt, me: int) -> None:
        self._taken += 1
        attempt.runner = me
        try:
            self._run(attempt)
        finally:
            with self._lock:
                attempt.runner = None
                if attempt.abandoned:
                    self._most -= 1
                if attempt.stop is not None:
                    SHELTER.spare(me)


def _pop(line: deque[Attempt]) -> Attempt | None:
    try:
        return line.popleft()
    except IndexError:
        return None
