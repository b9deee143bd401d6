"""What is sent about jobs, and what becomes of messages that are received: by the contract's own words."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.dialects import envelope
from holdfast.domain.errors import StoreError
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.domain.move import Answer
from holdfast.testing.conformance import Lab
from holdfast.testing.lab import FLAKY, HOPELESS, LEASE, RETENTION
from tests.aws.outside import Outside

FIELDS = ["v", "job_id", "workspace_id", "trigger_type", "attempt", "max_attempts", "trace_id", "idempotency_key"]


def body(job: JobRecord, **changes: Any) -> str:
    return json.dumps({**envelope(job), **changes})


def test_an_enqueued_job_is_queued_and_its_message_is_the_envelope_and_nothing_else(
    bench: Lab, outside: Outside
) -> None:
    job = bench.job(tenant="ws-1", key="k", trace_id="t", trigger="webhook")
    assert outside.status(job.id) == "queued"
    [message] = outside.receive()
    said = json.loads(message["Body"])
    assert list(said) == FIELDS
    assert said == {
        "v": 1,
        "job_id": job.id,
        "workspace_id": "ws-1",
        "trigger_type": "webhook",
        "attempt": 1,
        "max_attempts": 5,
        "trace_id": "t",
        "idempotency_key": "k",
    }
    assert message["Attributes"]["MessageGroupId"] == "ws-1", "SQS is fair to workspaces"


def test_a_claim_takes_what_messages_offer_and_deletes_them_when_jobs_are_settled(bench: Lab, outside: Outside) -> None:
    jobs = bench.jobs(12)
    claimed = bench.claim(12)
    assert {job.id for job in claimed} == {job.id for job in jobs}
    assert outside.number() == 12
    assert [outside.status(job.id) for job in jobs] == ["running"] * 12
    bench.store.commit([lifecycle.complete(job, None, RETENTION) for job in claimed])
    assert outside.number() == 0
    assert [outside.status(job.id) for job in jobs] == ["completed"] * 12


def test_a_job_that_waits_for_longer_than_a_message_can_is_pending_until_its_time(bench: Lab, outside: Outside) -> None:
    job = bench.job(delay=HOUR)
    assert (outside.status(job.id), outside.number()) == ("pending", 0)
    bench.store.sweep(100)
    assert outside.number() == 0
    bench.clock.advance(minutes=59, seconds=30)
    bench.store.sweep(100)
    assert (outside.status(job.id), outside.number()) == ("queued", 1)
    assert outside.receive() == [], "it comes when the job is due"


def test_a_failed_job_gets_a_fresh_message_with_the_delay_of_its_backoff(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    [held] = bench.claim()
    bench.done(lifecycle.fail(held, FLAKY, draw=0, retention=RETENTION))
    row = outside.rows()[job.id]
    assert (row["status"], int(row["attempts"]), row["last_error_code"]) == ("failed", 1, "flaky")
    assert row["next_attempt_at"] > row["updated_at"]
    asked = outside.sqs.get_queue_attributes(QueueUrl=outside.url(outside.queue), AttributeNames=["All"])
    assert asked["Attributes"]["ApproximateNumberOfMessagesDelayed"] == "1"
    assert outside.number() == 1, "the message of the failed attempt is gone"


def test_a_dead_job_has_its_envelope_in_the_dead_letter_queue_with_the_reason(bench: Lab, outside: Outside) -> None:
    job = bench.job(tenant="ws-1")
    [held] = bench.claim()
    bench.done(lifecycle.fail(held, HOPELESS, draw=0, retention=RETENTION))
    assert (outside.status(job.id), outside.number()) == ("dead", 0)
    [message] = outside.receive(outside.dlq)
    told = json.loads(message["Body"])
    assert list(told) == FIELDS
    assert (told["attempt"], int(outside.rows()[job.id]["attempts"])) == (1, 1), "the attempt that it died of"
    said = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    assert said == {"reason": "hopeless", "detail": "no such document", "source": outside.queue}


def test_a_heartbeat_extends_the_lease_and_hides_the_message(
    bench: Lab, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.dynamodb.mail._MARGIN", 0)
    bench.job()
    [held] = bench.claim(lease=SECOND)
    assert bench.beat(held, lease=LEASE) is Answer.OK
    asked = outside.sqs.receive_message(QueueUrl=outside.url(outside.queue), WaitTimeSeconds=2)
    assert "Messages" not in asked
    assert bench.read(held).lease_expires_at == bench.clock.now() + LEASE


def test_the_message_of_a_running_job_comes_again_and_that_of_a_finished_one_does_not(
    bench: Lab, outside: Outside
) -> None:
    running, done = bench.running(), bench.in_state(State.SUCCEEDED)
    outside.receive()
    outside.send([body(running), body(done)])
    before = [outside.bytes(job.id) for job in (running, done)]
    assert bench.claim(5) == []
    assert [outside.bytes(job.id) for job in (running, done)] == before
    assert outside.number() == 1


def test_an_early_message_costs_no_attempt_and_comes_again(bench: Lab, outside: Outside) -> None:
    job = bench.job(delay=MINUTE)
    outside.send([body(job)])
    assert bench.claim(5) == []
    assert (bench.read(job), outside.number()) == (job, 2)


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("not json", "bad_envelope", "The message body is not JSON, so it is not an envelope."),
        ("[1]", "bad_envelope", "The message body is not a JSON object, so it is not an envelope."),
        ('{"v": 2}', "bad_envelope", "The envelope has version 2; only version 1 is understood."),
    ],
)
def test_what_is_no_envelope_goes_to_the_dead_letter_queue_with_a_reason(
    bench: Lab, outside: Outside, text: str, reason: str, detail: str
) -> None:
    outside.send([text])
    assert bench.claim(5) == []
    assert outside.number() == 0
    [finding] = bench.store.check()
    assert "holds a message that is about no job; see its attributes" in finding.text
    [message] = outside.receive(outside.dlq)
    said = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    assert (message["Body"], said["reason"], said["detail"]) == (text, reason, detail)


def test_a_message_for_a_job_that_is_not_there_is_put_aside_and_reported(
    bench: Lab, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    job = bench.job()
    outside.receive()
    [nobody] = bench.ids.take(1)
    outside.send([body(job, job_id=nobody)])
    assert bench.claim(5) == []
    assert (outside.number(), outside.number(outside.dlq)) == (0, 1)
    bench.store.sweep(100)
    bench.clock.advance(minutes=1)
    bench.store.sweep(100)
    says = f"The dead-letter queue {outside.dlq!r} holds a message for the job {nobody}, which is not there; see its"
    assert caplog.text.count(says) == 1, "it is told once"
    assert outside.number(outside.dlq) == 1, "it is kept for the operator"
    [finding] = bench.store.check()
    assert says in finding.text


def test_a_job_that_another_program_wrote_by_the_contract_runs(bench: Lab, outside: Outside) -> None:
    [id_] = bench.ids.take(1)
    outside.table.put_item(
        Item={
            "job_id": id_,
            "workspace_id": "ws-1",
            "user_id": "u",
            "workflow_id": "echo",
            "status": "queued",
            "trigger_type": "manual",
            "attempts": 0,
            "max_attempts": 5,
            "step_cursor": 0,
            "steps_total": 0,
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "credits_estimate": 0,
        }
    )
    outside.send([json.dumps(dict(zip(FIELDS, [1, id_, "ws-1", "manual", 1, 5, "t", None], strict=True)))])
    [held] = bench.claim(5)
    assert (held.id, held.kind, held.tenant, held.attempt) == (id_, "echo", "ws-1", 1)
    bench.done(lifecycle.complete(held, None, RETENTION))
    assert (outside.status(id_), outside.number()) == ("completed", 0)


def test_an_item_with_an_unknown_status_is_reported_and_neither_run_nor_lost(
    bench: Lab, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    job = bench.job()
    outside.table.update_item(
        Key={"job_id": job.id},
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "status"},
        ExpressionAttributeValues={":s": "melting"},
    )
    before = outside.bytes(job.id)
    assert bench.claim(5) == []
    assert bench.claim(id=job.id) == []
    bench.clock.advance(hours=1)
    bench.store.sweep(100)
    assert (outside.bytes(job.id), outside.number()) == (before, 1)
    said = f"The item '{job.id}' has the status 'melting', which the contract does not know; it is passed over."
    assert caplog.messages == [said]
    [finding] = bench.store.check()
    assert finding.text == said
    with pytest.raises(StoreError, match=re.escape(said)):
        bench.store.read([job.id])


FOREIGN: dict[str, Any] = {
    "job_id": "5f2b3c1e-8a4d-4f6b-9c7e-1d2a3b4c5d6e",
    "workflow_id": "echo",
    "status": "queued",
    "attempts": 0,
    "max_attempts": 5,
    "created_at": "2026-01-01T00:00:00+00:00",
}


def call(outside: Outside, row: dict[str, Any]) -> None:
    """Store an item as another program does, and send its message."""
    outside.table.put_item(Item=row)
    body = {"v": 1, "workspace_id": "", "trigger_type": "manual", "attempt": 1, "max_attempts": 5, "trace_id": ""}
    outside.send([json.dumps(body | {"job_id": row["job_id"], "idempotency_key": ""})])


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"updated_at": "yesterday"}, "is no job: Invalid isoformat string: 'yesterday'"),
        ({"next_attempt_at": ""}, "is no job: Invalid isoformat string: ''"),
        ({"attempts": "0"}, "is no job: its attempts is not a whole number"),
        ({"attempts": Decimal("0.5")}, "is no job: its attempts is not a whole number"),
        ({"attempts": None}, "is no job: its attempts is not a whole number"),
        ({"max_attempts": "five"}, "is no job: its max_attempts is not a whole number"),
        ({"payload": {"a": 1}}, "is no job: its payload is not text"),
        ({"user_id": 7}, "is no job: its user_id is not text"),
        ({"steps": ["fetch"]}, "has steps that Holdfast did not write"),
    ],
)
def test_an_item_that_cannot_be_read_is_told_and_stays_as_it_is_while_others_run(
    bench: Lab, outside: Outside, caplog: pytest.LogCaptureFixture, field: dict[str, Any], says: str
) -> None:
    job = bench.job()
    call(outside, FOREIGN | field)
    before = outside.bytes(FOREIGN["job_id"])
    assert [claimed.id for claimed in bench.claim(5)] == [job.id]
    said = f"The item '{FOREIGN['job_id']}' {says}; it is passed over."
    assert caplog.messages == [said]
    assert (outside.bytes(FOREIGN["job_id"]), outside.number()) == (before, 2)
    with pytest.raises(StoreError, match=re.escape(said)):
        bench.store.read([FOREIGN["job_id"]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_at", "2026-01-01T00:00:00"),
        ("created_at", "2025-12-31T00:00:00.500Z"),
        ("created_at", "2026-01-01T00:00:02+00:00"),
        ("credits_estimate", Decimal("1.5")),
        ("max_attempts", None),
        ("started_at", None),
    ],
)
def test_an_item_of_another_program_may_leave_things_open(bench: Lab, outside: Outside, field: str, value: Any) -> None:
    call(outside, FOREIGN | {field: value})
    [job] = bench.claim(5)
    assert (job.id, job.attempt, job.max_attempts) == (FOREIGN["job_id"], 1, 5)
    bench.done(lifecycle.complete(job, None, RETENTION))
    assert outside.status(job.id) == "completed"


def test_a_job_that_another_program_cancelled_in_the_table_is_a_no_op(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    outside.table.update_item(
        Key={"job_id": job.id},
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "status"},
        ExpressionAttributeValues={":s": "canceled"},
    )
    before = outside.bytes(job.id)
    assert bench.claim(5) == []
    assert (outside.bytes(job.id), outside.number()) == (before, 0)


def test_messages_of_queues_that_nobody_here_works_on_go_back(bench: Lab, outside: Outside) -> None:
    mail, shut = bench.job(queue="mail"), bench.job(queue="shut")
    bench.store.pause("shut")
    assert bench.claim(5, queues={"default": 5}) == []
    assert (bench.read(mail), bench.read(shut)) == (mail, shut)
    assert outside.number() == 2
    outside.send([body(mail), body(shut)], queue="mail")
    assert [job.id for job in bench.claim(5, queues={"mail": 5})] == [mail.id], "the row tells the queue"
