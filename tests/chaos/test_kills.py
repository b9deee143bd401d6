"""Real workers, killed with -9 at any moment: nothing lost, nothing settled twice, nothing overwritten.

`HOLDFAST_CHAOS_KILLS` says how often (5 by default; `make chaos` says 50).
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.domain.job import TERMINAL, JobRecord
from holdfast.stores.sqlite import SqliteStore
from tests.chaos import handlers
from tests.chaos.ground import Ground

KILLS = int(os.environ.get("HOLDFAST_CHAOS_KILLS", "5"))
JOBS_PER_KILL = 100


class Yard(Ground):
    """A store, a ledger and the worker processes on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.ledger = folder / "ledger"
        self.app = Holdfast(self.url)
        self.app.registry = handlers.app.registry
        self.workers: list[subprocess.Popen[bytes]] = []

    def hire(self, *options: str) -> subprocess.Popen[bytes]:
        """Start one worker process."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", f"{handlers.__file__}:app", *options],
            env={**os.environ, "CHAOS_URL": self.url, "CHAOS_LEDGER": str(self.ledger)},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.workers.append(worker)
        return worker

    def at_work(self, *workers: subprocess.Popen[bytes]) -> bool:
        """Tell whether these workers have reported themselves."""
        return {worker.pid for worker in workers} <= {record.pid for record in self.app.store.workers()}

    def runs(self) -> Counter[str]:
        """Count the bodies that ran, by job."""
        return Counter(line.split()[0] for line in self.ledger.read_text().splitlines())

    def close(self) -> None:
        """End every worker that is left."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        self.app.close()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


def test_every_job_ends_exactly_once_however_often_workers_are_killed(yard: Yard) -> None:
    rng = random.Random(KILLS)
    total = KILLS * JOBS_PER_KILL
    jobs = [yard.app.prepare("work" if n % 3 else "awork", {"n": n}) for n in range(total)]
    ids = {str(job.id) for job in yard.app.enqueue_many(jobs)}
    crew = [yard.hire("-c", "4") for _ in range(3)]
    first_seen: dict[str, JobRecord] = {}

    def unfinished() -> int:
        return yard.app.counts().unfinished

    for kill in range(KILLS):
        share = total - total * (kill + 1) // (KILLS + 1)
        yard.until(lambda share=share: unfinished() <= share, "progress")  # type: ignore[misc]
        victim = rng.randrange(len(crew))
        yard.until(lambda victim=victim: yard.at_work(crew[victim]), "the victim at work")  # type: ignore[misc]
        crew[victim].send_signal(signal.SIGKILL)
        crew[victim].wait()
        crew[victim] = yard.hire("-c", "4")
        for job in yard.records():
            if job.state in TERMINAL:
                assert first_seen.setdefault(job.id, job) == job, "a terminal record changed"
    yard.until(lambda: not unfinished(), "the end", 120)
    final = {job.id: job for job in yard.records()}
    assert set(final) == ids, "a job was lost, or came from nowhere"
    assert {job.state.value for job in final.values()} == {"succeeded"}
    for id_, job in first_seen.items():
        assert final[id_] == job, "a terminal record changed"
    runs = yard.runs()
    for job in final.values():
        assert 1 <= runs[job.id] <= job.token, "more bodies ran than claims were made"
    yard.assert_sound()
    yard.until(lambda: yard.at_work(*crew), "every worker at work")
    for worker in crew:
        worker.terminate()
    assert [worker.wait(20) for worker in crew] == [0, 0, 0]


def test_a_frozen_worker_wakes_up_too_late_and_changes_nothing(yard: Yard) -> None:
    marker = yard.folder / "go"
    job = yard.app.enqueue("hold", {"marker": str(marker)})
    frozen = yard.hire()
    yard.until(lambda: yard.ledger.exists() and job.refresh().state == "running", "the claim")
    frozen.send_signal(signal.SIGSTOP)
    yard.hire()
    yard.until(lambda: job.refresh().state == "succeeded", "another worker finishing it")
    assert (job.attempt, job.result(1)) == (2, 2)
    before = job.refresh().record
    history = yard.app.attempts(job.id)
    marker.touch()
    frozen.send_signal(signal.SIGCONT)
    other = yard.app.enqueue("hold", {"marker": str(marker)})
    yard.until(lambda: other.refresh().state == "succeeded", "work going on")
    frozen.terminate()
    assert frozen.wait(20) == 0
    assert job.refresh().record == before
    assert yard.app.attempts(job.id) == history
    yard.assert_sound()


def test_a_poison_job_is_dead_after_the_cap_and_its_neighbours_are_not_blamed(yard: Yard) -> None:
    poison = yard.app.enqueue("poison", {})
    others = yard.app.enqueue_many([yard.app.prepare("work", {"n": n * 2 + 1}) for n in range(200)])
    supervisor = yard.hire("--processes", "2")
    yard.until(lambda: not yard.app.counts().unfinished, "the end", 90)
    assert (poison.refresh().state, poison.cause, poison.record.crashes) == ("dead", "crashed", 3)
    assert [job.refresh().state for job in others] == ["succeeded"] * 200
    assert yard.runs()[str(poison.id)] == 3
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    yard.assert_sound()


def test_a_worker_stops_on_sigterm_in_bounded_time_even_if_its_store_is_gone(yard: Yard) -> None:
    marker = yard.folder / "go"
    job = yard.app.enqueue("hold", {"marker": str(marker)})
    worker = yard.hire()
    yard.until(lambda: job.refresh().state == "running", "the claim")
    assert isinstance(yard.app.store, SqliteStore)
    with yard.app.store.file.write():
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert worker.wait(15) == 0
        assert time.monotonic() - started < 5 + 1 + 2
