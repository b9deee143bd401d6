"""Why is this job not running? The question operators ask first, answered from the store alone."""

from dataclasses import dataclass
from typing import Any

from holdfast.client.limits import rules_of
from holdfast.domain import excess, lifecycle, moving
from holdfast.domain.gates import gates_of
from holdfast.domain.job import PLAIN, TERMINAL, JobRecord, State
from holdfast.domain.limits import ALL, Rules, group_of, spelled
from holdfast.domain.moments import HORIZON, SECOND, to_datetime
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
    if moving.held(job):
        text = "It is on its way to another store; whoever asks for the same copy again (or undoes it) sets it free."
        return _because("moving", text)
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
    rules = rules_of(store)
    for what, which, paused in (("tenant", job.tenant, rules.tenants), ("kind", job.kind, rules.kinds)):
        if which in paused:
            return _because(
                "paused", f"The {what} {which!r} is paused; resume it to let its jobs run.", **{what: which}
            )
    if job.available_at > now:
        return _waits(job, now) or _not_due(job, now)
    return _due(store, job, rules, now)


def _not_due(job: JobRecord, now: int) -> Explanation:
    wait = _span(job.available_at - now)
    at = to_datetime(job.available_at).isoformat()
    if job.state is State.QUEUED:
        return _because("not-due", f"It is not due yet: it may run in {wait}, at {at}.", available_at=at)
    if job.failure_code is None and job.step_cursor:
        return _because("sleeping", f"It sleeps: it goes on in {wait}, at {at}.", available_at=at)
    tried = f"{job.attempt} of {job.max_attempts} attempts used; last: {job.failure_code or 'given back'}"
    return _because("backoff", f"It is retrying ({tried}); it runs again in {wait}, at {at}.", available_at=at)


def _due(store: Store, job: JobRecord, rules: Rules, now: int) -> Explanation:
    if lifecycle.undoing(job):
        return _because("undoing", "It has come to its end, and its steps are about to be undone.")
    workers = [w for w in store.workers() if w.queues is None or job.queue in w.queues]
    if not workers:
        return _because("no-worker", f"No running worker serves the queue {job.queue!r}; start one.", queue=job.queue)
    if not any(job.kind in w.kinds or not w.kinds for w in workers):  # one that names no kinds may know any
        text = (
            f"Workers serve the queue {job.queue!r}, but none of them knows the kind {job.kind!r}; deploy its handler."
        )
        return _because("unknown-kind", text, kind=job.kind)
    if held := _held_back(store, job, rules, now):
        return held
    busy = sum(w.running for w in workers)
    ahead = store.counts().get((job.queue, State.QUEUED), 0)
    text = f"It is due and waits its turn: {ahead} queued in {job.queue!r}, {busy} running on {len(workers)} worker(s)."
    return _because("waiting", text, queued=ahead, running=busy, workers=len(workers))


def _held_back(store: Store, job: JobRecord, rules: Rules, now: int) -> Explanation | None:
    """Say which limit holds a job back, if one does: one that something must end for, or else that which opens last."""
    plan = rules.plan(job.queue)
    if plan is None:
        return None
    closed = [
        gate
        for gate in gates_of(plan, job.tenant, group_of(job), store.standing, now)
        if gate.opens_at is None or gate.opens_at > now
    ]
    if not closed:
        return None
    gate = max(closed, key=lambda one: HORIZON + now if one.opens_at is None else one.opens_at)
    whose = f"key {gate.key!r}" if gate.key is not None else f"tenant {gate.tenant!r}" if gate.tenant else "all jobs"
    where = "all queues" if gate.queue == ALL else f"the queue {gate.queue!r}"
    limit = f"The limit of {where} ({gate.limit}) holds it back"
    details = {"queue": gate.queue, "per": gate.limit.per, "tenant": gate.tenant, "key": gate.key}
    if gate.opens_at is None:
        run, end = ("is", "it") if gate.running == 1 else ("are", "one of them")
        text = f"{limit}: {gate.running} of {whose} {run} running; it may start when {end} ends."
        return _because("limit", text, **details, running=gate.running, concurrency=gate.limit.concurrency)
    at = to_datetime(gate.opens_at).isoformat()
    text = f"{limit}: for {whose} the next may start in {_span(gate.opens_at - now)}, at {at}."
    return _because("limit", text, **details, rate=spelled(gate.limit.rate or (1, 1)), opens_at=at)


def _waits(job: JobRecord, now: int) -> Explanation | None:
    """Say what a workflow waits for, if it does."""
    flow = job.flow or PLAIN
    if flow.awaits is None:
        return None
    until = "" if job.available_at - now > HORIZON // 2 else f", for another {_span(job.available_at - now)} at most"
    if flow.awaits.startswith("$"):
        whom = "its child to end, which" if flow.children == 1 else f"its {flow.children} children to end; the last one"
        text = f"It waits for {whom} wakes it."
        return _because("children", text, children=flow.children)
    return _because("signal", f"It waits for the signal {flow.awaits!r}{until}.", signal=flow.awaits)


def _finished(job: JobRecord) -> Explanation:
    at = to_datetime(job.finished_at or job.updated_at).isoformat()
    if job.state is State.DEAD:
        tried = f"after attempt {job.attempt} of {job.max_attempts}"
        text = f"It died at {at}: {job.cause}, {tried}. Last failure: {job.failure_code}. Redrive it to run it again."
        return _because("dead", text, cause=job.cause, code=job.failure_code)
    if moving.left(job):
        return _because("moved", f"It has gone to another store at {at}: {job.failure_message}.")
    if job.state is State.CANCELLED and job.failure_code in excess.SHED:
        text = f"It is finished: {job.state} at {at}, because {job.failure_message}."
        return _because(job.state.value, text, code=job.failure_code)
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
