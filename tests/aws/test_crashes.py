"""Killed between any two calls: what was stored is not lost, and two rounds of upkeep repair what was left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.job import TERMINAL, State
from holdfast.domain.moments import SECOND
from holdfast.port.store import Claim, Query
from holdfast.runtime import upkeep
from holdfast.stores.dynamodb import ContractStore
from holdfast.testing.lab import RETENTION
from tests.aws import emulator
from tests.aws.outside import Outside
from tests.aws.shim import Shim, between

ROOT = Path(__file__).parents[2]
MOST = 40
PATIENCE = 30.0


@pytest.fixture
def shim(aws_endpoint: str) -> Iterator[Shim]:
    with between(aws_endpoint) as shim:
        yield shim


@pytest.fixture
def url(shim: Shim) -> Iterator[str]:
    url = emulator.contract_of(shim.endpoint, grace=0, lost=0)
    yield url
    shim.after = lambda _operation: None
    emulator.drop(url)


class Nursery:
    """Starts processes that are killed once so many of their calls were done."""

    def __init__(self, url: str, shim: Shim) -> None:
        self._shim = shim
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.aws.mortal", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def live(self, calls: int) -> bool:
        """Let a process live; tell whether it was killed before its end."""
        pid, left = int(self._ask(f"{1_000 * calls}")), [calls]

        def after(_operation: str) -> None:
            with self._shim.lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(pid, signal.SIGKILL)

        self._shim.after = after
        killed = self._ask("go") == "killed"
        self._shim.after = lambda _operation: None
        return killed

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def nursery(url: str, shim: Shim) -> Iterator[Nursery]:
    nursery = Nursery(url, shim)
    yield nursery
    nursery.process.communicate(timeout=30)


def test_a_process_killed_after_any_call_leaves_nothing_that_two_sweeps_do_not_repair(
    url: str, nursery: Nursery
) -> None:
    outside, known = Outside(url), set[str]()
    with closing(ContractStore(url)) as store:
        store.counts()
        calls = 1
        while nursery.live(calls):
            repair(store)
            require_sound(store, outside, known)
            calls += 1
            assert calls < MOST, "no process ever came to its end"
        assert calls > 10, "there were calls to be killed at"
        repair(store)
        require_sound(store, outside, known)
        assert list(store.check()) == []


def repair(store: ContractStore) -> None:
    """Wait until the dead process's leases are over, then make two rounds of upkeep."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and any(
        (job.lease_expires_at or 0) > store.now() for job in store.find(Query(state=State.RUNNING, limit=500))
    ):
        store.wait(None, 0.1)
    for _ in range(2):
        upkeep.reap(store, Settings())
        store.sweep(1_000)


def require_sound(store: ContractStore, outside: Outside, known: set[str]) -> None:
    """See that every job that has not ended is offered by SQS, and that dead ones were buried once."""
    jobs = store.find(Query(limit=500))
    assert all(job.state in TERMINAL or job.state in (State.QUEUED, State.RETRYING) for job in jobs)
    waiting = {job.id for job in jobs if job.state not in TERMINAL}
    dead = {job.id for job in jobs if job.state is State.DEAD}
    buried = {json.loads(message["Body"])["job_id"] for message in outside.receive(outside.dlq)}
    assert buried == dead - known
    known |= buried
    claimed = store.claim(Claim("heir", "heir", 60 * SECOND, 500))
    assert {job.id for job in claimed} == waiting
    store.commit([lifecycle.complete(job, "2", RETENTION) for job in claimed])
