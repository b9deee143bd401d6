"""A program written from nothing but the text of the scheduled queue reads the table: lists, orders, interprets.

It has bare boto3, the polling query as written, and the names that the text gives to fields and statuses.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3  # type: ignore[import-untyped]
import pytest
from boto3.dynamodb.conditions import Key  # type: ignore[import-untyped]

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, Retention, State
from holdfast.domain.moments import DAY, to_datetime
from holdfast.stores.dynamodb import DynamoStore
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import DELAY, FLAKY, RETENTION

FIELDS = {
    "PK", "SK", "job_type", "payload", "scheduled_for", "status", "locked_by", "lock_expires_at", "attempts",
    "last_error", "created_at", "completed_at",
}  # fmt: skip


@pytest.fixture
def bench(dynamodb_url: str) -> Iterator[Lab]:
    with lab(lambda clock: DynamoStore(dynamodb_url, clock)) as bench:
        yield bench


class Reader:
    """The program."""

    def __init__(self, url: str) -> None:
        said = parse_qs(urlsplit(url).query)
        resource = boto3.resource(
            "dynamodb",
            region_name=said["region"][0],
            endpoint_url=said["endpoint"][0],
            aws_access_key_id="x",
            aws_secret_access_key="x",
        )
        self.table = resource.Table(urlsplit(url).netloc)

    def due(self, now: datetime) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.query(
            KeyConditionExpression=Key("PK").eq("job") & Key("SK").lte(f"scheduled#{now.isoformat()}")
        )["Items"]
        return found

    def every(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.query(KeyConditionExpression=Key("PK").eq("job"))["Items"]
        return found

    def end(self, job: JobRecord, status: str) -> None:
        """Give a job another status, and nothing else."""
        [place] = [{name: item[name] for name in ("PK", "SK")} for item in self.every() if item["SK"].endswith(job.id)]
        self.table.update_item(
            Key=place,
            UpdateExpression="SET #s = :s",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={":s": status},
        )


def test_a_reader_of_the_scheduled_queue_finds_what_is_due_in_order(bench: Lab) -> None:
    now = bench.clock.now()
    late, soon, future = (bench.job(run_at=now + seconds * 1_000_000) for seconds in (9, 3, 3_600))
    bench.in_state(State.SUCCEEDED)
    bench.in_state(State.DEAD)
    bench.clock.advance(seconds=30)
    reader = Reader(bench.store.url)
    due = reader.due(to_datetime(bench.clock.now()))
    assert [item["SK"].rpartition("#")[2] for item in due] == [soon.id, late.id], "ended jobs are out of the way"
    assert future.id not in {item["SK"].rpartition("#")[2] for item in due}
    for item in due:
        assert item["SK"] == f"scheduled#{item['scheduled_for']}#{item['SK'].rpartition('#')[2]}"
        assert (item["status"], item["job_type"], item["payload"], item["attempts"]) == (
            "pending",
            "echo",
            '{"n":1}',
            0,
        )
        assert "lock_expires_at" not in item


def test_a_reader_of_the_scheduled_queue_understands_every_state(bench: Lab) -> None:
    jobs = {state: bench.in_state(state) for state in State}
    items = {item["SK"].rpartition("#")[2]: item for item in Reader(bench.store.url).every()}
    assert {state: items[job.id]["status"] for state, job in jobs.items()} == {
        State.CREATED: "pending",
        State.QUEUED: "pending",
        State.RUNNING: "in_progress",
        State.RETRYING: "failed",
        State.SUCCEEDED: "completed",
        State.DEAD: "dead_letter",
        State.CANCELLED: "cancelled",
    }
    running = items[jobs[State.RUNNING].id]
    assert (running["locked_by"], running["attempts"]) == ("ada", 1)
    ends = datetime.fromisoformat(running["lock_expires_at"])
    assert ends == to_datetime(jobs[State.RUNNING].lease_expires_at or 0)
    assert ends.tzinfo == UTC
    assert items[jobs[State.DEAD].id]["last_error"] == "hopeless: no such document"
    assert "completed_at" in items[jobs[State.SUCCEEDED].id]
    assert "completed_at" not in items[jobs[State.DEAD].id]
    assert set().union(*items.values()) >= FIELDS


@pytest.mark.parametrize("first", [State.QUEUED, State.RUNNING, State.RETRYING])
@pytest.mark.parametrize("pause", [0, 60], ids=["at once", "a minute later"])
def test_a_job_that_another_program_has_given_up_can_be_redriven(bench: Lab, first: State, pause: int) -> None:
    job = bench.in_state(first, key="k")
    Reader(bench.store.url).end(job, "dead_letter")
    dead = bench.read(job)
    assert dead.state is State.DEAD
    bench.clock.advance(seconds=pause)
    redriven = bench.done(lifecycle.redrive(dead))
    assert (redriven.state, redriven.generation) == (State.QUEUED, 2)
    bench.done(lifecycle.complete(bench.take(redriven), None, RETENTION))
    assert bench.accepted([bench.new(key="k")])[0].duplicate
    bench.clock.advance(microseconds=RETENTION.succeeded)
    assert (bench.store.purge(10).jobs, list(bench.store.check())) == (1, [])


@pytest.mark.parametrize("status", ["cancelled", "completed", "dead_letter"])
def test_a_job_that_another_program_has_ended_is_kept_as_long_as_others_and_then_purged(
    bench: Lab, status: str
) -> None:
    job, other = bench.job(key="k"), bench.job(delay=90 * DAY)
    Reader(bench.store.url).end(job, status)
    kept = Retention().dead if status == "dead_letter" else Retention().cancelled
    bench.clock.advance(microseconds=kept - 1)
    assert bench.store.purge(10).jobs == 0
    bench.clock.advance(microseconds=1)
    assert bench.store.purge(10).jobs == 1
    assert bench.store.read([job.id, other.id]) == [None, other]
    assert bench.job(key="k").id != job.id, "its key is free"


def test_the_dedup_record_points_to_where_the_job_is(bench: Lab) -> None:
    reader = Reader(bench.store.url)

    def status(job: JobRecord) -> str:
        record = reader.table.get_item(Key={"PK": "scheduled-job#ada#2026-01-01", "SK": "key"})["Item"]
        target = reader.table.get_item(Key={"PK": record["job_pk"], "SK": record["job_sk"]})["Item"]
        assert target["SK"].endswith(job.id)
        return str(target["status"])

    job = bench.job(key="2026-01-01", tenant="ada")
    assert status(job) == "pending"
    failed = bench.done(lifecycle.fail(bench.take(job), FLAKY, draw=0, retention=RETENTION))
    assert status(job) == "failed"
    bench.clock.advance(microseconds=DELAY)
    bench.done(lifecycle.complete(bench.take(failed), None, RETENTION))
    assert status(job) == "completed"
