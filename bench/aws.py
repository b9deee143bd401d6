"""DynamoDB and SQS: what a job costs in capacity units and requests, and our drain against bare boto3.

Rates on an emulator say little, so the drain is compared with the very calls that it made, replayed by bare boto3 with
as many threads on a copy of the tables. Units are the emulator's own answer to `ReturnConsumedCapacity`; a write that
was refused counts as one unit, and so does an item that was looked for and is not there, since AWS bills them.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import boto3  # type: ignore[import-untyped]
from botocore import xform_name  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from holdfast import Holdfast, JobFunction
from holdfast.bench.lines import Line, typical
from holdfast.bench.roles import span
from holdfast.domain.moments import SECOND
from holdfast.stores.dynamodb.address import Address, parse
from holdfast.stores.dynamodb.calls import THREADS, Calls
from tests.aws import emulator

T = TypeVar("T")
WRITE, READ, REQUEST = 0.625, 0.125, 0.40
"""Dollars for a million write units, read units (on demand, us-east-1) and requests to SQS (standard queue)."""
STEPS = 3
ROW = 1_024
"""Bytes of a job's row at its largest, names and values, for which the goal is set."""
_RUN = 320
"""Bytes that a run adds to a row: its lease, its times and its result."""
_READS = frozenset({"BatchGetItem", "GetItem", "Query", "Scan"})
_WRITES = frozenset({"BatchWriteItem", "DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"})
_QUIET = 86_400.0
"""Seconds between two rounds of upkeep: none in a measure."""


class Sizes(NamedTuple):
    """How much is done."""

    jobs: int = 100
    drained: int = 500
    rounds: int = 3


class Cost(NamedTuple):
    """What something took."""

    writes: float = 0
    reads: float = 0
    requests: float = 0

    @property
    def dollars(self) -> float:
        """The price of a million of these."""
        return self.writes * WRITE + self.reads * READ + self.requests * REQUEST


class Drain(NamedTuple):
    """How fast jobs went: jobs a second, and milliseconds of this process for each."""

    rate: float
    cpu: float


class Made(NamedTuple):
    """A call that was made, and when."""

    service: str
    operation: str
    params: dict[str, Any]
    at: float
    cpu: float
    """What this process had used of the processor by then, in seconds."""


