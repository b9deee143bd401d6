"""Deliveries, as the idempotency spec words it: duplicates are safe, late ones are no-ops, one of many workers wins."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast, Permanent
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim
from tests.aws import emulator
from tests.aws.outside import Outside

ROOT = Path(__file__).parents[2]
CROWD = 8
JOBS = 500
TIMES = 3
LATE = 1_000


@pytest.fixture
def app(aws_endpoint: str) -> Iterator[Holdfast]:
    url = emulator.contract_of(aws_endpoint, shards=4)
    with closing(Holdfast(url)) as app:

        @app.job(name="echo")
        def echo(n: int) -> int:
            return n

        @app.job(name="poison")
        def poison() -> None:
            raise Permanent("unreadable", code="unreadable")

        yield app
    emulator.drop(url)


def test_of_8_processes_racing_on_500_jobs_with_each_message_delivered_3_times_one_claims_each(app: Holdfast) -> None:
    jobs = app.enqueue_many([app.prepare("echo", {"n": n}) for n in range(JOBS)])
    outside = Outside(app.url)
    messages = [json.dumps(app.envelope(job.id)) for job in jobs]
    for _ in range(TIMES - 1):
        outside.send(messages)
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.aws.deliverer", app.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(CROWD)
    ]
    for member in members:
        assert member.stdout is not None
        assert member.stdout.readline() == "ready\n"
    for member in members:
        assert member.stdin is not None
        member.stdin.write("go\n")
        member.stdin.flush()
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for line in "".join(member.communicate(timeout=300)[0] for member in members).splitlines():
        job_id, outcome = line.split()
        outcomes[job_id][outcome] += 1
    assert outcomes.keys() == {str(job.id) for job in jobs}
    assert {counts["claimed"] for counts in outcomes.values()} == {1}
    assert sum(counts.total() for counts in outcomes.values()) == JOBS * TIMES
    assert set().union(*outcomes.values()) <= {"claimed", "already-claimed", "no-op-terminal"}
    rows = outside.rows()
    assert {(row["status"], int(row["attempts"])) for row in rows.values()} == {("completed", 1)}
    assert len(rows) == JOBS


def test_terminal_rows_are_equal_by_the_byte_before_and_after_1000_late_deliveries(app: Holdfast) -> None:
    done, dead, stopped = app.enqueue("echo", {"n": 1}), app.enqueue("poison", {}), app.enqueue("echo", {"n": 2})
    envelopes = [json.dumps(app.envelope(job.id)) for job in (done, dead, stopped)]
    stopped.cancel()
    assert [app.process(envelope) for envelope in envelopes] == ["claimed", "claimed", "no-op-terminal"]
    outside = Outside(app.url)
    before = [outside.bytes(str(job.id)) for job in (done, dead, stopped)]
    outside.send([envelopes[number % 3] for number in range(LATE)])
    while outside.number():
        assert app.store.claim(Claim("late", "lease", MINUTE, 100)) == []
    assert [outside.bytes(str(job.id)) for job in (done, dead, stopped)] == before
    assert [app.process(envelope) for envelope in envelopes] == ["no-op-terminal"] * 3
    assert [outside.bytes(str(job.id)) for job in (done, dead, stopped)] == before
