"""Tracing: one trace from whoever enqueues to whoever runs, in whatever process that is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Context, Holdfast, Permanent, Retry
from holdfast.domain.trace import is_traceparent, told
from tests.observability.scene import write_application
from tests.surfaces.processes import run

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
EXPORTING = '''

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class ToFile(InMemorySpanExporter):
    """Keeps spans in memory, and writes each to a file of the process as well."""

    def export(self, spans):
        with (HERE / f"spans.{os.getpid()}").open("a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return super().export(spans)


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
app.instrument(tracing=True)


@app.job(run_in="process")
def inner(n: int) -> int:
    with trace.get_tracer("shop").start_as_current_span("in the child"):
        return n
'''


class Spans:
    """What an application's spans were, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def app(spans: Spans) -> Iterator[Holdfast]:
    with closing(Holdfast("memory://")) as made:
        made.instrument(tracing=spans.provider)
        yield made


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_an_attempt_goes_on_from_the_span_that_its_job_was_enqueued_in(app: Holdfast, spans: Spans) -> None:
    @app.job(queue="mail")
    def add(a: int, b: int) -> int:
        return a + b

    with spans.provider.get_tracer("test").start_as_current_span("request"):
        job = add.using(tenant="acme").enqueue(1, 2)
    app.run_worker(until_idle=True)
    request, sent, ran = spans.one("request"), spans.one("enqueue mail"), spans.one("process mail")
    assert trace_of(request) == trace_of(sent) == trace_of(ran)
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert ran.parent is not None
    assert ran.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]
    assert said(sent) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "holdfast.job.kind": "add",
        "holdfast.job.duplicate": False,
    }
    owner = said(ran).pop("messaging.client.id")
    assert owner
    assert said(ran) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "messaging.client.id": owner,
        "holdfast.job.kind": "add",
        "holdfast.job.attempt": 1,
        "holdfast.job.tenant": "acme",
        "holdfast.job.state": "succeeded",
    }


def test_a_batch_is_one_span_that_every_job_of_it_goes_on_from(app: Holdfast, spans: Spans) -> None:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    app.enqueue_many([add.prepare(n, n) for n in range(3)])
    app.run_worker(until_idle=True)
    sent = spans.one("enqueue default")
    assert said(sent)["messaging.batch.message_count"] == 3
    assert {trace_of(ran) for ran in spans.all("process default")} == {trace_of(sent)}
    assert len(spans.all("process default")) == 3


def test_what_a_handler_does_and_enqueues_belongs_to_its_attempt(app: Holdfast, spans: Spans) -> None:
    @app.job(queue="second")
    def second(n: int) -> int:
        return n

    @app.job(queue="first")
    def first(n: int) -> int:
        with spans.provider.get_tracer("test").start_as_current_span("own"):
            second.enqueue(n)
        return n

    first.enqueue(1)
    app.run_worker(until_idle=True)
    ran, own, sent, then = (spans.one(n) for n in ("process first", "own", "enqueue second", "process second"))
    assert own.parent is not None
    assert sent.parent is not None
    assert own.parent.span_id == ran.context.span_id
    assert sent.parent.span_id == own.context.span_id
    assert trace_of(then) == trace_of(ran)