class Meter:
    """Adds up what calls consume, and keeps the calls."""

    def __init__(self) -> None:
        self.writes = self.reads = 0.0
        self.requests = 0
        self.calls: list[Made] = []

    def ask(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> dict[str, Any] | None:
        """Have a call answer what it consumed."""
        context["keys"] = sum(
            len(asked["Keys"]) for asked in params.get("RequestItems", {}).values() if "Keys" in asked
        )
        self.calls.append(Made(model.service_model.service_name, model.name, params, time.time(), time.process_time()))
        return {**params, "ReturnConsumedCapacity": "TOTAL"} if model.name in _READS | _WRITES else None

    def answer(self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        """Read what a call consumed."""
        if model.service_model.service_name == "sqs":
            self.requests += 1
            return
        consumed = parsed.get("ConsumedCapacity", [])
        units = sum(one["CapacityUnits"] for one in (consumed if isinstance(consumed, list) else [consumed]))
        if model.name in _READS:
            self.reads += max(units, context["keys"])
        elif model.name in _WRITES:
            self.writes += units if "Error" not in parsed else 1

    def cost(self, jobs: int) -> Cost:
        """Give what one of so many jobs took."""
        return Cost(self.writes / jobs, self.reads / jobs, self.requests / jobs)


@contextmanager
def metered(address: Address) -> Iterator[Meter]:
    """Listen to all calls of this process for a while."""
    meter, clients = Meter(), [Calls(address, service).client for service in ("dynamodb", "sqs")]
    hooks = (("provide-client-params.*.*", meter.ask), ("after-call.*.*", meter.answer))
    for client in clients:
        for event, hook in hooks:
            client.meta.events.register(event, hook)
    try:
        yield meter
    finally:
        for client in clients:
            for event, hook in hooks:
                client.meta.events.unregister(event, hook)


def lines(tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Measure both stores on an emulator."""
    sizes = Sizes(50, 100, 1) if short else Sizes()
    with emulator.server() as endpoint:
        for name, make in (("dynamodb", emulator.table_of), ("dynamodb+sqs", emulator.contract_of)):
            yield from _store(name, partial(make, endpoint), sizes, tell)


def _store(name: str, fresh: Callable[[], str], sizes: Sizes, tell: Callable[[str], None]) -> Iterator[Line]:
    tell(f"{name}: what a job costs")
    yield from _costs(name, "a job", *lives(fresh, sizes.jobs, steps=0))
    goal = 10.0 if name == "dynamodb+sqs" else None
    yield from _costs(name, f"a job of {STEPS} steps with a key", *lives(fresh, sizes.jobs, steps=STEPS), goal=goal)
    rounds = []
    for number in range(1, sizes.rounds + 1):
        tell(f"{name}, round {number} of {sizes.rounds}: a drain of {sizes.drained} jobs")
        rounds.append(_drains(fresh, sizes.drained))
    what = f"{name}: drain, 1 worker process, against bare boto3 making the same calls"
    rates = [(ours.rate, floor.rate) for ours, floor in rounds]
    yield Line(what, *typical(rates), "jobs/s", 0.8)
    what = f"{name}: worker CPU per job, against bare boto3 making the same calls"
    times = [(ours.cpu, floor.cpu) for ours, floor in rounds]
    yield Line(what, *typical(times), "ms", 1.25, larger_is_better=False)


def _costs(name: str, what: str, enqueued: Cost, worked: Cost, *, goal: float | None = None) -> Iterator[Line]:
    for phase, cost in (("enqueue", enqueued), ("claim to complete", worked)):
        yield Line(f"{name}: {what}, {phase}: write units", cost.writes, None, "", larger_is_better=False)
        yield Line(f"{name}: {what}, {phase}: read units", cost.reads, None, "", larger_is_better=False)
        if name == "dynamodb+sqs":
            yield Line(f"{name}: {what}, {phase}: requests to SQS", cost.requests, None, "", larger_is_better=False)
    price = enqueued.dollars + worked.dollars
    yield Line(f"{name}: {what}: price of a million", price, None, "dollars", goal, larger_is_better=False)


def application(url: str) -> tuple[Holdfast, JobFunction[..., Any], JobFunction[..., Any]]:
    """Make the application under test, as a user would write it; it does no upkeep."""
    app = Holdfast(url, upkeep=_QUIET)

    @app.job
    def plain(text: str) -> None: ...

    def step(payload: str) -> int:
        return len(payload)

    def second(payload: str) -> int:
        return len(payload)

    def third(payload: str) -> int:
        return len(payload)

    return app, plain, app.pipeline("three", [step, second, third])


def lives(fresh: Callable[[], str], jobs: int, *, steps: int) -> tuple[Cost, Cost]:
    """Enqueue jobs one by one and run them: what one job takes for either."""
    url = fresh()
    app, plain, pipeline = application(url)
    kind = pipeline if steps else plain
    address = parse(url)
    with closing(app):
        app.counts()
        text = "x" * _filler(app, kind)
        with metered(address) as enqueuing:
            for number in range(jobs):
                kind.using(tenant="acme", key=f"key-{number}" if steps else None).enqueue(text)
        with metered(address) as working:
            app.run_worker(until_idle=True)
        assert app.counts()["succeeded"] == jobs + 1
    emulator.drop(url)
    return enqueuing.cost(jobs), working.cost(jobs)


def _filler(app: Holdfast, kind: JobFunction[..., Any]) -> int:
    """Find out how much payload makes a row as large as the goal is set for, when it is enqueued."""
    job = kind.using(tenant="acme", key="the first").enqueue("")
    layout = app.store._records.layout  # type: ignore[attr-defined]
    item = layout.item(job.record, "0" * 32)
    app.run_worker(until_idle=True)
    return max(ROW - _RUN - sum(len(name) + len(str(next(iter(value.values())))) for name, value in item.items()), 0)


def _drains(fresh: Callable[[], str], jobs: int) -> tuple[Drain, Drain]:
    """Drain jobs with a worker, and then replay its calls, from the first claim to the last completion."""
    url, copy = fresh(), fresh()
    app, plain, _ = application(url)
    with closing(app), closing(Holdfast(copy)) as other:
        app.enqueue_many([plain.prepare("") for _ in range(jobs)])
        other.counts()
        replay = Replay(app, parse(copy))
        with metered(parse(url)) as meter:
            app.run_worker(until_idle=True)
        seen = span(app.store, jobs)
        assert seen.jobs == jobs
        first, last = seen.first / SECOND, seen.last / SECOND
        calls = [call for call in meter.calls if first <= call.at <= last]
        ours = Drain(jobs / (last - first), (calls[-1].cpu - calls[0].cpu) / jobs * 1_000)
        took, cpu = replay.run(calls)
    emulator.drop(url)
    emulator.drop(copy)
    return ours, Drain(jobs / took, cpu / jobs * 1_000)


class Replay:
    """Copies a store's tables and messages, and later makes the calls that were made on it, on the copy."""

    def __init__(self, app: Holdfast, copy: Address) -> None:
        source = parse(app.url)
        self._names = {source.table: copy.table, source.side: copy.side, source.queue: copy.queue, source.dlq: copy.dlq}
        self._clients = {service: _bare(service, copy) for service in ("dynamodb", "sqs")}
        self._receipts: deque[str] = deque()
        self._left: deque[Made] = deque()
        for name in {source.table, source.side}:
            for items in _batches(_items(self._clients["dynamodb"], name), 25):
                puts = [{"PutRequest": {"Item": item}} for item in items]
                self._clients["dynamodb"].batch_write_item(RequestItems={self._names[name]: puts})
        if copy.queue is not None:
            url = self._clients["sqs"].get_queue_url(QueueName=copy.queue)["QueueUrl"]
            for jobs in _batches(app.find(limit=1_000), 10):
                entries = [{"Id": str(job.id), "MessageBody": json.dumps(app.envelope(job.id))} for job in jobs]
                self._clients["sqs"].send_message_batch(QueueUrl=url, Entries=entries)

    def run(self, calls: Sequence[Made]) -> tuple[float, float]:
        """Make the calls in order, with as many threads as the store has; the seconds that it took, and of the
        processor.
        """
        self._left = deque(calls)
        started, used = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(THREADS) as threads:
            for done in [threads.submit(self._take) for _ in range(THREADS)]:
                done.result()
        return time.perf_counter() - started, time.process_time() - used

    def _take(self) -> None:
        while True:
            try:
                call = self._left.popleft()
            except IndexError:
                return
            arguments = self._renamed(call.params)
            if call.service == "sqs" and not self._prepared(call.operation, arguments):
                continue
            try:
                answer = getattr(self._clients[call.service], xform_name(call.operation))(**arguments)
            except ClientError:
                continue  # one that was overtaken by another thread's; it cost as much
            self._receipts.extend(message["ReceiptHandle"] for message in answer.get("Messages", ()))

    def _prepared(self, operation: str, arguments: dict[str, Any]) -> bool:
        """Give a call about messages the receipts of the copy; false if there are none."""
        if operation == "ReceiveMessage":
            arguments["WaitTimeSeconds"] = 0
        if operation in ("ChangeMessageVisibilityBatch", "DeleteMessageBatch"):
            some = arguments["Entries"][: len(self._receipts)]
            arguments["Entries"] = [{**entry, "ReceiptHandle": self._receipts.popleft()} for entry in some]
            return bool(some)
        return True

    def _renamed(self, value: Any) -> Any:
        """Put the names of the copy in the place of the source's, wherever they are."""
        match value:
            case dict():
                return {self._names.get(name, name): self._renamed(each) for name, each in value.items()}
            case list():
                return [self._renamed(each) for each in value]
            case str() if value in self._names:
                return self._names[value]
            case str() if "://" in value and value.rpartition("/")[2] in self._names:
                place, _, name = value.rpartition("/")
                return f"{place}/{self._names[name]}"
            case _:
                return value


def _bare(service: str, address: Address) -> Any:
    """Make a client as boto3 makes them: with a connection for each thread, and without retries, as ours has none."""
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, max_pool_connections=THREADS)
    known = {"aws_access_key_id": "bare", "aws_secret_access_key": "bare"}
    where = {"region_name": address.region, "endpoint_url": address.endpoint}
    return boto3.session.Session().client(service, config=config, **where, **known)


def _items(client: Any, name: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def _batches(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
