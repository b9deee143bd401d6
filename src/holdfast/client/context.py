"""What a handler may ask about the attempt it is running, if it takes a `ctx: Context` parameter."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

from holdfast.client.asking import Script
from holdfast.client.durable import Durable, Link, Stage
from holdfast.client.outcomes import policy
from holdfast.domain import codec, trace
from holdfast.domain.errors import BadInput
from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.moments import duration, time_limit, to_datetime
from holdfast.domain.retry import Retry
from holdfast.port.transaction import Transaction

CURRENT_STEP: ContextVar[str | None] = ContextVar("holdfast_step", default=None)
"""The step whose body is running."""
_LONGEST_PROGRESS = 200


def branch() -> object:
    """Tell apart what runs side by side in one workflow: the task that runs, or None where there is no event loop."""
    from asyncio import current_task

    try:
        return current_task()
    except RuntimeError:
        return None


class AttemptStopped(BaseException):
    """Raised inside a handler that must stop now: cancelled, timed out, or its lease is lost.

    Derives from BaseException so that a handler's own `except Exception` does not swallow it.
    """


class Stoppable(Protocol):
    """Whatever knows whether the attempt must stop."""

    stage: Stage | None
    progress: str | None

    @property
    def stopping(self) -> bool: ...
    def begin(self) -> Any: ...
    def workflow(self) -> Durable: ...


class PreparedJob(Protocol):
    """A validated job, from `prepare`."""

    @property
    def new(self) -> NewJob: ...
    @property
    def connection(self) -> Any: ...


class Context:
    """The present attempt of one job."""

    __slots__ = ("_attempt", "_awaited", "_job")

    def __init__(self, job: JobRecord, attempt: Stoppable, *, awaited: bool = False) -> None:
        self._job = job
        self._attempt = attempt
        self._awaited = awaited

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return UUID(self._job.id)

    @property
    def kind(self) -> str:
        """The job's kind."""
        return self._job.kind

    @property
    def queue(self) -> str:
        """The queue the job came from."""
        return self._job.queue

    @property
    def tenant(self) -> str:
        """The tenant the job belongs to; empty if it has none."""
        return self._job.tenant

    @property
    def key(self) -> str | None:
        """The job's idempotency key."""
        return self._job.key

    @property
    def trace_id(self) -> str | None:
        """The id of the trace the job was enqueued under."""
        return trace.told(self._job.trace_id)

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job may have."""
        return self._job.max_attempts

    @property
    def generation(self) -> int:
        """How often the job has been redriven, plus 1."""
        return self._job.generation

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued."""
        return to_datetime(self._job.created_at)

    @property
    def effect_key(self) -> str:
        """A key that stays the same on every retry of this job, or of the step that asks for it: hand it to the
        outside world to make an effect happen once.
        """
        step = CURRENT_STEP.get()
        return f"{self._job.id}:{self._job.generation}" + ("" if step is None else f":{step}")

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function once and record its result under this name; a retry of the job is given the record.

        Await it in an `async` handler. `retry` and `timeout` are the step's own. `undo` is called with the step's
        result (and, if it takes more, the step's arguments) when the job dies or is cancelled later on.
        """
        plain = getattr(fn, "function", fn)
        undoing = getattr(undo, "function", undo)
        if not callable(plain) or (undo is not None and not callable(undoing)):
            msg = f"ctx.step({name!r}, …) takes a function to run and, with undo=, one that undoes it."
            raise BadInput(msg)
        if retry is not None and not isinstance(retry, Retry):
            msg = f"retry= takes Retry.exponential(...), Retry.table(...) or Retry.fixed(...), not {retry!r}."
            raise BadInput(msg)
        limit = None if timeout is None else time_limit(timeout)
        durable = self._attempt.workflow()
        key = durable.key(name)
        return self._drive(key, durable.step(key, plain, args, kwargs, undo=undoing, retry=retry, timeout=limit))

    def sleep(self, name: str, span: float | timedelta) -> Any:
        """Wait without holding a slot or a lease; counted from the first time it is asked. Await it if async."""
        durable = self._attempt.workflow()
        key = durable.key(name)
        return self._drive(key, durable.sleep(key, duration(span, "A sleep")))

    def wait_for(self, signal: str, *, timeout: float | timedelta | None = None) -> Any:
        """Wait for a signal (`job.signal(name, payload)`) and give its payload; `None` if it does not come in time.

        A signal that was sent before is taken at once. Await it in an `async` handler.
        """
        limit = None if timeout is None else duration(timeout, "timeout")
        durable = self._attempt.workflow()
        key = durable.key(signal)
        return self._drive(key, durable.wait_for(key, signal, limit))

    def gather(
        self,
        children: Iterable[PreparedJob],
        *,
        name: str = "gather",
        failures: Literal["fail", "ignore", "collect"] = "fail",
    ) -> Any:
        """Run prepared jobs as children of this one, wait until all have ended and give their results in order.

        If one does not succeed, `fail` raises `ChildFailed`, `ignore` gives None for it and `collect` the exception.
        Await it in an `async` handler.
        """
        prepared = list(children)
        if not all(isinstance(getattr(child, "new", None), NewJob) for child in prepared):
            msg = "ctx.gather takes prepared jobs: [pick.prepare(1), ...]."
            raise BadInput(msg)
        if any(child.new.key is not None or child.connection is not None for child in prepared):
            msg = "Children have no key and no connection of their own: the parent's record is what makes them once."
            raise BadInput(msg)
        durable = self._attempt.workflow()
        key = durable.key(name)
        return self._drive(key, durable.gather(key, [child.new for child in prepared], policy(failures)))

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the job is, from 0 to 1; told to the store with the next heartbeat."""
        known = isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 <= fraction <= 1
        if not known or not isinstance(text, str):
            msg = f"Progress is a number from 0 to 1 and a short text, not {fraction!r} and {text!r:.60}."
            raise BadInput(msg)
        shown = "".join(each if each.isprintable() else " " for each in text[:_LONGEST_PROGRESS])
        self._attempt.progress = codec.encode([float(fraction), shown], "The progress")

    def spend(self, credits: int) -> None:  # noqa: A002 - the account's own word
        """Spend credits of the job's tenant; they are written with the step that spends them and, between steps, with
        the next step of the same task that is recorded, or with the end.
        """
        if isinstance(credits, bool) or not isinstance(credits, int) or not 0 <= credits <= codec.MAX_INT // 2:
            msg = f"Credits are spent in whole numbers of 0 or more; {credits!r} is not one."
            raise BadInput(msg)
        if self._attempt.stage is None:
            msg = "ctx.spend() is for handlers that run in the worker's own process, not in one of their own."
            raise BadInput(msg)
        self._attempt.stage.spends[CURRENT_STEP.get() or branch()] += credits

    def run_pipeline(self, links: Sequence[Link], payload: Any) -> Any:
        """Run the steps of a pipeline; what a pipeline's own function calls."""
        return self._drive(self._job.kind, self._attempt.workflow().pipeline(links, payload, self))

    def _drive(self, name: str, script: Script[Any]) -> Any:
        stage = self._attempt.stage
        assert stage is not None
        return stage.promise(name, script) if self._awaited else stage.drive(script)

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop: cancelled, out of time, or its worker lost the lease."""
        return self._attempt.stopping

    def transaction(self) -> Any:
        """Open a transaction that commits together with this job's completion, so that what the handler writes to the
        store's own database happens exactly once. In the body of a step it commits together with the step's record.

        `with ctx.transaction() as connection:` (or `async with`). The block's end does not commit: the transaction
        stays open until the handler, or the body of the step, returns, and is undone if that fails.
        """
        return _Block(self._attempt.begin(), awaited=self._awaited)

    def check(self) -> None:
        """Stop here if the job has been asked to stop; call it between pieces of long work."""
        if self._attempt.stopping:
            raise AttemptStopped


class _Block:
    """A handler's transaction, entered as the handler runs: what completes the job in it goes the same way."""

    __slots__ = ("_awaited", "_transaction")

    def __init__(self, transaction: Transaction, *, awaited: bool) -> None:
        self._transaction = transaction
        self._awaited = awaited

    def __enter__(self) -> Any:
        if self._awaited:
            msg = "An async handler opens its transaction with `async with ctx.transaction()`."
            raise BadInput(msg)
        return self._transaction.__enter__()

    def __exit__(self, *error: object) -> None:
        self._transaction.__exit__(*error)

    async def __aenter__(self) -> Any:
        if not self._awaited:
            msg = "A handler that is not async opens its transaction with `with ctx.transaction()`."
            raise BadInput(msg)
        return await self._transaction.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._transaction.__aexit__(*error)
