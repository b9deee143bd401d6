"""Trips of a worker: jobs are claimed while others are handed in, and a trip that fails keeps nothing."""

import threading
from collections.abc import Iterator

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import State
from holdfast.domain.move import Answer
from holdfast.stores.dynamodb import ContractStore, DynamoStore, calls
from holdfast.stores.dynamodb.address import parse
from holdfast.stores.dynamodb.calls import Calls
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import BACKOFF, FLAKY, RETENTION
from tests.aws import emulator
from tests.aws.shim import Fault, Shim, between

LONG = 20.0


@pytest.fixture
def shim(aws_endpoint: str) -> Iterator[Shim]:
    with between(aws_endpoint) as shim:
        yield shim


@pytest.fixture(params=["dynamodb", "dynamodb+sqs"])
def bench(request: pytest.FixtureRequest, shim: Shim) -> Iterator[Lab]:
    alone = request.param == "dynamodb"
    url = (emulator.table_of if alone else emulator.contract_of)(shim.endpoint)
    with lab(lambda clock: (DynamoStore if alone else ContractStore)(url, clock)) as bench:
        bench.counts()
        yield bench
    shim.plan = lambda _operation: None
    shim.after = lambda _operation: None
    emulator.drop(url)


@pytest.mark.parametrize("ends", [True, False], ids=["completed", "retried later"])
def test_a_job_is_claimed_while_another_is_handed_in(bench: Lab, shim: Shim, ends: bool) -> None:
    held, waiting = bench.running(retry=BACKOFF), bench.job()
    claimed, late = threading.Event(), list[bool]()

    def after(operation: str) -> None:
        """Answer to the first write when there is a second, of which one is the claim."""
        if operation not in ("UpdateItem", "TransactWriteItems"):
            return
        if shim.asked["UpdateItem"] + shim.asked["TransactWriteItems"] > before + 1:
            claimed.set()
        late.append(not claimed.wait(LONG))

    before = shim.asked["UpdateItem"] + shim.asked["TransactWriteItems"]
    shim.after = after
    move = (
        lifecycle.complete(held, None, RETENTION)
        if ends
        else lifecycle.fail(held, FLAKY, draw=0.0, retention=RETENTION)
    )
    answers, got = bench.store.exchange([move], bench.want(5))
    assert (answers, [job.id for job in got]) == ([Answer.OK], [waiting.id])
    assert not any(late)


def test_what_a_trip_claimed_goes_back_if_it_could_not_hand_in(
    bench: Lab, shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_LONGEST", 0.001)
    held, waiting = bench.running(), bench.job()
    moves = [lifecycle.complete(held, None, RETENTION)]
    commit = bench.store._settlement.commit  # type: ignore[attr-defined]
    monkeypatch.setattr(
        bench.store._settlement,  # type: ignore[attr-defined]
        "commit",
        lambda asked, *more: _refuse() if asked == moves else commit(asked, *more),
    )
    with pytest.raises(StoreUnavailable):
        bench.store.exchange(moves, bench.want(5))
    assert bench.read(held) == held
    back = bench.read(waiting)
    assert (back.state, back.attempt) == (State.RETRYING, 0)
    [again] = bench.claim(5)
    assert again.id == waiting.id


def _refuse() -> None:
    msg = "Not now."
    raise StoreUnavailable(msg)


def test_a_trip_whose_writes_are_refused_for_a_while_hands_in_and_claims_once(bench: Lab, shim: Shim) -> None:
    bench.jobs(6)
    held = bench.claim(3)
    left = ["GetItem", "Query", "PutItem", "UpdateItem", "TransactWriteItems"]

    def plan(asked: str) -> Fault | None:
        """Refuse the first of each kind."""
        if asked not in left:
            return None
        left.remove(asked)
        return Fault.THROTTLED

    shim.plan = plan
    answers, got = bench.store.exchange([lifecycle.complete(job, None, RETENTION) for job in held], bench.want(5))
    shim.plan = lambda _operation: None
    assert answers == [Answer.OK] * 3
    assert sorted(job.attempt for job in got) == [1, 1, 1]
    assert {bench.read(job).state for job in held} == {State.SUCCEEDED}


def test_a_full_page_is_all_that_a_claim_reads(shim: Shim) -> None:
    url = emulator.table_of(shim.endpoint)
    with lab(lambda clock: DynamoStore(url, clock)) as bench:
        bench.jobs(60)
        before = shim.asked["Query"]
        assert len(bench.claim(20)) == 20
        assert shim.asked["Query"] == before + 1
    emulator.drop(url)


def test_a_call_says_who_makes_it_and_for_which_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "shop")
    client = Calls(parse("dynamodb://jobs?region=eu-north-1&endpoint=http://127.0.0.1:9"), "dynamodb").client
    said: list[str] = []
    client.meta.events.register(
        "before-send.dynamodb.*", lambda request, **_: said.append(request.headers["User-Agent"])
    )
    with pytest.raises(Exception, match="127"):
        client.list_tables()
    [agent] = said
    text = agent.decode() if isinstance(agent, bytes) else agent
    assert text.startswith("holdfast Boto3/")
    assert "app/shop" in text
    assert "Botocore/" in text
