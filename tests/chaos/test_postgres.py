"""The same on PostgreSQL: workers killed with -9 and replaced, and the server itself crashed three times meanwhile.

`HOLDFAST_CHAOS_KILLS` says how many workers are killed (5 by default, with 5,000 jobs; 50 and more, with 100,000).
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast, StoreError
from holdfast.domain.audit import violations
from holdfast.port.store import Query
from tests.chaos import handlers
from tests.servers import Server, own, until

KILLS = int(os.environ.get("HOLDFAST_CHAOS_KILLS", "5"))
JOBS = 100_000 if KILLS >= 50 else KILLS * 1_000
CREW = 3
CRASHES = 3


class Yard:
    """A server, a ledger and the worker processes on them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.url = server.address
        self.ledger = folder / "ledger"
        self.app = Holdfast(self.url)
        self.app.registry = handlers.app.registry
        self.workers: list[subprocess.Popen[bytes]] = []
        self.first_seen: dict[str, str] = {}

    def hire(self) -> subprocess.Popen[bytes]:
        """Start one worker process."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", f"{handlers.__file__}:app", "-c", "20"],
            env={**os.environ, "CHAOS_URL": self.url, "CHAOS_LEDGER": str(self.ledger)},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.workers.append(worker)
        return worker

    def unfinished(self) -> int:
        """Count what is left to do, whatever the server is going through."""
        try:
            return self.app.counts().unfinished
        except StoreError:
            return JOBS

    def down_to(self, left: int) -> bool:
        """Tell whether so many jobs are left, or fewer."""
        return self.unfinished() <= left

    def at_work(self, worker: subprocess.Popen[bytes]) -> bool:
        """Tell whether a worker has reported itself."""
        try:
            return worker.pid in {record.pid for record in self.app.store.workers()}
        except StoreError:
            return False

    def compare(self) -> dict[str, str]:
        """Read a hash of every finished job; one that was seen before is as it was (S15)."""
        with psycopg.connect(self.url) as db:
            found: dict[str, str] = dict(
                db.execute("SELECT job_id::text, md5(outcome::text) FROM holdfast.outcome AS outcome").fetchall()
            )
        changed = {id_ for id_, seen in self.first_seen.items() if found.get(id_) != seen}
        assert not changed, "a terminal record changed, or is gone"
        self.first_seen = found
        return found

    def close(self) -> None:
        """End every worker that is left."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self.app.close()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with own() as server, closing(Yard(server, tmp_path)) as yard:
        yield yard


def test_every_job_ends_exactly_once_though_workers_are_killed_and_the_server_crashes(yard: Yard) -> None:
    rng = random.Random(KILLS)
    jobs = [yard.app.prepare("work" if n % 3 else "awork", {"n": n}) for n in range(JOBS)]
    ids = {str(job.id) for job in yard.app.enqueue_many(jobs)}
    crew = [yard.hire() for _ in range(CREW)]
    faults = ["kill"] * KILLS
    for n in range(CRASHES):
        faults.insert((n + 1) * len(faults) // (CRASHES + 1) + n, "crash")
    crashed = 0
    for number, fault in enumerate(faults, 1):
        left = JOBS - JOBS * number // (len(faults) + 1)
        until(partial(yard.down_to, left), "progress", 120)
        if fault == "crash":
            yard.server.restart()
            crashed += 1
        else:
            victim = rng.randrange(CREW)
            until(partial(yard.at_work, crew[victim]), "the victim at work", 60)
            crew[victim].send_signal(signal.SIGKILL)
            crew[victim].wait()
            crew[victim] = yard.hire()
        yard.compare()
    until(lambda: yard.unfinished() == 0, "the end", 180)
    assert crashed == CRASHES
    assert set(yard.compare()) == ids, "a job was lost, or came from nowhere (S1, S2)"
    _assert_sound(yard, ids)
    checked = subprocess.run(
        [sys.executable, "-m", "holdfast", "check", "--url", yard.url], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    for worker in crew:
        until(partial(yard.at_work, worker), "every worker at work", 60)
        worker.terminate()
    assert [worker.wait(20) for worker in crew] == [0] * CREW
    yard.compare()


def _assert_sound(yard: Yard, ids: set[str]) -> None:
    """Every job succeeded once, after at least one run of its body and at most one for each claim (S18)."""
    runs = Counter(line.split()[0] for line in yard.ledger.read_text().splitlines())
    assert set(runs) == ids
    assert yard.app.counts()["succeeded"] == len(ids)
    assert list(yard.app.store.check()) == []
    now = yard.app.store.now()
    query = Query(limit=1000)
    while page := yard.app.store.find(query):
        query = query._replace(before=page[-1].id)
        for job in page:
            assert job.state == "succeeded"
            assert 1 <= runs[job.id] <= job.token, "more bodies ran than claims were made"
            if job.token > 1:
                assert violations(job, yard.app.store.attempts(job.id), now) == []
