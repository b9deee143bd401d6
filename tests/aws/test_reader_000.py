"""A program written from nothing but the text of the contract reads the table: lists, orders, interprets.

It has bare boto3 and the names that the contract gives: the key, the index, the fields, the statuses.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import boto3  # type: ignore[import-untyped]
import pytest
from boto3.dynamodb.conditions import Key  # type: ignore[import-untyped]

from holdfast.domain import lifecycle
from holdfast.domain.job import State
from holdfast.domain.moments import SECOND, to_datetime
from holdfast.stores.dynamodb import ContractStore
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import RETENTION
from tests.aws import emulator

TEXTS = {
    *("job_id", "workspace_id", "user_id", "workflow_id", "trigger_type", "status", "idempotency_key"),
    *("last_error_code", "last_error_message", "created_at", "updated_at", "started_at", "completed_at"),
}
NUMBERS = {
    *("attempts", "max_attempts", "step_cursor", "steps_total"),
    *("credits_estimate", "credits_reserved", "credits_spent", "ttl_at"),
}
STATUSES = {"pending", "queued", "running", "completed", "failed", "dead", "canceled"}
TERMINAL = {"completed", "dead", "canceled"}


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

    def job(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = self.table.get_item(Key={"job_id": id_})["Item"]
        return found

    def workspace(self, id_: str) -> list[dict[str, Any]]:
        """List the runs of a workspace, oldest first."""
        found: list[dict[str, Any]] = self.table.query(
            IndexName="workspace_created_at", KeyConditionExpression=Key("workspace_id").eq(id_)
        )["Items"]
        return found

    def every(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.scan()["Items"]
        return found


@pytest.fixture
def bench(aws_endpoint: str) -> Iterator[Lab]:
    url = emulator.contract_of(aws_endpoint, shards=4)
    with lab(lambda clock: ContractStore(url, clock)) as bench:
        yield bench
    emulator.drop(url)


@pytest.fixture
def reader(bench: Lab) -> Reader:
    bench.counts()
    return Reader(bench.store.url)


def test_the_reader_understands_every_status(bench: Lab, reader: Reader) -> None:
    jobs = {state: bench.in_state(state, tenant="ws-1") for state in State}
    told = {state: reader.job(job.id)["status"] for state, job in jobs.items()}
    assert told == {
        State.CREATED: "pending",
        State.QUEUED: "queued",
        State.RUNNING: "running",
        State.RETRYING: "failed",
        State.SUCCEEDED: "completed",
        State.DEAD: "dead",
        State.CANCELLED: "canceled",
    }
    assert {job["status"] for job in reader.every()} == STATUSES


def test_every_item_of_the_table_is_a_job_and_its_fields_have_their_types(bench: Lab, reader: Reader) -> None:
    for number, state in enumerate(State):
        more = {"tenant": "ws-1", "user": "u-1", "key": f"k-{number}", "trigger": "file_drop", "steps_total": 3}
        bench.in_state(state, **more)
    bench.store.grant("ws-1", 10, "g")
    bench.done(lifecycle.checkpoint(bench.running(tenant="ws-1", credits=4), "first", "1", spend=1))
    items = reader.every()
    assert len(items) == len(State) + 1
    for item in items:
        assert str(UUID(item["job_id"])) == item["job_id"]
        assert all(isinstance(item[name], str) for name in TEXTS & item.keys())
        assert all(isinstance(item[name], Decimal) for name in NUMBERS & item.keys())
        assert {*TEXTS, *NUMBERS} - item.keys() <= TEXTS | NUMBERS
        assert item["trigger_type"] in {"manual", "schedule", "webhook", "file_drop"}
    assert set().union(*items) >= TEXTS | NUMBERS
    [paid] = [item for item in items if item["credits_estimate"]]
    assert (paid["credits_estimate"], paid["credits_reserved"], paid["credits_spent"]) == (4, 3, 1)
    assert paid["step_cursor"] == 1


def test_the_reader_lists_a_workspace_in_order_and_sees_what_the_index_shows(bench: Lab, reader: Reader) -> None:
    made = []
    for tenant in ("ws-1", "ws-2", "ws-1", "ws-1"):
        bench.clock.advance(seconds=1)
        made.append(bench.job(tenant=tenant, kind=f"of-{tenant}"))
    bench.done(lifecycle.cancel(made[2], RETENTION))
    listed = reader.workspace("ws-1")
    assert [item["job_id"] for item in listed] == [made[0].id, made[2].id, made[3].id]
    assert [item["created_at"] for item in listed] == sorted(item["created_at"] for item in listed)
    assert [item["status"] for item in listed] == ["queued", "canceled", "queued"]
    shown = {"job_id", "workspace_id", "created_at", "status", "workflow_id", "trigger_type", "credits_estimate"}
    assert set(listed[0]) == shown
    assert [item["job_id"] for item in reader.workspace("ws-2")] == [made[1].id]


def test_times_are_iso_8601_and_only_terminal_jobs_expire(bench: Lab, reader: Reader) -> None:
    for state in State:
        job = bench.in_state(state)
        item = reader.job(job.id)
        for name in ("created_at", "updated_at", "started_at", "completed_at"):
            if name in item:
                assert datetime.fromisoformat(item[name]).tzinfo == UTC
        assert datetime.fromisoformat(item["created_at"]) == to_datetime(job.created_at)
        assert ("ttl_at" in item) == ("completed_at" in item) == (item["status"] in TERMINAL)
        if "ttl_at" in item:
            assert item["ttl_at"] == (job.purge_at or 0) // SECOND


def test_the_reader_follows_a_run_from_attempt_to_attempt(bench: Lab, reader: Reader) -> None:
    job = bench.in_state(State.RETRYING)
    item = reader.job(job.id)
    assert (item["status"], item["attempts"], item["last_error_code"]) == ("failed", 1, "flaky")
    first = item["started_at"]
    bench.clock.advance(minutes=1)
    bench.done(lifecycle.complete(bench.take(job), None, RETENTION))
    item = reader.job(job.id)
    assert (item["status"], item["attempts"], item["started_at"]) == ("completed", 2, first)
