"""One delivery of one job, processed here and now: the contract of a queue that calls with an envelope.

Answers `claimed` when this call claimed and processed the job, `already-claimed` when it is not this call's to run,
`no-op-terminal` when it is finished.
"""

import asyncio
import inspect
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.client.context import AttemptStopped
from holdfast.client.family import tend
from holdfast.client.registry import Registry
from holdfast.client.settings import Settings
from holdfast.domain import events, lifecycle
from holdfast.domain.dialects import Envelope
from holdfast.domain.errors import JobNotFound
from holdfast.domain.job import TERMINAL, JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.clock import Clock
from holdfast.port.store import Claim, Store
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.executor import Executor
from holdfast.runtime.keeper import Keeper

CLAIMED = "claimed"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Everything that processing a delivery takes."""

    store: Store
    registry: Registry
    settings: Settings
    executor: Executor
    clock: Clock
    owner: str
    lease_id: Callable[[], str]
    until: float = math.inf
    """Monotonic time at which a handler that still runs is stopped, and its job given back."""

    def process(self, envelope: Envelope) -> str:
        """Claim the envelope's job if it can be, run it and settle it."""
        (job,) = self.store.read([envelope.job_id])
        if job is None:
            msg = f"There is no job {envelope.job_id}."
            raise JobNotFound(msg)
        if job.state in TERMINAL:
            return Answer.NO_OP_TERMINAL.value
        if envelope.attempt > job.attempt + 1:
            return Answer.ALREADY_CLAIMED.value
        claimed = self.store.claim(Claim(self.owner, self.lease_id(), self.settings.lease, 1, id=job.id))
        if claimed:
            self.run(claimed[0])
            return CLAIMED
        (job,) = self.store.read([envelope.job_id])
        return (Answer.NO_OP_TERMINAL if job is None or job.state in TERMINAL else Answer.ALREADY_CLAIMED).value

    def run(self, job: JobRecord) -> None:
        """Run a claimed job to its end in this thread, and settle it."""
        attempt = Attempt(job, self.registry.get(job.kind, job.code_version), self.clock.monotonic())
        if self.executor.watch is not None:
            self.executor.watch.claimed([attempt])
        move = self._perform(attempt)
        if not attempt.settled:
            settle(self.store, self.settings, self.executor, attempt, move)

    def _give_back(self, attempt: Attempt) -> None:
        """Settle an attempt whose handler does not stop."""
        attempt.settled = True
        settle(self.store, self.settings, self.executor, attempt, self.executor.stopped(attempt))

    def _perform(self, attempt: Attempt) -> Move | None:
        job, kind = attempt.job, attempt.kind
        if kind is None:
            return self.executor.unknown_kind(job, self.store.now())
        if lifecycle.must_record_start(job):
            (answer,) = self.store.commit([lifecycle.start(job)])
            if answer is not Answer.OK:
                return lifecycle.release(job)
        attempt.renewed = self.clock.monotonic()
        if self.executor.watch is not None:
            self.executor.watch.began(attempt)
        try:
            give_back = partial(self._give_back, attempt)
            with Keeper(
                attempt, self.store, self.settings, self.clock, until=self.until, give_back=give_back
            ) as keeper:
                if inspect.iscoroutinefunction(kind.fn):
                    return _apart(partial(asyncio.run, self._arun(attempt, keeper)))
                return self.executor.call(attempt)
        except AttemptStopped:
            return self.executor.stopped(attempt)

    async def _arun(self, attempt: Attempt, keeper: Keeper) -> Move | None:
        task = asyncio.ensure_future(self.executor.acall(attempt))
        keeper.running(task)
        return await task


def _apart(run: Callable[[], Move | None]) -> Move | None:
    """Run something that needs an event loop of its own: in a thread, where this one has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1, "holdfast-delivery") as thread:
        return thread.submit(run).result()


def settle(store: Store, settings: Settings, executor: Executor, attempt: Attempt, move: Move | None) -> None:
    """Write the outcome of an attempt, giving way to a cancellation and to an empty account; tend to its family."""
    watch = executor.watch
    if watch is not None:
        watch.finished(attempt, move)
    while move is not None:
        move = events.told(attempt.job, move, public=settings.events)
        (answer,) = store.commit([move])
        if answer is Answer.CANCEL_REQUESTED:
            move = lifecycle.settle_cancel(attempt.job, settings.retention)
        elif answer is Answer.UNPAID:
            move = executor.unpaid(attempt)
        else:
            if watch is not None:
                watch.answered(attempt, move, answer)
            if answer is Answer.OK and move.events:
                tend(store, settings.retention, [(attempt.job, move)], public=settings.events)
            return
