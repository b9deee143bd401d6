"""Tracing: a span for whoever enqueues, one for each attempt and one for each step, by OpenTelemetry.

The names follow its conventions for messaging. What is enqueued carries the span it was enqueued in, as a W3C
`traceparent` in the job's `trace_id`, unless the caller has given a trace of its own; the attempts go on from there,
in whatever process they run, and what they enqueue goes on from them. Spans say of a failure its code and its class,
never the text of an exception.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.move import Move
from holdfast.domain.trace import is_traceparent
from holdfast.port.store import Inserted
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.telemetry.watch import Watch

SYSTEM = "holdfast"
_TRACEPARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()


class Tracing(Watch):
    """Makes spans. `provider` stands in for OpenTelemetry's global one."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(SYSTEM, version(SYSTEM), provider)

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """Make a span for what is stored together, and send it with every job that brings no trace of its own."""
        queues = {job.queue for job in jobs}
        queue = queues.pop() if len(queues) == 1 else None
        attributes = _messaging("enqueue", "send", queue)
        if len(jobs) != 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        name = "enqueue" if queue is None else f"enqueue {queue}"
        links = [link for job in jobs if (link := _link(job.trace_id)) is not None]
        with self._tracer.start_as_current_span(
            name,
            kind=trace.SpanKind.PRODUCER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            sent = traceparent(span)
            try:
                yield [job if job.trace_id is not None else job._replace(trace_id=sent) for job in jobs]
            except Exception as error:
                _fails(span, type(error).__name__)
                raise

    def enqueued(self, jobs: Sequence[Inserted]) -> None:
        """Name the job on its span."""
        if len(jobs) == 1:
            span = trace.get_current_span()
            span.set_attribute("messaging.message.id", jobs[0].id)
            span.set_attribute("holdfast.job.kind", jobs[0].new.kind)
            span.set_attribute("holdfast.job.duplicate", jobs[0].duplicate)

    def began(self, attempt: Attempt) -> None:
        """Begin the span of an attempt, where its enqueuer left off."""
        job = attempt.job
        link = _link(job.trace_id)
        attempt.span = self._tracer.start_span(
            f"process {job.queue}",
            context=_remote(job.trace_id),
            kind=trace.SpanKind.CONSUMER,
            attributes=_messaging("process", "process", job.queue) | _of(job),
            links=[] if link is None else [link],
        )

    @contextmanager
    def scope(self, attempt: Attempt) -> Iterator[None]:
        """Let what the handler does be part of its attempt."""
        if not isinstance(attempt.span, trace.Span):
            yield
            return
        token = contexts.attach(trace.set_span_in_context(attempt.span))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def step(self, attempt: Attempt, name: str) -> Iterator[None]:
        """Make a span for a step that is run; one that is on record has none."""
        with self._tracer.start_as_current_span(
            f"step {name}",
            attributes={"holdfast.step": name, "holdfast.job.id": attempt.job.id},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                _fails(span, type(error).__name__)
                raise

    def finished(self, attempt: Attempt, move: Move | None) -> None:
        """End the span of an attempt, once."""
        span, attempt.span = attempt.span, None
        if not isinstance(span, trace.Span):
            return
        if move is not None:
            span.set_attribute("holdfast.job.state", move.state.value)
            if move.failure is not None:
                span.set_attribute("holdfast.error_code", move.failure.code)
                error = attempt.error
                _fails(span, move.failure.code if error is None else type(error).__name__, move.failure.message)
        elif attempt.stop is Stop.LOST:
            _fails(span, "lease_lost")
        span.end()

    def context(self, attempt: Attempt) -> str | None:
        """Give the span of an attempt, for what it hands to others."""
        return traceparent(attempt.span) if isinstance(attempt.span, trace.Span) else None


@contextmanager
def continuing(parent: str) -> Iterator[None]:
    """Let what happens inside belong to a trace that began elsewhere."""
    token = contexts.attach(_W3C.extract({_TRACEPARENT: parent}))
    try:
        yield
    finally:
        contexts.detach(token)


def traceparent(span: trace.Span) -> str | None:
    """Give a span as W3C writes it; None for one that is not to be followed."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(_TRACEPARENT)


def _remote(trace_id: str | None) -> contexts.Context:
    """Give the context that a job was enqueued in; an empty one if it brings none, and not that of its worker."""
    if not is_traceparent(trace_id):
        return contexts.Context()
    return _W3C.extract({_TRACEPARENT: str(trace_id)}, contexts.Context())


def _link(trace_id: str | None) -> trace.Link | None:
    found = trace.get_current_span(_remote(trace_id)).get_span_context()
    return trace.Link(found) if found.is_valid else None


def _messaging(operation: str, kind: str, queue: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    return said if queue is None else said | {"messaging.destination.name": queue}


def _of(job: JobRecord) -> dict[str, Any]:
    said: dict[str, Any] = {
        "messaging.message.id": job.id,
        "messaging.client.id": job.lease_owner,
        "holdfast.job.kind": job.kind,
        "holdfast.job.attempt": job.attempt,
        "holdfast.job.tenant": job.tenant,
        "holdfast.job.trace_id": None if is_traceparent(job.trace_id) else job.trace_id,
    }
    return {name: value for name, value in said.items() if value not in (None, "")}


def _fails(span: trace.Span, error: str, description: str | None = None) -> None:
    span.set_attribute("error.type", error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, description))
