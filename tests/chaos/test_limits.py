"""Limits under fire: whoever is killed, the recorded history never shows one job too many.

A lease's interval is read off the record of its attempt: from the claim to the end that was written.
`HOLDFAST_CHAOS_KILLS` says how often workers are killed (5 by default, among 6 processes; from 50 on there are 16).
"""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.moments import SECOND, Micros
from tests.chaos import limited
from tests.chaos.yard import FULL, KILLS, Yard, opened

PROCESSES = 16 if FULL else 6
TENANTS = ("a", "b", "c")
AT_ONCE, RATE, BURST = 3, 40, 5


class Dock(Yard):
    """A yard whose workers run the limited application."""

    def _worker(self, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", f"{limited.__file__}:app", *options],
            env={**os.environ, "CHAOS_URL": self.url},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def leases(self, queue: str) -> Iterator[tuple[str, Micros, Micros]]:
        """Give the tenant of every lease there was in a queue, when it began and when it ended."""
        for job in self.records():
            if job.queue == queue:
                for attempt in self.app.attempts(job.id):
                    assert attempt.claimed_at is not None
                    assert attempt.ended_at is not None
                    yield job.tenant, attempt.claimed_at, attempt.ended_at


@pytest.fixture(params=["sqlite", "postgres"])
def dock(request: Any, tmp_path: Path) -> Iterator[Dock]:
    yard = opened(request, tmp_path)
    dock = Dock(yard.url, tmp_path)
    yard.close()
    dock.app.registry = limited.app.registry
    yield dock
    dock.close()


def test_limits_hold_at_every_moment_however_often_workers_are_killed(dock: Dock) -> None:
    app = dock.app
    app.limits.set("at-once", concurrency=AT_ONCE, per="tenant")
    app.limits.set("paced", rate=f"{RATE}/s", burst=BURST)
    jobs = [
        app.prepare("work", {"n": n}, queue=queue, tenant=TENANTS[n % 3])
        for queue in ("at-once", "paced")
        for n in range(60 * KILLS)
    ]
    app.enqueue_many(jobs)
    dock.hire(PROCESSES, "-c", "4")
    for _ in range(KILLS):
        dock.replace_one("-c", "4")
    dock.until(lambda: not dock.unfinished(), "every job finished")
    assert dock.killed_at_work == KILLS
    dock.dismiss()
    dock.assert_sound()
    assert app.counts()["succeeded"] == len(jobs)

    crowds: dict[str, list[tuple[Micros, int]]] = defaultdict(list)
    for tenant, begun, ended in dock.leases("at-once"):
        crowds[tenant] += [(begun, 1), (ended, -1)]
    most = {tenant: _most(changes) for tenant, changes in crowds.items()}
    assert most == dict.fromkeys(TENANTS, AT_ONCE)

    starts = sorted(begun for _, begun, _ in dock.leases("paced"))
    for place, start in enumerate(starts):
        for end in range(place, len(starts)):
            assert end - place + 1 <= RATE * (starts[end] - start) / SECOND + BURST


def _most(changes: list[tuple[Micros, int]]) -> int:
    """Give the most leases that were in force at once; one that ends as another begins was over before."""
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
