"""What a handler may ask about the attempt it is running, if it takes a `ctx: Context` parameter."""

from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from holdfast.domain.job import JobRecord
from holdfast.domain.moments import to_datetime


class AttemptStopped(BaseException):
    """Raised inside a handler that must stop now: cancelled, timed out, or its lease is lost.

    Derives from BaseException so that a handler's own `except Exception` does not swallow it.
    """


class Stoppable(Protocol):
    """Whatever knows whether the attempt must stop."""

    @property
    def stopping(self) -> bool: ...
    def begin(self) -> Any: ...


class Context:
    """The present attempt of one job."""

    __slots__ = ("_attempt", "_job")

    def __init__(self, job: JobRecord, attempt: Stoppable) -> None:
        self._job = job
        self._attempt = attempt

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
        """The trace the job was enqueued under."""
        return self._job.trace_id

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
        """A key that stays the same on every retry of this job: hand it to the outside world to make an effect happen
        once.
        """
        return f"{self._job.id}:{self._job.generation}"

    @property
    def stopping(self) -> bool:
        """Whether the job has been asked to stop: cancelled, out of time, or its worker lost the lease."""
        return self._attempt.stopping

    def transaction(self) -> Any:
        """Open a transaction that commits together with this job's completion, so that what the handler writes to the
        store's own database happens exactly once.

        `with ctx.transaction() as connection:` (or `async with`). The block's end does not commit: the transaction
        stays open until the handler returns, and is undone if it fails.
        """
        return self._attempt.begin()

    def check(self) -> None:
        """Stop here if the job has been asked to stop; call it between pieces of long work."""
        if self._attempt.stopping:
            raise AttemptStopped
