"""The nemesis: kills a worker with -9, or freezes one until its work has been taken over and lets it go on.

A fault counts only if it happened at work: the store is asked what the worker holds once it cannot change that any
more. If it holds nothing, the next is struck. Only workers of the crew are ever touched.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from holdfast.chaos.application import LEASE
from holdfast.chaos.history import Fault
from holdfast.chaos.plan import Strike
from holdfast.demo.crew import Crew, Worker
from holdfast.demo.watch import Watch
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND

_BUSY_WITHIN = 15.0
_TAKEN_WITHIN = LEASE + 12.0
_WRITABLE_WITHIN = 1.0
_LATE_WORDS = 0.7
"""Seconds that a worker is given to come forward with what it did not know is over."""
_TRIES = 8


class Until(Protocol):
    """Looks at everything until something is so; tells whether it was, in time."""

    def __call__(self, condition: Callable[[], object], seconds: float) -> bool: ...


class Nemesis:
    """Strikes the workers of one crew."""

    def __init__(self, crew: Crew, watch: Watch, until: Until) -> None:
        self._crew = crew
        self._watch = watch
        self._until = until
        self._spared: Worker | None = None
        """Whoever was frozen last is left in peace for once, so that its late writes can be seen to be refused."""

    def strike(self, strike: Strike) -> Fault | None:
        """Bring a fault about; None if it could not be brought about at work."""
        self._until(lambda: False, strike.pause)
        for _ in range(_TRIES):
            victim = self._victim(strike.pick)
            if victim is None:
                return None
            fault = self._kill(victim) if strike.sort == "kill" else self._freeze(victim)
            if fault is not None:
                self._spared = victim if strike.sort == "freeze" else None
                return fault
        return None

    def _victim(self, pick: float) -> Worker | None:
        """Choose a busy worker, once there is one."""

        def busy() -> list[Worker]:
            held = [worker for worker in self._crew.alive if self._watch.held_by(worker.name)]
            return [worker for worker in held if worker is not self._spared]

        if not self._until(busy, _BUSY_WITHIN):
            return None
        found = busy()
        return found[int(pick * len(found))]

    def _kill(self, victim: Worker) -> Fault | None:
        at = self._watch.store.now()
        self._crew.kill(victim)
        held = self._holds(victim)
        return Fault("kill", victim.name, at, held) if held else None

    def _freeze(self, victim: Worker) -> Fault | None:
        at = self._watch.store.now()
        victim.process.send_signal(signal.SIGSTOP)
        seen = os.waitid(os.P_PID, victim.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if seen is None or seen.si_code != os.CLD_STOPPED:
            return None
        try:
            held = self._holds(victim) if self._writable(victim) else {}
            if not held or not self._until(lambda: self._taken_over(held), _TAKEN_WITHIN):
                return None
        finally:
            victim.process.send_signal(signal.SIGCONT)
        self._until(lambda: False, _LATE_WORDS)
        return Fault("freeze", victim.name, at, held)

    def _writable(self, victim: Worker) -> bool:
        """Tell whether the store can be written to while a worker is frozen: it may have stopped in the middle of a
        write, and then nobody can take anything over before it goes on.
        """

        def write() -> None:
            with suppress(StoreError):
                self._watch.store.lead("chaos", "nemesis", SECOND)

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(_WRITABLE_WITHIN)
        if not writing.is_alive():
            return True
        victim.process.send_signal(signal.SIGCONT)
        writing.join()
        return False

    def _holds(self, victim: Worker) -> dict[str, int]:
        self._watch.look()
        return self._watch.held_by(victim.name)

    def _taken_over(self, held: Mapping[str, int]) -> bool:
        """Tell whether none of these is held any more, and at least one has been claimed by somebody else."""
        now = self._watch.records
        free = not any(now[id_].lease and now[id_].token == token for id_, token in held.items())
        return free and any(now[id_].token > token for id_, token in held.items())