@pytest.mark.parametrize("awaited", [False, True], ids=["thread", "loop"])
def test_each_step_that_runs_has_a_span_and_each_retry_of_the_job_another_attempt(
    app: Holdfast, spans: Spans, awaited: bool
) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("c4n4ry")
        return "sent"

    async def on_loop(order: int, ctx: Context) -> str:
        await ctx.step("pack", lambda: order)
        return str(await ctx.step("send", flaky))

    def in_thread(order: int, ctx: Context) -> str:
        ctx.step("pack", lambda: order)
        return str(ctx.step("send", flaky))

    ship = app.workflow(name="ship", retry=Retry.fixed(0, retries=1))(on_loop if awaited else in_thread)
    ship.enqueue(7)
    app.run_worker(until_idle=True)
    assert spans.names == [
        "enqueue default",
        "process default",
        "process default",
        "step pack",
        "step send",
        "step send",
    ]
    first, again = spans.all("process default")
    failed, done = spans.all("step send")
    assert (first.status.status_code, again.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert (failed.status.status_code, done.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert said(failed)["error.type"] == said(first)["error.type"] == "ConnectionError"
    for step, ran in ((failed, first), (done, again), (spans.one("step pack"), first)):
        assert step.parent is not None
        assert step.parent.span_id == ran.context.span_id
    assert "c4n4ry" not in "".join(span.to_json() for span in (first, failed))


def test_the_steps_of_a_pipeline_are_spans_of_one_attempt(app: Holdfast, spans: Spans) -> None:
    def fetch(payload: dict[str, int]) -> int:
        return 1

    def index(payload: dict[str, int]) -> int:
        return 2

    app.pipeline("ingest", [fetch, index])
    app.enqueue("ingest", {"payload": {}})
    app.run_worker(until_idle=True)
    ran = spans.one("process default")
    for name in ("step fetch", "step index"):
        step = spans.one(name)
        assert step.parent is not None
        assert step.parent.span_id == ran.context.span_id


def test_children_go_on_from_the_attempt_that_spawned_them(app: Holdfast, spans: Spans) -> None:
    @app.job(queue="children")
    def pick(n: int) -> int:
        return n

    @app.workflow
    def order(n: int, ctx: Context) -> int:
        return sum(ctx.gather([pick.prepare(1), pick.prepare(n)]))

    order.enqueue(2)
    app.run_worker(until_idle=True)
    parent = spans.all("process default")[0]
    for child in spans.all("process children"):
        assert child.parent is not None
        assert child.parent.span_id == parent.context.span_id
    assert len(spans.all("process children")) == 2


def test_a_trace_of_the_callers_own_is_kept_and_gone_on_from_if_it_is_a_traceparent(
    app: Holdfast, spans: Spans
) -> None:
    @app.job
    def show(n: int, ctx: Context) -> str:
        return str(ctx.trace_id)

    followed = show.using(trace_id=PARENT).enqueue(1)
    opaque = show.using(trace_id="ticket 7").enqueue(2)
    app.run_worker(until_idle=True)
    assert (followed.result(), opaque.result()) == (TRACE, "ticket 7")
    ran = {said(span)["messaging.message.id"]: span for span in spans.all("process default")}
    assert trace_of(ran[str(followed.id)]) == TRACE
    assert said(ran[str(opaque.id)])["holdfast.job.trace_id"] == "ticket 7"
    assert ran[str(opaque.id)].parent is None


def test_a_delivery_and_a_refused_enqueue_have_their_spans(app: Holdfast, spans: Spans) -> None:
    @app.job
    def refuse(n: int) -> None:
        raise Permanent("no", code="nothing_here")

    job = refuse.using(key="k").enqueue(1)
    with pytest.raises(Exception, match="already belongs"):
        refuse.using(key="k").enqueue(2)
    app.process(app.envelope(job.id))
    ran = spans.one("process default")
    assert (said(ran)["holdfast.error_code"], said(ran)["error.type"]) == ("nothing_here", "Permanent")
    stored, refused = spans.all("enqueue default")
    assert (stored.status.status_code, said(refused)["error.type"]) == (StatusCode.UNSET, "KeyConflict")


def test_nothing_is_stored_as_a_trace_where_tracing_is_off() -> None:
    with closing(Holdfast("memory://")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        assert add.enqueue(1, 2).record.trace_id is None


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (PARENT, True),
        (f"{PARENT}-what-comes-later", True),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"ff-{TRACE}-b7ad6b7169203331-01", False),
        (TRACE, False),
        ("", False),
        (None, False),
    ],
)
def test_only_what_w3c_calls_a_traceparent_is_one(text: str | None, valid: bool) -> None:
    assert is_traceparent(text) == valid
    assert told(text) == (TRACE if valid else text)


def written(folder: Path) -> list[dict[str, Any]]:
    """Read the spans that processes have written, each with the process it came from."""
    return [
        {**json.loads(line), "process": path.suffix}
        for path in folder.glob("spans.*")
        for line in path.read_text().splitlines()
    ]


def test_a_trace_spans_the_enqueuer_the_worker_and_the_handlers_own_process(tmp_path: Path) -> None:
    target = write_application(tmp_path, EXPORTING)
    (tmp_path / "caller.py").write_text(
        "import shop\nwith shop.trace.get_tracer('web').start_as_current_span('request'):\n"
        "    shop.ship.enqueue(7)\n    shop.inner.enqueue(1)\n"
    )
    subprocess.run([sys.executable, "caller.py"], cwd=tmp_path, check=True, timeout=60)
    done = run("worker", target, "--until-idle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spans = written(tmp_path)
    assert len({span["process"] for span in spans}) == 3
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    by_id = {span["context"]["span_id"]: span for span in spans}

    def chain(name: str) -> list[str]:
        [span] = [span for span in spans if span["name"] == name]
        names = [span["name"]]
        while span["parent_id"] is not None:
            span = by_id[span["parent_id"]]
            names.append(span["name"])
        return names

    assert chain("step send") == ["step send", "process default", "enqueue default", "request"]
    assert chain("in the child") == ["in the child", "process default", "enqueue default", "request"]
