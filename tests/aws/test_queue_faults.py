"""What SQS may do and no emulator does by itself: duplicates, losses, delays, another order, half-done batches, stale
receipts, errors after the fact. Nothing is lost, and nothing runs twice.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.job import State
from holdfast.domain.moments import HOUR
from holdfast.domain.move import Answer
from holdfast.port.store import Query
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import LEASE, RETENTION
from tests.aws import emulator
from tests.aws.outside import Outside
from tests.aws.shim import Fault, Shim, between
from tests.aws.swept import AT_ONCE, Swept

SENDS = ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "ReceiveMessage")


@pytest.fixture
def shim(aws_endpoint: str) -> Iterator[Shim]:
    with between(aws_endpoint) as shim:
        yield shim


@pytest.fixture
def bench(shim: Shim) -> Iterator[Lab]:
    url = emulator.contract_of(shim.endpoint, **AT_ONCE)
    with lab(lambda clock: Swept(url, clock)) as bench:
        bench.counts()  # tables and queues are made while nothing is wrong yet
        yield bench
    shim.plan = lambda _operation: None
    emulator.drop(url)


def work(bench: Lab) -> Counter[str]:
    """Claim and complete until nothing is left, in three passes; count how often each job was completed."""
    done: Counter[str] = Counter()
    idle = 0
    while idle < 3:
        held = bench.claim(7)
        idle = 0 if held else idle + 1
        answers = bench.store.commit([lifecycle.complete(job, "1", RETENTION) for job in held])
        done.update(job.id for job, answer in zip(held, answers, strict=True) if answer is Answer.OK)
    return done


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault.DOUBLED, Fault.DROPPED, Fault.DELAYED, Fault.TURNED),
        *(Fault.HALVED, Fault.LOST, Fault.BROKEN, Fault.THROTTLED),
    ],
)
def test_every_job_runs_once_whatever_becomes_of_messages(bench: Lab, shim: Shim, fault: Fault) -> None:
    shim.plan = lambda asked: fault if asked in SENDS and shim.asked[asked] % 3 == 1 else None
    jobs = [job for _ in range(5) for job in bench.jobs(4)]
    done = work(bench)
    assert shim.done[fault] > 1
    assert done == dict.fromkeys([job.id for job in jobs], 1)
    assert {(job.state, job.attempt) for job in bench.store.find(Query(limit=50))} == {(State.SUCCEEDED, 1)}
    assert list(bench.store.check()) == []


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED, Fault.CONFLICT])
def test_a_claim_by_message_whose_reply_is_lost_is_the_claimant_s(bench: Lab, shim: Shim, fault: Fault) -> None:
    job = bench.job()
    left = [fault]
    shim.plan = lambda asked: left.pop() if asked == "UpdateItem" and left else None
    [claimed] = bench.claim()
    assert shim.done[fault] == 1
    assert (claimed.token, claimed.attempt, bench.read(job)) == (1, 1, claimed)


def test_an_index_that_lags_delays_what_upkeep_does_and_loses_nothing(bench: Lab, shim: Shim) -> None:
    job = bench.job()
    Outside(bench.store.url).receive()
    shim.plan = lambda _asked: Fault.BEHIND
    assert bench.claim(5) == []
    shim.plan = lambda _asked: None
    assert [held.id for held in bench.claim(5)] == [job.id]


def test_a_receipt_that_is_too_old_keeps_nobody_from_settling(bench: Lab) -> None:
    job = bench.job()
    outside = Outside(bench.store.url)
    [held] = bench.claim()
    outside.sqs.purge_queue(QueueUrl=outside.url(outside.queue))
    assert bench.beat(held) is Answer.OK
    assert bench.done(lifecycle.complete(held, None, RETENTION)).id == job.id


def test_jobs_run_once_through_all_of_it_together(bench: Lab, shim: Shim) -> None:
    chance = random.Random(11)
    faults = [Fault.DOUBLED, Fault.DROPPED, Fault.TURNED, Fault.HALVED, Fault.LOST, Fault.THROTTLED, Fault.BEHIND]

    def plan(asked: str) -> Fault | None:
        return chance.choice(faults) if asked != "GetItem" and chance.random() < 0.15 else None

    shim.plan = plan
    ids = [bench.job().id for _ in range(25)]
    done = work(bench)
    shim.plan = lambda _operation: None
    bench.clock.advance(microseconds=max(HOUR, LEASE))
    late = bench.store.expired(100)  # a claim that nobody heard of
    bench.store.commit([lifecycle.reap(job, bench.clock.now(), RETENTION) for job in late])
    done += work(bench)
    assert len(shim.done) >= 5
    assert done == dict.fromkeys(ids, 1)
    assert list(bench.store.check()) == []


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED, Fault.CONFLICT])
@pytest.mark.parametrize("which", [1, 2], ids=["the job", "its key"])
def test_a_job_with_a_key_is_stored_once_whatever_becomes_of_the_reply(
    bench: Lab, shim: Shim, fault: Fault, which: int
) -> None:
    puts: Counter[str] = Counter()

    def plan(operation: str) -> Fault | None:
        puts[operation] += 1
        return fault if operation == "PutItem" and puts[operation] == which else None

    shim.plan = plan
    [stored] = bench.accepted([bench.new(key="k")])
    assert (stored.duplicate, shim.done[fault], puts["PutItem"]) == (False, 1, 3)
    assert work(bench) == {stored.job.id: 1}
    [again] = bench.accepted([bench.new(key="k")])
    assert (again.job.id, again.duplicate) == (stored.job.id, True)
