"""A parent process that keeps worker processes up: `holdfast worker --processes N`.

A child that dies is replaced at once, and its jobs are taken back at once: the parent has seen it die, so nobody needs
to wait for its leases to end. A child that keeps dying as soon as it starts is replaced more and more slowly. Children
are told to drain when the parent is, and end by themselves when the parent is gone, which they see by a pipe that
closes with it. Only processes that were started here are ever signalled.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from holdfast.client.settings import Settings
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND
from holdfast.port.store import Store
from holdfast.runtime.signals import ending, stopping_by_signal
from holdfast.runtime.telemetry.serving import Gathering
from holdfast.runtime.telemetry.watch import Watch
from holdfast.runtime.upkeep import BATCH, reap

log = logging.getLogger("holdfast.supervisor")
WRONG_USE = 2
"""The exit code of a child that was asked for something impossible: another one would fare no better."""
_STOPPED = frozenset({0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT})
"""The exit codes of a child that did as it was told, even if it was told before it could begin."""
_TURN = 0.5
_QUICK = 1.0
_FIRST_PAUSE, _LAST_PAUSE = 0.25, 10.0
_AFTER_GRACE = 2.0
_AFTER_RELEASE = 4.0
_RETRY = 1.0
_LAST_RITES = 2.0


def parent_id() -> str:
    """Name this process, the way its children are named after it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def follow_parent(fd: int, orphaned: Callable[[], None]) -> None:
    """Call back once the parent is gone, which closes the other end of this pipe."""
    os.set_inheritable(fd, False)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        log.warning("the supervising process is gone; this worker finishes what it runs and ends")
        orphaned()

    threading.Thread(target=watch, name="holdfast-parent", daemon=True).start()


@dataclass(eq=False, slots=True)
class Child:
    """One worker process."""

    slot: int
    id: str
    process: subprocess.Popen[bytes]
    started: float


