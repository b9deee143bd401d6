"""Each role is allowed what it calls, and nothing else: we listen to an enqueuer, to an operator and to a worker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobFunction, KeyConflict, Retry, retention
from holdfast.aws import lambda_handler, policies
from holdfast.aws.policies import ENQUEUER, OPERATOR, WORKER, Arns
from holdfast.stores.dynamodb.address import Address, parse
from holdfast.stores.dynamodb.calls import Calls
from tests.surfaces.processes import until
from tests.workers import Working

PARTS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}
SELDOM = {
    "ConditionCheckItem",  # a write that must find a job unchanged beside others
    "BatchWriteItem", "DeleteItem",  # an operator who copies from store to store
    "CancelMessageMoveTask", "ListMessageMoveTasks", "StartMessageMoveTask",  # redriving by SQS's own means
    "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "SendMessage",  # seeing to the dead-letter queue
}  # fmt: skip
Allowed = set[tuple[str, str]]
"""Actions, and the table, index or queue that each is on."""


class Ears:
    """Hears every call to DynamoDB and SQS, as the actions that a policy would have to allow."""

    def __init__(self, address: Address) -> None:
        self._ours = {address.table, address.side, address.queue, address.dlq}
        self.heard: Allowed = set()

    def hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        for action, on in self._actions(model.name, params):
            if on.partition("/")[0] in self._ours:  # a worker of another store may still be signing off
                self.heard.add((f"{model.service_model.service_name}:{action}", on))

    def _actions(self, name: str, params: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if name == "TransactWriteItems":
            for part in params["TransactItems"]:
                [(verb, what)] = part.items()
                yield PARTS[verb], what["TableName"]
        elif "RequestItems" in params:
            yield from ((name, table) for table in params["RequestItems"])
        elif "IndexName" in params:
            yield name, f"{params['TableName']}/index/*"
        else:
            on = params.get("TableName") or params.get("QueueName") or params["QueueUrl"].rpartition("/")[2]
            yield name.removesuffix("Batch") if "QueueUrl" in params else name, on


@contextmanager
def listening(address: Address) -> Iterator[Ears]:
    ears, clients = Ears(address), [Calls(address, service).client for service in ("dynamodb", "sqs")]
    for client in clients:
        client.meta.events.register("provide-client-params.*.*", ears.hear)
    try:
        yield ears
    finally:
        for client in clients:
            client.meta.events.unregister("provide-client-params.*.*", ears.hear)


def allowed(address: Address, role: str) -> Allowed:
    """Give what a role's policy allows."""
    queue = None if address.queue is None else f"queue:{address.queue}"
    dead = None if address.dlq is None else f"queue:{address.dlq}"
    tables = [f"table:{name}" for name in dict.fromkeys((address.table, address.side))]
    document = policies.documents(Arns(tables, tables[:1], queue, dead))[role]
    return {
        (action, on.partition(":")[2])
        for statement in document["Statement"]
        for action in statement["Action"]
        for on in statement["Resource"]
    }


class Shop:
    """An application that does a bit of everything."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url, lease=2, retention=retention(succeeded=0.5, cancelled=0.5, dead=0.5))
        self.add: JobFunction[..., int]
        self.flow: JobFunction[..., int]

        @app.job(retry=Retry.fixed(0.1, retries=1))
        def add(a: int) -> int:
            if a == 13:
                raise ValueError
            return a

        @app.job
        def large() -> str:
            threading.Event().wait(1.2)  # longer than the time to the first heartbeat
            return "x" * 70_000

        @app.workflow
        async def flow(ctx: Context) -> int:
            await ctx.step("one", lambda: 1)
            await ctx.sleep("nap", 0.1)
            await ctx.wait_for("go", timeout=60)
            return sum(await ctx.gather(add.prepare(n) for n in range(2)))

        self.add, self.large, self.flow = add, large, flow
        app.sink("list", list[Any]().append)
        app.schedule("often", add.prepare(5), every=1)


@pytest.fixture(params=["contract", "scheduled"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("contract_url" if request.param == "contract" else "dynamodb_url"))


def enqueue(shop: Shop) -> None:
    shop.add.using(key="k", tenant="ada").enqueue(1)
    shop.add.using(key="k", tenant="ada").enqueue(1)
    with pytest.raises(KeyConflict):
        shop.add.using(key="k", tenant="ada").enqueue(2)
    shop.app.enqueue_many([shop.add.prepare(n) for n in range(12)])
    shop.app.enqueue_many([shop.add.prepare(n) for n in range(120)])
    shop.add.using(key="late", debounce=0.5, run_after=0.5).enqueue(7)
    job = shop.add.using(key="late", debounce=0.5, run_after=0.5).enqueue(7)
    shop.add.using(tenant="bob", credits=3).enqueue(1)
    shop.add.enqueue(13)
    shop.large.enqueue()
    assert job.refresh().key == "late"


def operate(shop: Shop) -> None:
    app = shop.app
    app.grant("bob", 100)
    assert app.accounts()
    assert app.ledger("bob")
    job = shop.flow.enqueue()
    app.signal(job.id, "go")
    app.cancel(shop.add.using(run_after=100).enqueue(1).id)
    app.pause("other")
    app.resume("other")
    assert app.find(kind="add")
    assert app.counts()
    app.explain(job.id)
    app.attempts(job.id)
    app.steps(job.id)
    app.schedules.list()
    app.redrive(kind="none such")
    assert list(app.store.check()) == []


def work(shop: Shop, working: Working) -> None:
    app = shop.app
    flow = app.find(kind="flow")[0]
    with working(app):
        until(lambda: flow.refresh().state == "succeeded", within=60)
        until(lambda: not app.counts().unfinished or app.counts()["succeeded"] < 20, within=60)
        until(lambda: not any(app.find(kind="large")), within=60)  # purged
    app.sweep()
    if app.store.capabilities.messages:
        record = {"messageId": "m", "body": "nonsense", "eventSourceARN": _arn(app), "receiptHandle": "r"}
        assert lambda_handler(app)({"Records": [record]}) == {"batchItemFailures": []}


def _arn(app: Holdfast) -> str:
    address = parse(app.url)
    return f"arn:aws:sqs:{address.region}:000000000000:{address.queue}"


def test_each_role_may_do_what_it_does_and_no_more(url: str, working: Working) -> None:
    address = parse(url)
    with closing(Holdfast(url)) as app:
        app.grant("bob", 10)  # makes the tables and queues, as `holdfast init aws` does
    roles: dict[str, Callable[[Shop], None]] = {
        ENQUEUER: enqueue,
        OPERATOR: operate,
        WORKER: lambda shop: work(shop, working),
    }
    for role, play in roles.items():
        shop = Shop(url)
        with closing(shop.app), listening(address) as ears:
            play(shop)
        may = allowed(address, role)
        assert ears.heard - may == set(), f"{role} is not allowed what it does"
        unused = {action for action, _ in may} - {action for action, _ in ears.heard}
        assert {action.partition(":")[2] for action in unused} <= SELDOM, f"{role} is allowed what it never does"
