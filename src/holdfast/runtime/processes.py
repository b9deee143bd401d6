"""Where handlers run that need a process of their own: pure-Python computation, C code that may crash, work that must
be killed on time.

Each lane is a thread that owns one child process and speaks JSON lines with it over a socket pair; nothing is
pickled. A child that dies is replaced, and the
attempt it was running is recorded as failed with the reason.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from holdfast.client.registry import Kind
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Move
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.executor import Executor
from holdfast.runtime.signals import ending
from holdfast.runtime.verdict import Verdict

Run = Callable[[Attempt, Callable[[Executor], Move | None]], None]
_PARTING = 2.0


class ProcessLanes:
    """At most `most` child processes, but no more than there are cores."""

    def __init__(self, run: Run, most: int, idle: Callable[[], None], folder: str | None = None) -> None:
        self._run = run
        self._folder = folder
        self._idle = idle
        self._most = min(most, os.cpu_count() or 1)
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def put(self, attempts: list[Attempt]) -> None:
        """Hand attempts over, in order."""
        for attempt in attempts:
            self._inbox.put(attempt)
        for _ in range(min(len(attempts), self._most - len(self._threads))):
            name = f"holdfast-child-{len(self._threads)}"
            thread = threading.Thread(target=self._work, args=(Child(self._folder),), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def waiting(self) -> int:
        """Count the attempts that no child has taken yet."""
        return self._inbox.qsize()

    def take_back(self) -> list[Attempt]:
        """Take out the attempts that no child has taken yet."""
        back: list[Attempt] = []
        while not self._inbox.empty():
            attempt = self._inbox.get()
            if attempt is not None:
                back.append(attempt)
        return back

    def interrupt(self, attempt: Attempt) -> None:
        """Kill the child that runs this attempt."""
        with self._lock:
            if isinstance(attempt.runner, Child):
                attempt.runner.kill()

    def replace(self) -> None:
        """Nothing to make up for: a killed child is replaced at its next attempt."""

    def close(self) -> None:
        """End every child once it is free, and wait a moment for those that are."""
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join(_PARTING)

    def _work(self, child: "Child") -> None:
        while (attempt := self._inbox.get()) is not None:
            self._run(attempt, partial(self._call, child, attempt))
            self._idle()
        child.end()

    def _call(self, child: "Child", attempt: Attempt, executor: Executor) -> Move | None:
        assert attempt.kind is not None
        with self._lock:
            attempt.runner = child
        try:
            if attempt.stopping:
                return executor.stopped(attempt)
            context = None if executor.watch is None else executor.watch.context(attempt)
            verdict = child.run(attempt.kind, *executor.packed(attempt), context)
        except (OSError, ValueError) as error:
            return executor.died(
                attempt, "process_died", f"the handler's process {child.epitaph() or type(error).__name__}"
            )
        finally:
            with self._lock:
                attempt.runner = None
        return verdict.settle(executor, attempt)


class Child:
    """One child process, started when it is first needed.

    It imports handlers in `folder`, where the application was made, so that relative paths lead to the same places;
    and runs them in the folder that this process is in.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def run(self, kind: Kind, job: JobRecord, limit: int, context: str | None = None) -> Verdict:
        """Have the child run one attempt, as part of a trace if there is one; raises OSError if it dies."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._line is not None
        module = sys.modules.get(kind.fn.__module__)
        request = {
            "module": kind.fn.__module__,
            "file": getattr(module, "__file__", None),
            "kind": kind.name,
            "job": job,
            "limit": limit,
            "context": context,
        }
        self._line.sendall(json.dumps(request).encode() + b"\n")
        return Verdict.read(_read_line(self._line))

    def kill(self) -> None:
        """End the child now."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()

    def end(self) -> None:
        """Hang up on a child that is free, and see it off."""
        if self._line is not None:
            self._line.close()
        self.epitaph()

    def epitaph(self) -> str:
        """Say how the child ended."""
        if self._process is None:
            return ""
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return ending(code)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        if self._line is not None:
            self._line.close()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.runtime.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._line = ours
        ours.sendall(json.dumps([self._folder, *sys.path]).encode() + b"\n")


def _read_line(line: socket.socket) -> bytes:
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        part = line.recv(65_536)
        if not part:
            msg = "the child hung up"
            raise ConnectionResetError(msg)
        parts.append(part)
    return b"".join(parts)