class Supervisor:
    """Keeps `processes` children up until told to stop, or until each has ended by itself because it was idle.

    `command` gives the command line of a child for a worker id, the pipe it is to follow and, if there is somebody
    who adds them up, the pipe it is to write its metrics to. `folder` is where children start; if there is none, or it
    is gone, they start where this process is.
    """

    def __init__(
        self,
        *,
        command: Callable[..., Sequence[str]],
        processes: int,
        store: Store,
        settings: Settings,
        until_idle: bool = False,
        gathering: Gathering | None = None,
        watch: Watch | None = None,
        folder: str | None = None,
    ) -> None:
        self._command = command
        self._folder = folder
        self._gathering = gathering
        self._grace = settings.grace / SECOND
        self._until_idle = until_idle
        self._children: list[Child] = []
        self._due = dict.fromkeys(range(processes), 0.0)
        """When each empty slot is to be filled, by the monotonic clock."""
        self._quick = [0] * processes
        """How often in a row the child of each slot died at once."""
        self._events: SimpleQueue[Child | None] = SimpleQueue()
        """Each child that ended; None for each wish to stop."""
        self._undertaker = Undertaker(store, settings, watch)
        self._asked = 0
        self._deadline: float | None = None
        self._code = 0

    def run(self) -> int:
        """Supervise to the end; give the exit code."""
        ours, writer = os.pipe()
        try:
            with stopping_by_signal(self.stop):
                while self._children or self._due:
                    self._start_due(ours)
                    self._kill_late()
                    self._turn()
        finally:
            os.close(writer)
            os.close(ours)
            for child in self._children:
                _signal(child, signal.SIGTERM)
        self._undertaker.close()
        return self._code

    def stop(self) -> None:
        """Ask once to drain, ask again to leave at once. Safe to call from a signal handler."""
        self._events.put(None)

    def _start_due(self, pipe: int) -> None:
        now = time.monotonic()
        for slot in [slot for slot, due in self._due.items() if due <= now]:
            del self._due[slot]
            self._start(slot, pipe)

    def _start(self, slot: int, pipe: int) -> None:
        """Start a child in a session of its own, so that a terminal's interrupt reaches it through us alone, once."""
        id_ = f"{parent_id()}.{slot + 1}:{secrets.token_hex(3)}"
        pipes = [pipe] if self._gathering is None else [pipe, self._gathering.pipe()]
        try:
            process = subprocess.Popen(
                self._command(id_, *pipes),
                stdin=subprocess.DEVNULL,
                pass_fds=pipes,
                start_new_session=True,
                cwd=self._folder if self._folder and os.path.isdir(self._folder) else None,  # noqa: PTH112 - it is text
            )
        finally:
            for each in pipes[1:]:
                os.close(each)
        child = Child(slot, id_, process, time.monotonic())
        self._children.append(child)
        threading.Thread(target=self._watch, args=(child,), name=f"holdfast-watch-{slot}", daemon=True).start()

    def _watch(self, child: Child) -> None:
        """Wait for a child's end, and end what a child that crashed has left running.

        Until it is buried nobody else can have its id, so the signal cannot reach a stranger.
        """
        if hasattr(os, "waitid"):
            end = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
            if end is not None and (end.si_code, end.si_status) != (os.CLD_EXITED, 0):
                with contextlib.suppress(OSError):
                    os.killpg(child.process.pid, signal.SIGKILL)
        else:
            child.process.wait()
        self._events.put(child)

    def _turn(self) -> None:
        """Wait until something happens or comes due; never long, because a signal may slip in just before the wait."""
        moments = [*self._due.values(), *([] if self._deadline is None else [self._deadline])]
        until = min((moment - time.monotonic() for moment in moments), default=_TURN)
        try:
            event = self._events.get(timeout=max(0.0, min(until, _TURN)))
        except Empty:
            return
        if event is None:
            self._pass_on()
        else:
            self._bury(event)

    def _bury(self, child: Child) -> None:
        code = child.process.wait()
        self._children.remove(child)
        self._undertaker.settle(child.id)
        if self._asked:
            if code not in _STOPPED:
                log.warning("worker %s %s", child.id, ending(code))
                self._code = self._code or 1
        elif code == WRONG_USE:
            self._code = WRONG_USE
            self._pass_on()
        elif code or not self._until_idle:
            pause = self._backoff(child)
            when = f"in {pause:g} s" if pause else "now"
            log.warning("worker %s %s; its jobs are taken back, and another starts %s", child.id, ending(code), when)
            self._due[child.slot] = time.monotonic() + pause

    def _backoff(self, child: Child) -> float:
        """Give the pause before a child is replaced: none, unless its slot has lost several in a row at once."""
        lived = time.monotonic() - child.started
        self._quick[child.slot] = quick = self._quick[child.slot] + 1 if lived < _QUICK else 0
        return 0.0 if quick <= 1 else min(_LAST_PAUSE, _FIRST_PAUSE * 2.0 ** min(quick - 1, 10))

    def _pass_on(self) -> None:
        """Tell every child to stop, as we have been told; whoever does not manage in time is killed.

        The second word is another signal than the first: two of a kind may arrive as one.
        """
        self._asked += 1
        self._due.clear()
        wait = self._grace + _AFTER_GRACE if self._asked == 1 else _AFTER_RELEASE
        deadline = time.monotonic() + wait
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        for child in self._children:
            _signal(child, signal.SIGTERM if self._asked == 1 else signal.SIGINT)

    def _kill_late(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            for child in self._children:
                log.warning("worker %s did not end in time and is killed", child.id)
                _signal(child, signal.SIGKILL)


class Undertaker:
    """Takes back what dead workers held, on a thread of its own: a store that is slow must hold up nothing else."""

    def __init__(self, store: Store, settings: Settings, watch: Watch | None = None) -> None:
        self._store = store
        self._settings = settings
        self._watch = watch
        self._inbox: SimpleQueue[str | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="holdfast-undertaker", daemon=True)
        self._thread.start()

    def settle(self, worker_id: str) -> None:
        """Take back the jobs of a worker that is known to be dead."""
        self._inbox.put(worker_id)

    def close(self) -> None:
        """Finish what can be finished soon."""
        self._inbox.put(None)
        self._thread.join(_LAST_RITES)
        self._closing.set()

    def _live(self) -> None:
        while (worker_id := self._inbox.get()) is not None:
            while not self._closing.is_set():
                try:
                    self._take_back(worker_id)
                    break
                except StoreError as error:
                    log.warning("the jobs of %s cannot be taken back yet: %s", worker_id, error)
                    self._closing.wait(_RETRY)

    def _take_back(self, worker_id: str) -> None:
        if held := self._store.abandon(worker_id):
            log.info("worker %s held %d job(s), which may run again", worker_id, held)
        while reap(self._store, self._settings, self._watch) >= BATCH:
            pass
        self._store.dismiss(worker_id)


def _signal(child: Child, number: signal.Signals) -> None:
    """Signal a child that is not yet buried, so that its id cannot belong to another process."""
    with contextlib.suppress(OSError):
        os.kill(child.process.pid, number)
