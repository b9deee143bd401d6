"""Several processes on one table: every job is settled by exactly one of them, whoever is killed on the way."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.domain.job import NewJob, State
from holdfast.port.store import Query
from holdfast.stores.dynamodb import DynamoStore
from tests.aws import emulator

CLAIMANT = Path(__file__).with_name("claimant.py")
CROWD = 4
JOBS = 80


@pytest.fixture
def store(aws_endpoint: str) -> Iterator[DynamoStore]:
    url = emulator.table_of(aws_endpoint, poll=0.1)
    with closing(DynamoStore(url)) as store:
        yield store
    emulator.drop(url)


class Crowd:
    """Processes that begin at the same moment."""

    def __init__(self, url: str) -> None:
        self.members = [
            subprocess.Popen(
                [sys.executable, str(CLAIMANT), url, f"w{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(CROWD)
        ]
        for member in self.members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write("go\n")
            member.stdin.flush()

    def settled(self) -> Counter[str]:
        """Wait until all are through; count the settlements of each job."""
        said = [member.communicate(timeout=240)[0] for member in self.members]
        return Counter(line for text in said for line in text.split())


def stored(store: DynamoStore) -> set[str]:
    ids = [f"01890000-0000-7000-8000-{number:012d}" for number in range(JOBS)]
    for at in range(0, JOBS, 20):
        store.insert([[(id_, NewJob("echo", "{}", max_attempts=9, crash_cap=9)) for id_ in ids[at : at + 20]]])
    return set(ids)


def test_each_job_is_settled_by_one_process(store: DynamoStore) -> None:
    ids = stored(store)
    settled = Crowd(store.url).settled()
    assert settled == dict.fromkeys(ids, 1)
    ended = store.find(Query(limit=JOBS))
    assert {(job.state, job.attempt, job.token) for job in ended} == {(State.SUCCEEDED, 1, 1)}
    assert [len(store.steps(job.id)) for job in ended] == [1] * JOBS
    assert list(store.check()) == []


def test_jobs_of_killed_processes_are_settled_by_the_others(store: DynamoStore) -> None:
    ids = stored(store)
    crowd = Crowd(store.url)
    for member in crowd.members[: CROWD // 2]:
        time.sleep(0.3)
        member.kill()
    settled = crowd.settled()
    assert max(settled.values()) == 1, "a job was settled twice"
    ended = store.find(Query(limit=JOBS))
    assert {job.id for job in ended if job.state is State.SUCCEEDED} == ids
    for job in ended:
        assert job.token - 1 == len(store.attempts(job.id)), "every claim but the last one ended in a record"
    assert list(store.check()) == []
