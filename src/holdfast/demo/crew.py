"""Worker processes that are made to suffer: started, watched, killed, replaced, and all gone at the end.

Only processes started here are ever touched.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.domain.moments import Micros
from holdfast.port.clock import SystemClock

_MOST_STARTS = 12
_STOP_SECONDS = 4.0


@dataclass(slots=True)
class Worker:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    killed_at: Micros | None = None
    """When it was killed by us, if it was."""

    @property
    def number(self) -> str:
        """Its number, as shown."""
        return self.name.rpartition("-")[2]


class Crew:
    """Starts workers on one store: `python -m MODULE LEDGER NAME`, with the store's address in the environment, where
    no list of processes shows its password. Their complaints go to files in a folder.
    """

    def __init__(self, url: str, folder: Path, module: str = "holdfast.demo.worker", most: int = _MOST_STARTS) -> None:
        self._environment = {**os.environ, "HOLDFAST_URL": url}
        self._folder = folder
        self._module = module
        self._most = most
        self._clock = SystemClock()
        self._started = 0
        self.alive: list[Worker] = []

    def start(self) -> Worker | None:
        """Start one more worker; None if too many have been started already."""
        if self._started >= self._most:
            return None
        self._started += 1
        name = f"worker-{self._started}"
        command = [sys.executable, "-m", self._module, str(self._folder / "ledger"), name]
        with self._complaints(name).open("wb") as complaints:
            # A process group of its own: Ctrl-C is for us, who then end the workers ourselves. But the same session:
            # a worker that lies frozen when we are killed is then ended by the system, for it cannot do so itself.
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                process_group=0,
            )
        worker = Worker(name, process)
        self.alive.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """Kill a worker with -9."""
        worker.killed_at = self._clock.now()
        worker.process.kill()
        worker.process.wait()

    def bury(self) -> list[Worker]:
        """Take the dead out of the crew and give them."""
        dead = [worker for worker in self.alive if worker.process.poll() is not None]
        self.alive = [worker for worker in self.alive if worker not in dead]
        for worker in dead:
            _close(worker)
        return dead

    def last_words(self, worker: Worker) -> str:
        """Give the last line a worker complained with."""
        lines = self._complaints(worker.name).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")

    def stop(self) -> None:
        """End every worker: politely at first, and then not."""
        for worker in self.alive:
            worker.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + _STOP_SECONDS
        for worker in self.alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, end - time.monotonic()))
        self.kill_all()

    def kill_all(self) -> None:
        """End every worker at once."""
        for worker in self.alive:
            worker.process.kill()
            worker.process.wait()
            _close(worker)
        self.alive = []

    def _complaints(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _close(worker: Worker) -> None:
    if worker.process.stdin is not None:
        with contextlib.suppress(OSError):
            worker.process.stdin.close()
