"""What no emulator does by itself: throttling, lost replies, half-done batches. Nothing is lost or done twice."""

import random
from collections.abc import Iterator

import pytest

from holdfast.domain import events, lifecycle
from holdfast.domain.errors import CommitUnknown, StoreUnavailable
from holdfast.domain.job import Account, State
from holdfast.domain.move import Answer
from holdfast.port.store import Query
from holdfast.stores.dynamodb import DynamoStore, calls
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import RETENTION, Stored
from tests.aws import emulator
from tests.aws.shim import Fault, Shim, between

WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem")


@pytest.fixture
def shim(aws_endpoint: str) -> Iterator[Shim]:
    with between(aws_endpoint) as shim:
        yield shim


@pytest.fixture
def bench(shim: Shim) -> Iterator[Lab]:
    url = emulator.table_of(shim.endpoint)
    with lab(lambda clock: DynamoStore(url, clock)) as bench:
        bench.counts()  # the table is made while nothing is wrong yet
        yield bench
    shim.plan = lambda _operation: None
    emulator.drop(url)


def once(shim: Shim, operation: str, fault: Fault) -> None:
    """Let the next such request go wrong, and no other."""
    left = [fault]
    shim.plan = lambda asked: left.pop() if asked == operation and left else None


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED, Fault.CONFLICT])
def test_a_claim_whose_reply_is_lost_is_the_claimant_s(bench: Lab, shim: Shim, fault: Fault) -> None:
    job = bench.job()
    once(shim, "UpdateItem", fault)
    [claimed] = bench.claim()
    assert shim.done[fault] == 1
    assert (claimed.token, claimed.attempt, bench.read(job)) == (1, 1, claimed)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED, Fault.CONFLICT])
def test_a_settlement_whose_reply_is_lost_is_written_once(bench: Lab, shim: Shim, fault: Fault) -> None:
    bench.store.grant("acme", 10, "g-1")
    job = bench.running(tenant="acme", credits=4)
    move = events.told(job, lifecycle.complete(job, '"done"', RETENTION, spend=3), public=True)
    once(shim, "TransactWriteItems", fault)
    assert bench.answer(move) is Answer.OK
    assert shim.done[fault] == 1
    assert (bench.read(job).state, bench.read(job).version) == (State.SUCCEEDED, 3)
    assert bench.store.account("acme") == Account("acme", 10, 0, 3)
    assert [event.name for event in bench.store.events(0, 10)] == [event.name for event in move.events]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED, Fault.CONFLICT])
def test_a_heartbeat_whose_reply_is_lost_extends_the_lease_once(bench: Lab, shim: Shim, fault: Fault) -> None:
    job = bench.running()
    once(shim, "UpdateItem", fault)
    assert bench.beat(job, begun=True) is Answer.OK
    assert bench.read(job).version == job.version + 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.BROKEN, Fault.THROTTLED])
def test_an_insert_whose_reply_is_lost_stores_one_job(bench: Lab, shim: Shim, fault: Fault) -> None:
    once(shim, "TransactWriteItems", fault)
    [stored] = bench.accepted([bench.new(key="k")])
    assert not stored.duplicate
    assert bench.accepted([bench.new(key="k")]) == [Stored(stored.job, duplicate=True)]
    assert bench.store.find(Query()) == [stored.job]


def test_what_is_refused_for_too_long_is_said_to_be_unavailable(
    bench: Lab, shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_LONGEST", 0.001)
    job = bench.running()
    shim.plan = lambda asked: Fault.THROTTLED if asked in WRITES else None
    with pytest.raises(StoreUnavailable):
        bench.answer(lifecycle.complete(job, None, RETENTION))
    shim.plan = lambda asked: Fault.BROKEN if asked in WRITES else None
    with pytest.raises(CommitUnknown):
        bench.answer(lifecycle.complete(job, None, RETENTION))
    shim.plan = lambda _operation: None
    assert bench.answer(lifecycle.complete(job, None, RETENTION)) is Answer.OK


def test_batches_that_are_half_done_are_finished(bench: Lab, shim: Shim) -> None:
    shim.plan = lambda asked: Fault.HALVED if shim.asked[asked] % 2 else None
    jobs = bench.jobs(120)  # more than one transaction takes
    assert bench.store.read([job.id for job in jobs]) == jobs
    assert shim.done[Fault.HALVED] > 1


def test_jobs_run_once_through_throttling_and_lost_replies(bench: Lab, shim: Shim) -> None:
    chance = random.Random(5)

    def plan(asked: str) -> Fault | None:
        draw = chance.random()
        if draw < 0.05:
            return Fault.THROTTLED
        if asked in WRITES and draw < 0.10:
            return Fault.LOST
        return Fault.CONFLICT if asked == "UpdateItem" and draw < 0.15 else None

    shim.plan = plan
    jobs = bench.jobs(40)
    for number in range(40):
        bench.accepted([bench.new(key=f"k-{number % 8}")])
    seen: dict[str, int] = {}
    while held := bench.claim(7):
        for job in held:
            seen[job.id] = seen.get(job.id, 0) + 1
        steps = [lifecycle.checkpoint(job, "a", "1") for job in held]
        assert bench.store.commit(steps) == [Answer.OK] * len(held)
        ends = [lifecycle.complete(job, "1", RETENTION) for job in held]
        assert bench.store.commit(ends) == [Answer.OK] * len(held)
    shim.plan = lambda _operation: None
    assert shim.done[Fault.LOST] > 3
    assert len(seen) == len(jobs) + 8
    assert set(seen.values()) == {1}
    ended = bench.store.find(Query(limit=100))
    assert [(job.state, job.attempt, job.version) for job in ended] == [(State.SUCCEEDED, 1, 4)] * 48
    assert list(bench.store.check()) == []
