"""A decorated handler: still callable as the function it was, and able to enqueue itself with the function's own
parameters.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.client.job import Job
from holdfast.client.options import Options
from holdfast.client.registry import Kind
from holdfast.domain.job import NewJob

P = ParamSpec("P")
R = TypeVar("R")


class Prepared(NamedTuple):
    """A validated job that can be enqueued, together with others or more than once."""

    new: NewJob
    connection: Any = None


class Enqueuer(Protocol):
    """What a decorated handler needs of its application."""

    max_payload: int

    def _enqueue(self, prepared: Prepared) -> Job[Any]: ...
    async def _aenqueue(self, prepared: Prepared) -> Job[Any]: ...


class JobFunction(Generic[P, R]):
    """A handler that can be enqueued."""

    def __init__(self, app: Enqueuer, kind: Kind, fn: Callable[..., Any], options: Options) -> None:
        self._app = app
        self._fn = fn
        self._options = options
        self._chosen = options.new_job(kind, "")[2:]
        """All of a job but its kind and payload: made once, for every job that is enqueued with these options."""
        self.kind = kind
        update_wrapper(self, fn)

    @property
    def name(self) -> str:
        """The kind's name."""
        return self.kind.name

    @property
    def function(self) -> Callable[..., Any]:
        """The function that was decorated."""
        return self._fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Validate the arguments and give a job to be enqueued later."""
        kind = self.kind
        payload = kind.binder.encode(args, kwargs, self._app.max_payload)
        return Prepared(NewJob._make((kind.name, payload, *self._chosen)), self._options.connection)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that will run this function; returns once it is durable."""
        return self._app._enqueue(self.prepare(*args, **kwargs))  # noqa: SLF001

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Asynchronous twin of `enqueue`."""
        return await self._app._aenqueue(self.prepare(*args, **kwargs))  # noqa: SLF001

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_after: float | timedelta | datetime | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        key_ttl: float | timedelta | None = None,
        tenant: str | None = None,
        user: str | None = None,
        trace_id: str | None = None,
        trigger: str | None = None,
        expires_after: float | timedelta | None = None,
        connection: Any = None,
    ) -> "JobFunction[P, R]":
        """Choose options for the jobs enqueued through the copy this gives.

        `run_after` is a delay (or an instant); `key` makes the job unique per tenant until it is purged or `key_ttl`
        is over; `expires_after` lets it die
        if it has not started by then; `connection` enqueues inside the caller's own transaction.
        """
        options = self._options.having(
            queue=queue,
            priority=priority,
            run_after=run_after,
            run_at=run_at,
            key=key,
            key_ttl=key_ttl,
            tenant=tenant,
            user=user,
            trace_id=trace_id,
            trigger=trigger,
            expires_after=expires_after,
            connection=connection,
        )
        return JobFunction(self._app, self.kind, self._fn, options)
