"""`Client`: Holdfast by HTTP, in calls that block. Safe to share between threads."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

import httpx

from holdfast.domain.ids import EVERY
from holdfast.remote import asks
from holdfast.remote.asks import Ask, T
from holdfast.remote.link import TRIES, Line, Tries, closed, read
from holdfast.remote.shapes import Beat, Choices, Claimed, Filter, PreparedJob, RemoteJob, prepared
from holdfast.remote.worker import RemoteWorker, Task

H = TypeVar("H", bound=Callable[[Task], Any])
PAGE = 200


class Client:
    """A server's jobs. `timeout` (seconds) bounds each answer, waiting aside; `tries` how often a request is made when
    the line breaks or the server is busy.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 10, tries: int = TRIES) -> None:
        self._line = Line(url, token, timeout, tries)
        self._http = httpx.Client(**self._line.options())
        self._handlers: dict[str, Callable[[Task], Any]] = {}

    @property
    def url(self) -> str:
        """The server's address."""
        return self._line.url

    @staticmethod
    def prepare(kind: str, payload: Any = None, **choices: Unpack[Choices]) -> PreparedJob:
        """Put a job together, to be enqueued later; takes the options of `using`."""
        return prepared(kind, payload, choices)

    def enqueue(self, kind: str, payload: Any = None, **choices: Unpack[Choices]) -> RemoteJob:
        """Store a job; it is durable when this returns. Without a `key` it is given one that nobody else has."""
        return self.ask(asks.enqueue(prepared(kind, payload, choices), keyed="key" in choices))

    def enqueue_many(self, jobs: Iterable[PreparedJob]) -> list[RemoteJob]:
        """Store up to a thousand prepared jobs, all or none."""
        batch = list(jobs)
        return self.ask(asks.enqueue_many(batch)) if batch else []

    def get(self, id: UUID | str, *, payload: bool = False) -> RemoteJob:  # noqa: A002 - the job's own word
        """Read one job, with its payload if asked for; raises `JobNotFound`."""
        return self.ask(asks.get(id, payload=payload))

    def find(self, *, limit: int | None = None, **wanted: Unpack[Filter]) -> Iterator[RemoteJob]:
        """Go through the jobs that a filter finds, newest first, page by page; `limit` of them at most."""
        left, cursor = limit, None
        while left is None or left > 0:
            found, cursor = self.ask(asks.page(wanted, PAGE if left is None else min(PAGE, left), cursor))
            yield from found
            left = None if left is None else left - len(found)
            if cursor is None:
                return

    def cancel(self, id: UUID | str) -> RemoteJob:  # noqa: A002 - the job's own word
        """Cancel a job: at once while it waits, by asking its worker while it runs."""
        return self.ask(asks.cancel(id))

    @overload
    def redrive(self, id: UUID | str) -> RemoteJob: ...
    @overload
    def redrive(
        self,
        *,
        kind: str | None = ...,
        queue: str | None = ...,
        tenant: str | None = ...,
        error_code: str | None = ...,
        per_second: int | None = ...,
    ) -> int: ...
    def redrive(
        self,
        id: Any = EVERY,  # noqa: A002 - the job's own word
        **wanted: Any,
    ) -> RemoteJob | int:
        """Run a dead job again; or every dead job that a filter finds, `per_second` at most, giving their number."""
        if id is not EVERY:
            return self.ask(asks.redrive(id))
        done, more = 0, True
        while more:
            some, more = self.ask(asks.redrive_dead(wanted))
            done += some
        return done

    def signal(self, id: UUID | str, name: str, payload: Any = True) -> RemoteJob:  # noqa: A002, FBT002
        """Send a job a signal. If the answer is lost this raises `CommitUnknown`: sent again, it would count twice."""
        return self.ask(asks.signal(id, name, payload))

    def result(self, id: UUID | str | RemoteJob, timeout: float | None = None) -> Any:  # noqa: A002
        """Wait for a job to succeed and give its result; raises `JobDead`, `JobCancelled` or `ResultTimeout`."""
        id_ = id.id if isinstance(id, RemoteJob) else id
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = asks.LONGEST_WAIT if end is None else end - time.monotonic()
            job = self.ask(asks.get(id_, payload=True, wait=max(0.0, min(left, asks.LONGEST_WAIT))))
            if asks.ended(job):
                return asks.result_of(job)
            if end is not None and time.monotonic() >= end:
                raise asks.late(job, timeout)

    def claim(
        self,
        worker: str,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] = (),
        limit: int = 1,
        lease: float | None = None,
        wait: float = 0,
    ) -> list[Claimed]:
        """Claim jobs that are due, `limit` at most, waiting for some as long as `wait` (seconds) says."""
        return self.ask(asks.claim(worker, queues=queues, kinds=kinds, limit=limit, lease=lease, wait=wait))

    def claims(
        self, worker: str, *, queues: Sequence[str] | None = None, lease: float | None = None, wait: float = 20
    ) -> Iterator[Claimed]:
        """Claim one job after the other, for ever; each must be settled, or heartbeat before its lease ends."""
        while True:
            yield from self.claim(worker, queues=queues, lease=lease, wait=wait)

    def heartbeat(
        self, job: Claimed, *, lease: float | None = None, progress: float | None = None, note: str = ""
    ) -> Beat:
        """Renew a lease, and say how far the job is. It is asked once only: a late renewal is none."""
        return self.ask(asks.heartbeat(job, lease, progress, note), tries=1)

    def checkpoint(self, job: Claimed, step: str, result: Any = None) -> str:
        """Record a step with its result; gives the job's state."""
        return self.ask(asks.checkpoint(job, step, result))

    def complete(self, job: Claimed, result: Any = None) -> str:
        """End a job as succeeded; gives its state."""
        return self.ask(asks.complete(job, result))

    def fail(
        self, job: Claimed, code: str, message: str = "", *, retryable: bool = True, traceback: str | None = None
    ) -> str:
        """Record a failed attempt; gives the job's state."""
        return self.ask(asks.fail(job, code, message, retryable=retryable, traceback=traceback))

    def release(self, job: Claimed, delay: float | None = None) -> str:
        """Give a job back, to be run again after a delay (seconds); gives its state."""
        return self.ask(asks.release(job, delay))

    def handles(self, kind: str) -> Callable[[H], H]:
        """Decorate a function that takes a `Task` as what runs jobs of a kind, for `work`."""

        def decorated(fn: H) -> H:
            self._handlers[kind] = fn
            return fn

        return decorated

    def worker(self, **options: Any) -> RemoteWorker:
        """Make a worker that can be run and stopped; takes the options of `RemoteWorker`."""
        return RemoteWorker(self, self._handlers, **options)

    def work(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run jobs with the functions decorated by `handles`, until SIGTERM or SIGINT; takes the options of
        `RemoteWorker`.
        """
        self.worker(**options).run(until_idle=until_idle)

    def ask(self, ask: Ask[T], *, tries: int | None = None) -> T:
        """Send a request and read its answer, trying again where that is safe."""
        trying = Tries(self._line, ask, tries)
        while True:
            if self._http.is_closed:
                raise closed()
            try:
                answer = self._http.send(self._line.request(self._http, ask))
            except httpx.TransportError as error:
                pause = trying.lost(error)
            else:
                wait = trying.busy(answer)
                if wait is None:
                    return read(ask, answer)
                pause = wait
            threading.Event().wait(pause)

    def close(self) -> None:
        """Let go of all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"
