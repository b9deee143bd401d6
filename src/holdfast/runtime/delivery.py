"""One delivery of one job, processed here and now: the contract of a queue that calls with an envelope.

Answers `claimed` when this call claimed and processed the job, `already-claimed` when it is not this call's to run,
`no-op-terminal` when it is finished.
"""

import asyncio
import inspect
from collections.abc import Callable

from holdfast.client.registry import Registry
from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.dialects import Envelope
from holdfast.domain.errors import JobNotFound
from holdfast.domain.job import TERMINAL, JobRecord
from holdfast.domain.lifecycle import Answer, Move
from holdfast.port.store import Claim, Store
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.executor import Executor

CLAIMED = "claimed"


def process(
    store: Store,
    registry: Registry,
    settings: Settings,
    executor: Executor,
    envelope: Envelope,
    *,
    owner: str,
    lease_id: Callable[[], str],
) -> str:
    """Claim the envelope's job if it can be, run it and settle it."""
    (job,) = store.read([envelope.job_id])
    if job is None:
        msg = f"There is no job {envelope.job_id}."
        raise JobNotFound(msg)
    if job.state in TERMINAL:
        return Answer.NO_OP_TERMINAL.value
    if envelope.attempt > job.attempt + 1:
        return Answer.ALREADY_CLAIMED.value
    claimed = store.claim(Claim(owner, lease_id(), settings.lease, 1, id=job.id))
    if claimed:
        settle(store, settings, perform(executor, registry, claimed[0], store.now()), claimed[0])
        return CLAIMED
    (job,) = store.read([envelope.job_id])
    return (Answer.NO_OP_TERMINAL if job is None or job.state in TERMINAL else Answer.ALREADY_CLAIMED).value


def perform(executor: Executor, registry: Registry, job: JobRecord, now: int) -> Move | None:
    """Run a claimed job to its end in this thread."""
    kind = registry.get(job.kind)
    if kind is None:
        return executor.unknown_kind(job, now)
    attempt = Attempt(job, kind, 0.0)
    if inspect.iscoroutinefunction(kind.fn):
        return asyncio.run(executor.acall(attempt))
    return executor.call(attempt)


def settle(store: Store, settings: Settings, move: Move | None, job: JobRecord) -> None:
    """Write the outcome of an attempt, giving way to a cancellation."""
    if move is not None and store.commit([move]) == [Answer.CANCEL_REQUESTED]:
        store.commit([lifecycle.settle_cancel(job, settings.retention)])
