"""A store, a ledger and the worker processes on them, that are killed with -9 and replaced."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from tests.chaos import flows
from tests.chaos.ground import Ground

KILLS = int(os.environ.get("HOLDFAST_CHAOS_KILLS", "5"))
FULL = KILLS >= 50
SLOW = "0.4" if FULL else "0.05"
"""The most seconds that a body takes: so long that there is work to do until the last kill."""


class Yard(Ground):
    """One store and its workers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.app = Holdfast(url)
        self.app.registry = flows.app.registry
        self.crew: list[subprocess.Popen[bytes]] = []
        self.killed_at_work = 0
        """How many workers were killed while there was work to do."""
        self._random = random.Random(KILLS)

    def hire(self, number: int, *options: str) -> None:
        """Start worker processes."""
        self.crew += [self._worker(*options) for _ in range(number)]

    def _worker(self, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", f"{flows.__file__}:app", *options],
            env={**os.environ, "CHAOS_URL": self.url, "CHAOS_LEDGER": str(self.ledger), "CHAOS_SLOW": SLOW},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def replace_one(self, *options: str) -> None:
        """Kill a worker that is at work, and hire another."""
        victim = self._random.randrange(len(self.crew))
        worker = self.crew[victim]
        self.until(lambda: worker.pid in {record.pid for record in self.app.store.workers()}, "the victim at work")
        threading.Event().wait(self._random.uniform(0, 0.1))
        self.killed_at_work += self.unfinished() > 0
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.crew[victim] = self._worker(*options)

    def lines(self) -> int:
        """Count the bodies that began."""
        return self.ledger.read_bytes().count(b"\n")

    def unfinished(self) -> int:
        """Count what is left to do."""
        return self.app.counts().unfinished

    def dismiss(self) -> None:
        """Let every worker leave, as it should."""
        pids = {worker.pid for worker in self.crew}
        self.until(lambda: pids <= {record.pid for record in self.app.store.workers()}, "every worker at work")
        for worker in self.crew:
            worker.terminate()
        assert [worker.wait(20) for worker in self.crew] == [0] * len(self.crew)

    def close(self) -> None:
        """End every worker that is left."""
        for worker in self.crew:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self.app.close()


def opened(request: Any, folder: Path) -> Yard:
    """Open a yard on the store that a parametrised fixture asks for."""
    url = f"sqlite:///{folder}/jobs.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return Yard(url, folder)
