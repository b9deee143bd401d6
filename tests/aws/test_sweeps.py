"""What upkeep repairs: messages that are owed or lost, leases that are over, and the dead-letter queue; in two rounds
at the most.
"""

import json
from collections.abc import Iterator

import pytest

from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.dialects import envelope
from holdfast.domain.errors import StoreError
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.runtime import upkeep
from holdfast.stores.dynamodb.queue import Queues
from holdfast.testing.conformance import Lab
from holdfast.testing.lab import FLAKY, HOPELESS, LEASE, RETENTION
from tests.aws.outside import Outside

GRACE = 30 * SECOND
LOST = 15 * MINUTE


@pytest.fixture
def dumb(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing can be sent, as if whoever was to send it had died."""

    def refuse(*_: object) -> list[bool]:
        msg = "SQS refuses."
        raise StoreError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(Queues, "send", refuse)
        yield patch


def rounds(bench: Lab) -> None:
    """Make two rounds of upkeep."""
    for _ in range(2):
        upkeep.reap(bench.store, Settings())
        bench.store.sweep(100)


def body(job: JobRecord) -> str:
    return json.dumps(envelope(job))


def test_a_job_whose_message_was_never_sent_is_pending_until_upkeep_sends_it(
    bench: Lab, outside: Outside, dumb: pytest.MonkeyPatch
) -> None:
    job = bench.job()
    assert (outside.status(job.id), outside.number()) == ("pending", 0)
    dumb.undo()
    rounds(bench)
    assert outside.number() == 0, "it is left to whoever stored it for a while"
    bench.clock.advance(microseconds=GRACE)
    rounds(bench)
    assert (outside.status(job.id), outside.number()) == ("queued", 1)
    assert [held.id for held in bench.claim()] == [job.id]


def test_a_lost_message_is_sent_again_once_for_each_time_that_it_may_be_lost(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    outside.receive()
    bench.clock.advance(microseconds=LOST - 1)
    rounds(bench)
    assert outside.number() == 0
    bench.clock.advance(microseconds=1)
    rounds(bench)
    assert outside.number() == 1, "two rounds send one message"
    bench.clock.advance(microseconds=LOST)
    rounds(bench)
    assert outside.number() == 2
    assert [held.id for held in bench.claim(5)] == [job.id]


def test_a_retry_whose_message_was_never_sent_runs(bench: Lab, outside: Outside, dumb: pytest.MonkeyPatch) -> None:
    job = bench.running()
    failed = bench.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    dumb.undo()
    outside.receive()
    bench.clock.advance(microseconds=failed.available_at - bench.clock.now() + GRACE)
    rounds(bench)
    assert [held.id for held in bench.claim(5)] == [job.id]


def test_the_job_of_a_worker_that_died_runs_again(bench: Lab, outside: Outside) -> None:
    job = bench.running()
    outside.receive()
    bench.clock.advance(microseconds=LEASE)
    rounds(bench)
    assert (outside.status(job.id), outside.number()) == ("failed", 1)
    [again] = bench.claim(5)
    assert (again.id, again.attempt) == (job.id, 2)


def entry(outside: Outside, job: JobRecord) -> tuple[str, int]:
    """Give the entry of a job in the index: why and when somebody is to look at it."""
    row = outside.rows()[job.id]
    return row["look"], int(row["look_at"])


def test_a_claim_leaves_the_entry_where_it_stands_until_somebody_looks(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    [held] = bench.claim(lease=2 * GRACE)
    assert entry(outside, job) == ("due#00", job.available_at)
    bench.clock.advance(microseconds=GRACE - 1)
    rounds(bench)
    assert entry(outside, job) == ("due#00", job.available_at)
    bench.clock.advance(microseconds=1)
    rounds(bench)
    assert entry(outside, job) == ("held#00", held.lease_expires_at)
    assert (bench.read(job), outside.number()) == (held, 1)


@pytest.mark.parametrize("which", ["the message that upkeep sent", "the first message", "another program's"])
def test_a_claim_moves_an_entry_that_somebody_has_looked_at(bench: Lab, outside: Outside, which: str) -> None:
    job = bench.job()
    if which != "the first message":
        outside.receive()
    bench.clock.advance(microseconds=LOST)
    bench.store.sweep(100)
    assert entry(outside, job) == ("sent#00", bench.clock.now() + LOST)
    if which == "another program's":
        outside.receive()
        outside.send([body(job)])
    [held] = bench.claim()
    assert entry(outside, job) == ("held#00", held.lease_expires_at)


def test_a_message_that_comes_again_after_the_lease_tells_of_a_dead_worker(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    bench.claim(lease=SECOND)
    outside.send([body(job)])
    assert bench.claim(5) == []
    assert entry(outside, job) == ("due#00", job.available_at), "the lease stands"
    bench.clock.advance(microseconds=SECOND)
    assert bench.store.expired(10) == []
    outside.send([body(job)])
    assert bench.claim(5) == []
    [late] = bench.store.expired(10)
    assert late.id == job.id
    bench.done(lifecycle.reap(late, bench.clock.now(), RETENTION))
    assert [again.attempt for again in bench.claim(5)] == [2]


def test_a_dead_job_whose_message_never_came_to_the_dead_letter_queue_gets_it(
    bench: Lab, outside: Outside, dumb: pytest.MonkeyPatch
) -> None:
    job = bench.running()
    bench.done(lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
    dumb.undo()
    assert outside.number(outside.dlq) == 0
    bench.clock.advance(microseconds=GRACE)
    rounds(bench)
    [message] = outside.receive(outside.dlq)
    assert json.loads(message["Body"])["job_id"] == job.id
    bench.clock.advance(microseconds=GRACE)
    rounds(bench)
    assert outside.number(outside.dlq) == 0, "it is put there once"
    bench.clock.advance(microseconds=RETENTION.dead)
    assert bench.store.purge(10).jobs == 1


def test_upkeep_resolves_every_message_of_the_dead_letter_queue(bench: Lab, outside: Outside) -> None:
    jobs = {state: bench.in_state(state) for state in State if state is not State.CREATED}
    outside.receive()
    outside.receive(outside.dlq)
    outside.send([body(job) for job in jobs.values()], outside.dlq)
    before = {state: outside.bytes(job.id) for state, job in jobs.items()}
    rounds(bench)
    left = [json.loads(message["Body"])["job_id"] for message in outside.receive(outside.dlq)]
    assert left == [jobs[State.DEAD].id], "a dead job's message is kept for the operator"
    assert {state: outside.bytes(job.id) for state, job in jobs.items()} == before
    sent = [json.loads(message["Body"])["job_id"] for message in outside.receive()]
    assert sent == [jobs[State.QUEUED].id], "and that of a job that can run is sent again"


def test_what_sqs_itself_gave_up_is_sent_again(bench: Lab, outside: Outside) -> None:
    job = bench.job()
    address = outside.url(outside.queue)
    while outside.number():  # received, and never deleted
        outside.sqs.receive_message(QueueUrl=address, VisibilityTimeout=0)
    assert outside.number(outside.dlq) == 1
    rounds(bench)
    assert outside.number(outside.dlq) == 0
    assert [held.id for held in bench.claim(5)] == [job.id]


@pytest.mark.parametrize("moved", ["before", "after", "never"])
def test_a_redrive_from_the_row_and_from_the_dead_letter_queue_end_in_one_new_generation(
    bench: Lab, outside: Outside, moved: str
) -> None:
    dead = bench.in_state(State.DEAD)
    outside.receive()
    if moved == "before":
        assert outside.move_back() == 1
    bench.done(lifecycle.redrive(bench.read(dead)))
    if moved == "after":
        assert outside.move_back() == 1
    claimed = bench.claim(5)
    assert [(job.id, job.generation, job.attempt) for job in claimed] == [(dead.id, 2, 1)]
    bench.store.commit([lifecycle.complete(job, None, RETENTION) for job in claimed])
    rounds(bench)
    bench.clock.advance(hours=1)
    rounds(bench)
    assert bench.claim(5) == []
    assert (bench.read(dead).generation, outside.number(outside.dlq), outside.number()) == (2, 0, 0)


def test_a_job_that_died_again_has_one_message_in_the_dead_letter_queue(bench: Lab, outside: Outside) -> None:
    dead = bench.in_state(State.DEAD)
    bench.done(lifecycle.redrive(bench.read(dead)))
    [held] = bench.claim(5)
    bench.done(lifecycle.fail(held, HOPELESS, draw=0, retention=RETENTION))
    outside.send([body(bench.read(dead))], outside.dlq)  # as SQS itself puts one there, without a reason
    assert outside.number(outside.dlq) == 3
    rounds(bench)
    [message] = outside.receive(outside.dlq)
    assert message["MessageAttributes"]["reason"]["StringValue"] == "hopeless"


def test_a_dead_job_s_message_that_is_moved_back_goes_to_the_dead_letter_queue_again(
    bench: Lab, outside: Outside
) -> None:
    dead = bench.in_state(State.DEAD)
    outside.receive()
    before = outside.bytes(dead.id)
    assert outside.move_back() == 1
    assert bench.claim(5) == []
    assert (outside.bytes(dead.id), outside.number()) == (before, 0)
    [message] = outside.receive(outside.dlq)
    assert message["MessageAttributes"]["reason"]["StringValue"] == "hopeless"


def test_a_paused_queue_s_jobs_are_not_sent_again_until_it_is_resumed(bench: Lab, outside: Outside) -> None:
    job = bench.job(queue="shut")
    outside.receive()
    bench.store.pause("shut")
    bench.clock.advance(hours=1)
    rounds(bench)
    assert outside.number() == 0
    bench.store.resume("shut")
    bench.clock.advance(microseconds=GRACE)
    rounds(bench)
    assert [held.id for held in bench.claim(5)] == [job.id]


def test_an_index_that_shows_what_is_no_longer_so_is_not_believed(bench: Lab, outside: Outside) -> None:
    done, waiting = bench.in_state(State.SUCCEEDED), bench.job()
    outside.receive()
    outside.table.update_item(
        Key={"job_id": done.id},
        UpdateExpression="SET #look = :look, look_at = :at",
        ExpressionAttributeNames={"#look": "look"},
        ExpressionAttributeValues={":look": "held#00", ":at": 0},
    )
    outside.table.update_item(
        Key={"job_id": waiting.id},
        UpdateExpression="SET #look = :look, look_at = :at",
        ExpressionAttributeNames={"#look": "look"},
        ExpressionAttributeValues={":look": "dying#00", ":at": 0},
    )
    before = [outside.bytes(job.id) for job in (done, waiting)]
    rounds(bench)
    assert bench.store.expired(10) == []
    assert [outside.bytes(job.id) for job in (done, waiting)] == before
    assert (outside.number(), outside.number(outside.dlq)) == (0, 0)
