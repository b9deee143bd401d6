"""A handle on a stored job: what was known when it was last read, and the calls that go back to the store."""

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

from holdfast.client.asynchronous import asynchronous
from holdfast.domain.job import Failure, JobRecord, Lease, StepRecord
from holdfast.domain.moments import to_datetime
from holdfast.port.store import Inserted

if TYPE_CHECKING:
    from holdfast.client.explain import Explanation

R_co = TypeVar("R_co", covariant=True)


class Owner(Protocol):
    """What a handle needs of the application it came from."""

    def _await_result(self, id_: str, timeout: float | timedelta | None) -> object: ...
    async def _aawait_result(self, id_: str, timeout: float | timedelta | None) -> object: ...
    def _record(self, id_: str) -> JobRecord: ...
    def explain(self, id: UUID | str) -> "Explanation": ...  # noqa: A002
    def _cancel(self, id_: str) -> JobRecord: ...
    def _redrive(self, id_: str) -> JobRecord: ...
    def _signal(self, id_: str, name: str, payload: object) -> JobRecord: ...
    def _fork(self, id_: str, from_step: str) -> "Job[Any]": ...
    def _load(self, stored: str) -> str: ...
    def steps(self, id: UUID | str) -> list[StepRecord]: ...  # noqa: A002


class Job(Generic[R_co]):
    """One job, as it was when last read; `refresh` reads it again."""

    __slots__ = ("_known", "_owner", "duplicate")

    def __init__(self, owner: Owner, known: JobRecord | Inserted) -> None:
        self._owner = owner
        self._known = known
        self.duplicate = False
        if isinstance(known, Inserted) and known.found is not None:
            self._known = known.found
            self.duplicate = known.duplicate

    @property
    def id(self) -> UUID:
        """The job's id."""
        return UUID(self._known.id)

    @property
    def stored(self) -> Inserted | None:
        """What was stored of it, if that was just now and its record has not been looked at since."""
        return self._known if isinstance(self._known, Inserted) else None

    @property
    def state(self) -> str:
        """The state it was in when last read."""
        return self.record.state.value

    @property
    def record(self) -> JobRecord:
        """Everything that is stored of it."""
        if isinstance(self._known, Inserted):
            self._known = self._known.job
        return self._known

    @property
    def kind(self) -> str:
        """Which handler runs it."""
        return self.record.kind

    @property
    def queue(self) -> str:
        """The queue it waits in."""
        return self.record.queue

    @property
    def tenant(self) -> str:
        """The tenant it belongs to; empty if it has none."""
        return self.record.tenant

    @property
    def key(self) -> str | None:
        """Its idempotency key."""
        return self.record.key

    @property
    def priority(self) -> int:
        """Its priority; higher runs first."""
        return self.record.priority

    @property
    def attempt(self) -> int:
        """How many attempts have been started in this generation."""
        return self.record.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts it may have."""
        return self.record.max_attempts

    @property
    def generation(self) -> int:
        """How often it has been redriven, plus 1."""
        return self.record.generation

    @property
    def version(self) -> int:
        """How often its record has been written."""
        return self.record.version

    @property
    def cause(self) -> str | None:
        """Why it is dead: exhausted, rejected, crashed or expired."""
        return self.record.cause

    @property
    def failure(self) -> Failure | None:
        """Its last failure: code, message, retryable."""
        return self.record.failure

    @property
    def lease(self) -> Lease | None:
        """The worker's hold on it while it runs."""
        return self.record.lease

    @property
    def parent(self) -> UUID | None:
        """The job that spawned it."""
        return None if self.record.parent is None else UUID(self.record.parent)

    @property
    def trigger(self) -> str:
        """What asked for it: manual, schedule, webhook or file_drop."""
        return self.record.trigger

    @property
    def step_cursor(self) -> int:
        """How many of its steps are done; in a pipeline, the next step to run."""
        return self.record.step_cursor

    @property
    def steps_total(self) -> int:
        """How many steps it has, if it is a pipeline; 0 otherwise."""
        return self.record.steps_total

    @property
    def progress(self) -> tuple[float, str] | None:
        """How far it last said it was: a fraction and a text."""
        told = None if self.record.flow is None else self.record.flow.progress
        return None if told is None else (json.loads(told)[0], json.loads(told)[1])

    @property
    def credits_reserved(self) -> int:
        """The credits set aside for it and not spent."""
        return 0 if self.record.flow is None else self.record.flow.reserved

    @property
    def credits_spent(self) -> int:
        """The credits it has spent."""
        return 0 if self.record.flow is None else self.record.flow.spent

    @property
    def payload(self) -> object:
        """What it was asked to do, as plain JSON values."""
        return cast("object", json.loads(self._owner._load(self.record.payload)))  # noqa: SLF001

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return to_datetime(self.record.created_at)

    @property
    def available_at(self) -> datetime:
        """When it may run."""
        return to_datetime(self.record.available_at)

    @property
    def started_at(self) -> datetime | None:
        """When it was first claimed."""
        return None if self.record.started_at is None else to_datetime(self.record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it reached its terminal state."""
        return None if self.record.finished_at is None else to_datetime(self.record.finished_at)

    @property
    def purge_at(self) -> datetime | None:
        """When it will be removed."""
        return None if self.record.purge_at is None else to_datetime(self.record.purge_at)

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait for the job to succeed and give its result; raises `JobDead`, `JobCancelled` or `ResultTimeout`."""
        return cast("R_co", self._owner._await_result(self.record.id, timeout))  # noqa: SLF001

    async def aresult(self, timeout: float | timedelta | None = None) -> R_co:
        """Asynchronous twin of `result`."""
        return cast("R_co", await self._owner._aawait_result(self.record.id, timeout))  # noqa: SLF001

    def refresh(self) -> "Job[R_co]":
        """Read the job again, in place."""
        self._known = self._owner._record(self.record.id)  # noqa: SLF001
        return self

    def cancel(self) -> "Job[R_co]":
        """Cancel the job: at once while it waits, by asking its worker while it runs."""
        self._known = self._owner._cancel(self.record.id)  # noqa: SLF001
        return self

    def redrive(self) -> "Job[R_co]":
        """Run a dead job again as a new generation."""
        self._known = self._owner._redrive(self.record.id)  # noqa: SLF001
        return self

    def signal(self, name: str, payload: object = True) -> "Job[R_co]":  # noqa: FBT002 - a signal says yes
        """Send the job a signal that it waits for now or later (`ctx.wait_for`); a finished job takes none."""
        self._known = self._owner._signal(self.record.id, name, payload)  # noqa: SLF001
        return self

    def fork(self, from_step: str) -> "Job[R_co]":
        """Run the job again as a new one from one of its steps on; the results of the steps before it are kept."""
        return self._owner._fork(self.record.id, from_step)  # noqa: SLF001

    def steps(self) -> list[StepRecord]:
        """List its recorded steps, in order."""
        return self._owner.steps(self.record.id)

    def explain(self) -> "Explanation":
        """Say why the job is not running."""
        return self._owner.explain(self.record.id)

    arefresh = asynchronous(refresh)
    acancel = asynchronous(cancel)
    aredrive = asynchronous(redrive)
    aexplain = asynchronous(explain)
    asignal = asynchronous(signal)
    afork = asynchronous(fork)
    asteps = asynchronous(steps)

    def __repr__(self) -> str:
        return f"<Job {self.record.id} {self.record.kind} {self.record.state} attempt {self.record.attempt}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.record.id)
