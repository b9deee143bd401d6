"""The functions for Lambda: batches as SQS hands them over, against a real queue of the emulator, and a sweep."""

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import pytest

from holdfast import BadInput, Context, Holdfast, Permanent, Retry
from holdfast.aws import lambda_handler, sweep_handler
from holdfast.aws.session import client
from holdfast.domain.errors import StoreError
from holdfast.port.store import Claim
from holdfast.stores.dynamodb.address import parse
from holdfast.testing.clock import ManualClock
from tests.aws.outside import Outside
from tests.servers import free_port

REGION = "eu-central-1"
_NUMBERS = count(1)


class Remaining:
    """The context of an invocation, as far as it is asked."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._end - time.monotonic()) * 1000))


class Queue(NamedTuple):
    """A queue of the emulator, and its dead-letter queue if it has one."""

    sqs: Any
    url: str
    arn: str
    grave: str | None

    def send(self, *bodies: Any) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body if isinstance(body, str) else json.dumps(body))

    def event(self, number: int) -> dict[str, Any]:
        """Receive messages and hand them over as the event source does."""
        messages: list[Any] = []
        while len(messages) < number:
            wait = {"WaitTimeSeconds": 10, "MessageAttributeNames": ["All"]}
            asked = {"QueueUrl": self.url, "MaxNumberOfMessages": 10, **wait}
            found = self.sqs.receive_message(**asked).get("Messages", [])
            assert found, "the queue is empty"
            messages += found
        return {"Records": [self._record(message) for message in messages]}

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": {"ApproximateReceiveCount": "1"},
            "messageAttributes": {
                name: {"stringValue": one["StringValue"], "dataType": one["DataType"]}
                for name, one in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self.arn,
            "awsRegion": REGION,
        }

    def dead(self) -> list[tuple[str, str, str]]:
        """Read the dead-letter queue: body, reason and detail of each message."""
        asked = {"QueueUrl": self.grave, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        found = self.sqs.receive_message(**asked).get("Messages", [])
        said = [{name: one["StringValue"] for name, one in message["MessageAttributes"].items()} for message in found]
        return [(message["Body"], one["reason"], one["detail"]) for message, one in zip(found, said, strict=True)]


def queue_at(endpoint: str, *, dead_letters: bool = True) -> Queue:
    sqs, name = client("sqs", REGION, endpoint), f"lambda-{next(_NUMBERS)}"
    attributes, grave = {"VisibilityTimeout": "600"}, None
    if dead_letters:
        grave = sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
        target = _arn(sqs, grave)
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 5})
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return Queue(sqs, url, _arn(sqs, url), grave)


def queue_of(app: Holdfast) -> Queue:
    """Give the queue that a store has of its own."""
    app.counts()  # opens the store, which makes its queues
    address = parse(app.url)
    sqs = client("sqs", REGION, address.endpoint)
    url, grave = (sqs.get_queue_url(QueueName=name)["QueueUrl"] for name in (address.queue, address.dlq))
    return Queue(sqs, url, _arn(sqs, url), grave)


def _arn(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


@pytest.fixture
def queue(aws_endpoint: str) -> Queue:
    return queue_at(aws_endpoint)


@pytest.fixture
def app(dynamodb_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(dynamodb_url, lease=2)) as app:
        yield app


@pytest.fixture
def here() -> Iterator[Holdfast]:
    with closing(Holdfast("memory://")) as app:
        yield app


def by_hand(app: Holdfast, *ids: Any) -> dict[str, Any]:
    """Make an event without a queue behind it."""
    bodies = [id_ if isinstance(id_, str) else json.dumps(app.envelope(id_)) for id_ in ids]
    return {"Records": [{"messageId": f"m{n}", "body": body} for n, body in enumerate(bodies, 1)]}


def failures(answer: dict[str, Any]) -> list[str]:
    assert list(answer) == ["batchItemFailures"]
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def test_a_batch_of_a_good_a_failing_and_a_malformed_message(app: Holdfast, queue: Queue) -> None:
    @app.job(retry=Retry.fixed(1, retries=3))
    def divide(a: int, b: int) -> float:
        return a / b

    good, failing = divide.enqueue(6, 3), divide.enqueue(1, 0)
    queue.send(app.envelope(good.id), app.envelope(failing.id), "{not json")
    event = queue.event(3)
    ids = {record["body"]: record["messageId"] for record in event["Records"]}
    answer = lambda_handler(app)(event, Remaining(60))
    assert good.result(timeout=0) == 2
    assert (failing.refresh().state, failing.attempt) == ("retrying", 1)
    assert failures(answer) == [ids[json.dumps({**app.envelope(failing.id), "attempt": 1})]], "it is tried again"
    assert queue.dead() == [("{not json", "bad_envelope", "The message body is not JSON, so it is not an envelope.")]
    [again] = queue.event(1)["Records"]
    assert again["messageId"] == failures(answer)[0], "after the delay, not after the visibility timeout"
    assert failures(lambda_handler(app)({"Records": [again]}, Remaining(60))) == [again["messageId"]]
    assert failing.refresh().attempt == 2


def test_a_batch_from_the_queue_of_the_store_itself(contract_url: str) -> None:
    with closing(Holdfast(contract_url)) as app:

        @app.job(retry=Retry.fixed(1, retries=3))
        def divide(a: int, b: int) -> float:
            return a / b

        @app.job
        def hopeless() -> None:
            raise Permanent("no", code="hopeless")

        good, failing, dead = divide.enqueue(6, 3), divide.enqueue(1, 0), hopeless.enqueue()
        queue = queue_of(app)
        queue.send("{not json")
        assert failures(lambda_handler(app)(queue.event(4), Remaining(60))) == [], "each has a fresh message, or none"
        assert [job.refresh().state for job in (good, failing, dead)] == ["succeeded", "retrying", "dead"]
        assert sorted((reason, detail) for _, reason, detail in queue.dead()) == [
            ("bad_envelope", "The message body is not JSON, so it is not an envelope."),
            ("hopeless", "no"),
        ]
        [again] = queue.event(1)["Records"]
        assert json.loads(again["body"]) == {**app.envelope(failing.id), "attempt": 2}
        assert failures(lambda_handler(app)({"Records": [again]}, Remaining(60))) == []
        assert failing.refresh().attempt == 2


@pytest.mark.parametrize("status", ["pending", "queued", "failed"])
def test_a_job_that_another_program_stored_by_the_contract_runs(contract_url: str, status: str) -> None:
    outside = Outside(contract_url)
    with closing(Holdfast(contract_url)) as app:

        @app.job
        def fetch() -> int:
            return 5

        app.counts()
        ids = [str(uuid.uuid4()) for _ in range(3)]
        for id_ in ids:
            moment = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
            row = {"job_id": id_, "workspace_id": "acme", "workflow_id": "fetch", "status": status, **moment}
            outside.table.put_item(Item=row | {"attempts": 0, "max_attempts": 5, "trigger_type": "webhook"})
        first, second, third = (app.envelope(uuid.UUID(id_)) for id_ in ids)
        assert app.process(first) == "claimed"
        assert app.process(first) == "no-op-terminal"
        record = {"messageId": "m1", "body": json.dumps(second)}
        assert failures(lambda_handler(app)({"Records": [record, record]}, Remaining(60))) == []
        assert app.cancel(uuid.UUID(ids[2])).state == "cancelled"
        assert app.process(third) == "no-op-terminal"
        assert [str(job.id) for job in app.find()] == sorted(ids, reverse=True), "they are listed from now on"
        assert list(app.store.check()) == []
    assert [outside.status(id_) for id_ in ids] == ["completed", "completed", "canceled"]
    assert {row["created_at"] for row in outside.rows().values()} == {"2026-01-01T00:00:00Z"}


def test_a_message_of_an_item_with_an_unknown_status_comes_again(
    contract_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    outside = Outside(contract_url)
    with closing(Holdfast(contract_url)) as app:

        @app.job(name="echo")
        def echo(n: int) -> int:
            return n

        job = echo.enqueue(1)
        outside.table.update_item(
            Key={"job_id": str(job.id)},
            UpdateExpression="SET #s = :s",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={":s": "melting"},
        )
        before = outside.bytes(str(job.id))
        envelope = {"v": 1, "job_id": str(job.id), "workspace_id": "", "trigger_type": "manual", "attempt": 1}
        body = envelope | {"max_attempts": 5, "trace_id": "", "idempotency_key": ""}
        record = {"messageId": "m1", "body": json.dumps(body)}
        assert lambda_handler(app)({"Records": [record]}) == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
        said = f"The item '{job.id}' has the status 'melting', which the contract does not know; it is passed over."
        assert said in caplog.text
        for ask in (lambda: app.process(body), lambda: app.get(job.id), lambda: app.explain(job.id)):
            with pytest.raises(StoreError, match="has the status 'melting'"):
                ask()
    assert outside.bytes(str(job.id)) == before
    assert outside.number(outside.dlq) == 0


def test_a_dead_letter_that_was_moved_back_without_a_redrive_returns_to_its_queue(contract_url: str) -> None:
    with closing(Holdfast(contract_url)) as app:

        @app.job
        def hopeless() -> None:
            raise Permanent("no", code="hopeless")

        job, queue = hopeless.enqueue(), queue_of(app)
        handle = lambda_handler(app)
        assert failures(handle(queue.event(1), Remaining(60))) == []
        [(body, reason, detail)] = queue.dead()
        said = {
            name: {"DataType": "String", "StringValue": text} for name, text in (("reason", reason), ("detail", detail))
        }
        queue.sqs.purge_queue(QueueUrl=queue.grave)
        queue.sqs.send_message(QueueUrl=queue.url, MessageBody=body, MessageAttributes=said)  # as a move task does
        assert failures(handle(queue.event(1), Remaining(60))) == []
        assert queue.dead() == [(body, "hopeless", "no")]
        assert job.refresh().state == "dead"


def test_a_job_given_back_near_the_end_has_a_message_again(contract_url: str) -> None:
    with closing(Holdfast(contract_url)) as app:

        @app.job
        async def endless() -> None:
            await asyncio.Event().wait()

        job, queue = endless.enqueue(), queue_of(app)
        assert failures(lambda_handler(app, reserve=1)(queue.event(1), Remaining(2))) == []
        assert (job.refresh().state, job.attempt) == ("retrying", 0)
        [again] = queue.event(1)["Records"]
        assert json.loads(again["body"])["job_id"] == str(job.id)


@pytest.mark.parametrize(
    ("body", "reason", "detail"),
    [
        ("not json", "bad_envelope", "The message body is not JSON, so it is not an envelope."),
        ('{"v": 2}', "bad_envelope", "The envelope has version 2; only version 1 is understood."),
        ("[]", "bad_envelope", "The message body is not a JSON object, so it is not an envelope."),
        (
            json.dumps(
                {
                    "v": 1, "job_id": str(uuid.UUID(int=7)), "workspace_id": "", "trigger_type": "manual",
                    "attempt": 1, "max_attempts": 5,
                }
            ),
            "job_not_found",
            f"There is no job {uuid.UUID(int=7)}.",
        ),
    ],
    ids=["not JSON", "version 2", "no object", "no such job"],
)  # fmt: skip
def test_what_nobody_can_process_is_put_aside_with_its_reason(
    app: Holdfast, queue: Queue, body: str, reason: str, detail: str
) -> None:
    queue.send(body)
    assert failures(lambda_handler(app)(queue.event(1), Remaining(60))) == []
    assert queue.dead() == [(body, reason, detail)]


def test_without_a_dead_letter_queue_it_is_logged_and_done(
    here: Holdfast, aws_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_at(aws_endpoint, dead_letters=False)
    queue.send("nonsense")
    assert failures(lambda_handler(here, sqs=queue.sqs)(queue.event(1))) == []
    assert "is not for us: The message body is not JSON, so it is not an envelope." in caplog.text


def test_what_cannot_be_put_aside_comes_again_until_the_queue_itself_moves_it(
    here: Holdfast, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send("nonsense")
    event = queue.event(1)
    nowhere = client("sqs", REGION, f"http://127.0.0.1:{free_port()}")
    assert failures(lambda_handler(here, sqs=nowhere)(event)) == [event["Records"][0]["messageId"]]
    assert "could not be put aside" in caplog.text


def test_a_message_of_a_job_that_somebody_else_holds_comes_again_when_the_lease_is_over(
    app: Holdfast, queue: Queue
) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(2, 3)
    queue.send(app.envelope(job.id))
    assert app.store.claim(Claim("ada", "lease", app.settings.lease, 1, id=str(job.id)))
    held = app.get(job.id).record
    event = queue.event(1)
    handle = lambda_handler(app)
    assert failures(handle(event, Remaining(60))) == [event["Records"][0]["messageId"]]
    assert app.get(job.id).record == held
    started = time.monotonic()
    again = queue.event(1)
    assert time.monotonic() - started < 10, "the queue alone would hide it for ten minutes"
    app.sweep()
    assert failures(handle(again, Remaining(60))) == []
    assert job.result(timeout=0) == 5


def test_late_messages_of_a_finished_job_are_done_and_change_nothing(here: Holdfast) -> None:
    @here.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(2, 3)
    event, handle = by_hand(here, job.id, job.id, job.id), lambda_handler(here)
    assert failures(handle(event, None)) == []
    finished = here.get(job.id).record
    assert finished.attempt == 1
    assert failures(handle(event, None)) == []
    assert here.get(job.id).record == finished


def test_every_shape_of_handler_runs(here: Holdfast) -> None:
    steps: list[str] = []

    @here.job
    async def later(a: int) -> int:
        return await asyncio.sleep(0, a)

    @here.workflow
    async def flow(a: int, ctx: Context) -> int:
        return int(await ctx.step("double", lambda: 2 * a)) + 1

    def first(payload: int) -> int:
        steps.append("first")
        return payload + 1

    def second(payload: int, results: dict[str, int]) -> int:
        steps.append("second")
        return payload * results["first"]

    line = here.pipeline("line", [first, second])

    @here.job
    def bad() -> None:
        raise Permanent("no", code="hopeless")

    jobs = [later.enqueue(7), flow.enqueue(4), line.enqueue(5), bad.enqueue()]
    assert failures(lambda_handler(here)(by_hand(here, *(job.id for job in jobs)))) == []
    assert [job.refresh().state for job in jobs] == ["succeeded", "succeeded", "succeeded", "dead"]
    assert [job.result(timeout=0) for job in jobs[:2]] == [7, 9]
    assert steps == ["first", "second"]


def test_a_workflow_that_sleeps_comes_again(here: Holdfast) -> None:
    @here.workflow
    async def nap(ctx: Context) -> str:
        await ctx.sleep("a moment", 0.05)
        return "awake"

    job, handle = nap.enqueue(), lambda_handler(here)
    event = by_hand(here, job.id)
    assert failures(handle(event)) == ["m1"]
    end = time.monotonic() + 10
    while failures(handle(event)):
        assert time.monotonic() < end
    assert job.result(timeout=0) == "awake"


def test_a_paused_queue_keeps_its_messages(here: Holdfast) -> None:
    @here.job
    def add(a: int) -> int:
        return a

    job, handle = add.enqueue(1), lambda_handler(here)
    here.pause("default")
    assert failures(handle(by_hand(here, job.id))) == ["m1"]
    here.resume("default")
    assert failures(handle(by_hand(here, job.id))) == []


def test_a_store_that_does_not_answer_fails_its_messages_and_not_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    with closing(Holdfast("memory://")) as elsewhere:

        @elsewhere.job
        def add(a: int) -> int:
            return a

        event = by_hand(elsewhere, add.enqueue(1).id, "nonsense")
    with closing(Holdfast(f"dynamodb://jobs?endpoint=http://127.0.0.1:{free_port()}")) as app:
        assert failures(lambda_handler(app)(event)) == ["m1"]
    assert "message m1 comes again: DynamoDB cannot be reached" in caplog.text


def test_messages_that_cannot_begin_in_time_go_back_unbegun(here: Holdfast) -> None:
    ran: list[int] = []

    @here.job
    def slow(n: int) -> None:
        ran.append(n)
        threading.Event().wait(0.4)

    jobs = [slow.enqueue(n) for n in range(3)]
    answer = lambda_handler(here, reserve=0.5)(by_hand(here, *(job.id for job in jobs)), Remaining(0.8))
    assert failures(answer)[-1] == "m3"
    assert here.get(jobs[2].id).attempt == 0
    assert 2 not in ran


def test_a_handler_that_still_runs_near_the_end_is_stopped_and_its_job_given_back(here: Holdfast) -> None:
    @here.job
    async def endless() -> None:
        await asyncio.Event().wait()

    @here.job
    def busy() -> None:
        while True:
            threading.Event().wait(0.01)

    for kind in (endless, busy):
        job = kind.enqueue()
        assert failures(lambda_handler(here, reserve=0.2)(by_hand(here, job.id), Remaining(0.5))) == ["m1"]
        assert (job.refresh().state, job.attempt, job.lease) == ("retrying", 0, None), "the attempt is returned"


def test_a_handler_that_does_not_stop_does_not_keep_its_job(here: Holdfast) -> None:
    go = threading.Event()

    @here.job
    def deaf() -> str:
        go.wait(30)
        return "too late"

    job = deaf.enqueue()
    call = threading.Thread(
        target=lambda: lambda_handler(here, reserve=0.2)(by_hand(here, job.id), Remaining(0.5)), daemon=True
    )
    call.start()
    end = time.monotonic() + 10
    while job.refresh().state != "retrying":
        assert time.monotonic() < end
    assert (job.attempt, job.lease) == (0, None)
    before = job.record
    go.set()
    call.join(10)
    assert here.get(job.id).record == before, "what it says afterwards counts for nothing"


@pytest.mark.parametrize("event", [{}, None, {"Records": [{"body": "{}"}]}, {"Records": "none"}])
def test_an_event_that_is_not_from_a_queue_is_told_so(here: Holdfast, event: Any) -> None:
    with pytest.raises(BadInput, match="The event is not from SQS"):
        lambda_handler(here)(event, None)


@pytest.mark.parametrize("body", [None, "", 7, "absent"])
def test_a_message_without_a_body_does_not_fail_its_batch(app: Holdfast, queue: Queue, body: Any) -> None:
    @app.job
    def good() -> None: ...

    job = good.enqueue()
    queue.send(app.envelope(job.id))
    event = queue.event(1)
    odd = {**event["Records"][0], "messageId": "odd", "body": body}
    if body == "absent":
        del odd["body"]
    assert failures(lambda_handler(app)({"Records": [odd, *event["Records"]]}, object())) == []
    assert job.refresh().state == "succeeded"
    [(_, reason, _)] = queue.dead()
    assert reason == "bad_envelope"


@pytest.mark.parametrize("make", [lambda_handler, sweep_handler])
def test_a_function_is_made_for_an_application(make: Callable[[Any], object]) -> None:
    with pytest.raises(BadInput, match="takes a Holdfast application, not a str"):
        make("memory://")


def test_a_sweep_takes_back_lost_jobs_fires_schedules_and_delivers_events() -> None:
    clock, heard = ManualClock(), list[str]()
    with closing(Holdfast("memory://", clock=clock)) as app:

        @app.job
        def add(a: int) -> int:
            return a

        app.schedule("every minute", add.prepare(7), every=60)
        app.sink("ears", lambda event: heard.append(event["name"]))
        sweep = sweep_handler(app)
        assert sweep({}, Remaining(60)) == {}
        job = add.enqueue(1)
        app.store.claim(Claim("ada", "lease", app.settings.lease, 1, id=str(job.id)))
        clock.advance(seconds=61)
        sweep({}, Remaining(60))
        assert (job.refresh().state, job.lease) == ("retrying", None)
        assert app.counts()["queued"] == 1, "the schedule's job"
        assert heard


def test_a_sweep_sends_what_was_lost(contract_url: str) -> None:
    with closing(Holdfast(contract_url)) as app:

        @app.job
        def add(a: int) -> int:
            return a

        job, queue = add.enqueue(1), queue_of(app)
        [lost] = queue.event(1)["Records"]
        queue.sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=lost["receiptHandle"])
        sweep_handler(app)({}, Remaining(60))
        assert failures(lambda_handler(app)(queue.event(1), Remaining(60))) == []
        assert job.result(timeout=0) == 1


def test_a_cold_start_imports_neither_boto3_nor_the_command_line() -> None:
    code = """
import sys, holdfast.aws
print([name for name in ("boto3", "botocore", "click", "rich", "holdfast.cli", "apsw") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
