"""`AsyncClient`: Holdfast by HTTP, in calls that are awaited. For one event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Self, Unpack, overload
from uuid import UUID

import httpx

from holdfast.domain.ids import EVERY
from holdfast.remote import asks
from holdfast.remote.asks import Ask, T
from holdfast.remote.client import PAGE
from holdfast.remote.link import TRIES, Line, Tries, closed, read
from holdfast.remote.shapes import Beat, Choices, Claimed, Filter, PreparedJob, RemoteJob, prepared


class AsyncClient:
    """A server's jobs; the calls of `Client`, awaited."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 10, tries: int = TRIES) -> None:
        self._line = Line(url, token, timeout, tries)
        self._http = httpx.AsyncClient(**self._line.options())

    @property
    def url(self) -> str:
        """The server's address."""
        return self._line.url

    @staticmethod
    def prepare(kind: str, payload: Any = None, **choices: Unpack[Choices]) -> PreparedJob:
        """Put a job together, to be enqueued later; takes the options of `using`."""
        return prepared(kind, payload, choices)

    async def enqueue(self, kind: str, payload: Any = None, **choices: Unpack[Choices]) -> RemoteJob:
        """Store a job; see `Client.enqueue`."""
        return await self.ask(asks.enqueue(prepared(kind, payload, choices), keyed="key" in choices))

    async def enqueue_many(self, jobs: Iterable[PreparedJob]) -> list[RemoteJob]:
        """Store up to a thousand prepared jobs, all or none."""
        batch = list(jobs)
        return await self.ask(asks.enqueue_many(batch)) if batch else []

    async def get(self, id: UUID | str, *, payload: bool = False) -> RemoteJob:  # noqa: A002 - the job's own word
        """Read one job, with its payload if asked for; raises `JobNotFound`."""
        return await self.ask(asks.get(id, payload=payload))

    async def find(self, *, limit: int | None = None, **wanted: Unpack[Filter]) -> AsyncIterator[RemoteJob]:
        """Go through the jobs that a filter finds, newest first, page by page; `limit` of them at most."""
        left, cursor = limit, None
        while left is None or left > 0:
            found, cursor = await self.ask(asks.page(wanted, PAGE if left is None else min(PAGE, left), cursor))
            for job in found:
                yield job
            left = None if left is None else left - len(found)
            if cursor is None:
                return

    async def cancel(self, id: UUID | str) -> RemoteJob:  # noqa: A002 - the job's own word
        """Cancel a job: at once while it waits, by asking its worker while it runs."""
        return await self.ask(asks.cancel(id))

    @overload
    async def redrive(self, id: UUID | str) -> RemoteJob: ...
    @overload
    async def redrive(
        self,
        *,
        kind: str | None = ...,
        queue: str | None = ...,
        tenant: str | None = ...,
        error_code: str | None = ...,
        per_second: int | None = ...,
    ) -> int: ...
    async def redrive(
        self,
        id: Any = EVERY,  # noqa: A002 - the job's own word
        **wanted: Any,
    ) -> RemoteJob | int:
        """Run a dead job again; or every dead job that a filter finds, `per_second` at most, giving their number."""
        if id is not EVERY:
            return await self.ask(asks.redrive(id))
        done, more = 0, True
        while more:
            some, more = await self.ask(asks.redrive_dead(wanted))
            done += some
        return done

    async def signal(self, id: UUID | str, name: str, payload: Any = True) -> RemoteJob:  # noqa: A002, FBT002
        """Send a job a signal; see `Client.signal` for what a lost answer means."""
        return await self.ask(asks.signal(id, name, payload))

    async def result(self, id: UUID | str | RemoteJob, timeout: float | None = None) -> Any:  # noqa: A002
        """Wait for a job to succeed and give its result; raises `JobDead`, `JobCancelled` or `ResultTimeout`."""
        id_ = id.id if isinstance(id, RemoteJob) else id
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = asks.LONGEST_WAIT if end is None else end - time.monotonic()
            job = await self.ask(asks.get(id_, payload=True, wait=max(0.0, min(left, asks.LONGEST_WAIT))))
            if asks.ended(job):
                return asks.result_of(job)
            if end is not None and time.monotonic() >= end:
                raise asks.late(job, timeout)

    async def claim(
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
        return await self.ask(asks.claim(worker, queues=queues, kinds=kinds, limit=limit, lease=lease, wait=wait))

    async def claims(
        self, worker: str, *, queues: Sequence[str] | None = None, lease: float | None = None, wait: float = 20
    ) -> AsyncIterator[Claimed]:
        """Claim one job after the other, for ever; each must be settled, or heartbeat before its lease ends."""
        while True:
            for job in await self.claim(worker, queues=queues, lease=lease, wait=wait):
                yield job

    async def heartbeat(
        self, job: Claimed, *, lease: float | None = None, progress: float | None = None, note: str = ""
    ) -> Beat:
        """Renew a lease, and say how far the job is. It is asked once only: a late renewal is none."""
        return await self.ask(asks.heartbeat(job, lease, progress, note), tries=1)

    async def checkpoint(self, job: Claimed, step: str, result: Any = None) -> str:
        """Record a step with its result; gives the job's state."""
        return await self.ask(asks.checkpoint(job, step, result))

    async def complete(self, job: Claimed, result: Any = None) -> str:
        """End a job as succeeded; gives its state."""
        return await self.ask(asks.complete(job, result))

    async def fail(
        self, job: Claimed, code: str, message: str = "", *, retryable: bool = True, traceback: str | None = None
    ) -> str:
        """Record a failed attempt; gives the job's state."""
        return await self.ask(asks.fail(job, code, message, retryable=retryable, traceback=traceback))

    async def release(self, job: Claimed, delay: float | None = None) -> str:
        """Give a job back, to be run again after a delay (seconds); gives its state."""
        return await self.ask(asks.release(job, delay))

    async def ask(self, ask: Ask[T], *, tries: int | None = None) -> T:
        """Send a request and read its answer, trying again where that is safe."""
        trying = Tries(self._line, ask, tries)
        while True:
            if self._http.is_closed:
                raise closed()
            try:
                answer = await self._http.send(self._line.request(self._http, ask))
            except httpx.TransportError as error:
                pause = trying.lost(error)
            else:
                wait = trying.busy(answer)
                if wait is None:
                    return read(ask, answer)
                pause = wait
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        """Let go of all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"
