"""Why is this job not running? The question operators ask first, answered from the store alone."""

from dataclasses import dataclass
from typing import Any

from holdfast.domain.job import TERMINAL, JobRecord, State
from holdfast.domain.moments import SECOND, to_datetime
from holdfast.port.store import Store


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason, as a stable code and as a sentence."""

    reason: str
    text: str
    details: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def explain(store: Store, job: JobRecord) -> Explanation:
    """Say why a job is where it is, and what it waits for."""
    now = store.now()
    if job.state in TERMINAL:
        return _finished(job)
    if job.state is State.RUNNING:
        return _running(job, now)
    if job.state is State.CREATED:
        return _because(
            "not-submitted", "It is stored but not yet handed to delivery; upkeep in any running worker will do that."
        )
    if job.queue in store.paused():
        return _because("paused", f"The queue {job.queue!r} is paused; resume it to let its jobs run.", queue=job.queue)
    if job.available_at > now:
        wait = _span(job.available_at - now)
        at = to_datetime(job.available_at).isoformat()
        if job.state is State.RETRYING:
            tried = f"{job.attempt} of {job.max_attempts} attempts used; last: {job.failure_code or 'given back'}"
            text = f"It is retrying ({tried}); it runs again in {wait}, at {at}."
            return _because("backoff", text, available_at=at)
        return _because("not-due", f"It is not due yet: it may run in {wait}, at {at}.", available_at=at)
    workers = [w for w in store.workers() if w.queues is None or job.queue in w.queues]
    if not workers:
        return _because("no-worker", f"No running worker serves the queue {job.queue!r}; start one.", queue=job.queue)
    if not any(job.kind in w.kinds for w in workers):
        text = (
            f"Workers serve the queue {job.queue!r}, but none of them knows the kind {job.kind!r}; deploy its handler."
        )
        return _because("unknown-kind", text, kind=job.kind)
    busy = sum(w.running for w in workers)
    ahead = store.counts().get((job.queue, State.QUEUED), 0)
    text = f"It is due and waits its turn: {ahead} queued in {job.queue!r}, {busy} running on {len(workers)} worker(s)."
    return _because("waiting", text, queued=ahead, running=busy, workers=len(workers))


def _finished(job: JobRecord) -> Explanation:
    at = to_datetime(job.finished_at or job.updated_at).isoformat()
    if job.state is State.DEAD:
        tried = f"after attempt {job.attempt} of {job.max_attempts}"
        text = f"It died at {at}: {job.cause}, {tried}. Last failure: {job.failure_code}. Redrive it to run it again."
        return _because("dead", text, cause=job.cause, code=job.failure_code)
    return _because(job.state.value, f"It is finished: {job.state} at {at}.")


def _running(job: JobRecord, now: int) -> Explanation:
    left = (job.lease_expires_at or now) - now
    owner = job.lease_owner
    if left <= 0:
        return _because(
            "lease-expired",
            f"Its worker {owner} has stopped reporting; upkeep will take the job back at its next round.",
            owner=owner,
        )
    text = f"It is running: attempt {job.attempt} on {owner}, whose lease ends in {_span(left)} unless renewed."
    if job.cancel_requested:
        return _because(
            "cancelling",
            f"Its cancellation was asked for; worker {owner} will see it at its next heartbeat.",
            owner=owner,
        )
    return _because("running", text, owner=owner, lease_expires_at=to_datetime(job.lease_expires_at or now).isoformat())


def _because(reason: str, text: str, **details: Any) -> Explanation:
    return Explanation(reason, text, details)


def _span(micros: int) -> str:
    seconds = micros / SECOND
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
