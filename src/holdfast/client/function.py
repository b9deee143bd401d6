"""A decorated handler: still callable as the function it was, and able to enqueue itself with the function's own
parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.client.job import Job
from holdfast.client.options import Options
from holdfast.client.registry import Kind
from holdfast.domain.alike import Alike
from holdfast.domain.errors import BadInput
from holdfast.domain.job import NewJob
from holdfast.domain.moments import Micros

P = ParamSpec("P")
R = TypeVar("R")
_new, _blank = tuple.__new__, object.__new__
"""They make an object at a fraction of what its own way takes: for what is made for every job."""
_MANY = 100
"""So many jobs of one shape are worth keeping what they have in common only once."""


class Shape(NamedTuple):
    """What prepared jobs that only differ in their payloads have in common."""

    kind: str
    chosen: tuple[Any, ...]
    """The fields of `NewJob` behind the payload."""
    connection: Any
    debounce: Micros | None


class Prepared:
    """A validated job that can be enqueued, together with others or more than once.

    There may be very many, so each keeps nothing but its payload to itself.
    """

    __slots__ = ("payload", "shape")

    def __init__(self, new: NewJob, connection: Any = None, debounce: Micros | None = None) -> None:
        self.payload = new.payload
        self.shape = Shape(new.kind, new[2:], connection, debounce)

    def __repr__(self) -> str:
        return f"<prepared {self.shape.kind}>"

    @property
    def new(self) -> NewJob:
        """What is stored of it."""
        new: NewJob = _new(NewJob, ((shape := self.shape).kind, self.payload) + shape.chosen)  # noqa: RUF005 - as in `news`
        return new

    @property
    def connection(self) -> Any:
        """The caller's connection that it is enqueued through."""
        return self.shape.connection

    @property
    def debounce(self) -> Micros | None:
        """How long it is put off, and again whenever it is asked for."""
        return self.shape.debounce


def listed(prepared: Iterable[Prepared]) -> list[Prepared]:
    """Check that what was given are prepared jobs, and give them."""
    batch = list(prepared) if isinstance(prepared, Iterable) else [prepared]
    if not all(issubclass(given, Prepared) for given in set(map(type, batch))):
        msg = "enqueue_many takes prepared jobs: [add.prepare(1, 2), ...]."
        raise BadInput(msg)
    return batch


def news(batch: Sequence[Prepared]) -> list[NewJob]:
    """Give what is stored of prepared jobs."""
    return [
        _new(NewJob, ((shape := one.shape).kind, one.payload) + shape.chosen)  # noqa: RUF005 - unpacking takes longer
        for one in batch
    ]


def series(batch: Sequence[Prepared]) -> Sequence[NewJob]:
    """Give what is stored of prepared jobs, which may be very many: what they have in common is not made for each."""
    first = batch[0].shape if batch else None
    if len(batch) < _MANY or any(one.shape is not first for one in batch):
        return news(batch)
    return Alike(batch[0].new, [one.payload for one in batch])


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
        self._shape = Shape(kind.name, options.new_job(kind, "")[2:], options.connection, options.debounce)
        """All of a job but its payload: made once, for every job that is enqueued with these options."""
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

    @property
    def options(self) -> Options:
        """What was chosen with `using`."""
        return self._options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Validate the arguments and give a job to be enqueued later."""
        binder, limit = self.kind.binder, self._app.max_payload
        payload = None if kwargs or (write := binder.write) is None else write(args, limit)
        prepared = _blank(Prepared)
        prepared.payload = binder.encode(args, kwargs, limit) if payload is None else payload
        prepared.shape = self._shape
        return prepared

    def prepare_json(self, payload: str) -> Prepared:
        """Validate a payload that comes as JSON text, and give a job to be enqueued later."""
        new = self._options.new_job(self.kind, self.kind.binder.check(payload, self._app.max_payload))
        return Prepared(new, self._options.connection, self._options.debounce)

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
        credits: int | None = None,  # noqa: A002 - the account's own word
        unique: Literal["active"] | None = None,
        debounce: float | timedelta | None = None,
        connection: Any = None,
        group: str | None = None,
    ) -> "JobFunction[P, R]":
        """Choose options for the jobs enqueued through the copy this gives.

        `run_after` is a delay (or an instant); `key` makes the job unique per tenant until it is purged or `key_ttl`
        is over; `expires_after` lets it die
        if it has not started by then; `credits` sets that many aside in the tenant's account, if it has one;
        `unique="active"` lets a key be used again once its job has ended; `debounce` puts the job off by this long, and
        again whenever it is asked for before it has begun; `connection` enqueues inside the caller's own transaction;
        `group` is the key that limits per key go by.
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
            credits=credits,
            unique=unique,
            debounce=debounce,
            connection=connection,
            group=group,
        )
        return JobFunction(self._app, self.kind, self._fn, options)


def repeatable(job: Any, what: str) -> JobFunction[..., Any]:
    """Check that a job can be enqueued again and again, each time under a key of its own; `what` enqueues it."""
    if not isinstance(job, JobFunction):
        msg = f"{what} takes a job, as in job=ingest or job=ingest.using(queue='slow'), not a {type(job).__name__}."
        raise BadInput(msg)
    if job.options.key is not None or job.options.debounce is not None:
        msg = f"{what} gives each of its jobs a key of its own; leave out key=, unique= and debounce=."
        raise BadInput(msg)
    if job.options.connection is not None:
        msg = f"{what} outlives every transaction; leave out connection=."
        raise BadInput(msg)
    return job
