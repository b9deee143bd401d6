"""All that can be asked of a server: each request with how its answer is read. Nothing is sent from here.

Asking again after a lost answer is safe for all but signals: a job has a key, and a settlement carries its lease's
token, by which the store knows what it has done already.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from holdfast.domain.errors import BadInput, JobCancelled, JobDead, ResultTimeout
from holdfast.domain.ids import job_id
from holdfast.domain.job import TERMINAL, State
from holdfast.remote.shapes import (
    Beat,
    Claimed,
    Filter,
    PreparedJob,
    RemoteJob,
    claimed_of,
    job_of,
    plain,
    seconds,
)

T = TypeVar("T")
LARGEST_BATCH = 1_000
LONGEST_WAIT = 25.0
"""The longest that one request waits for something to happen, in seconds."""


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[Any], T]
    """Reads the answer's JSON."""
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    wait: float = 0.0
    """How long the server may take before it answers, beside what any answer takes."""
    again: bool = True
    """Whether it may be asked again when it is not known if the server has done it."""


def enqueue(job: PreparedJob, *, keyed: bool) -> Ask[RemoteJob]:
    """Store a job. One that was not given a key by its caller is no duplicate: only this very request can have come
    before.
    """
    return Ask("POST", "/v1/jobs", job_of if keyed else lambda said: replace(job_of(said), duplicate=False), job.body)


def enqueue_many(jobs: Sequence[PreparedJob]) -> Ask[list[RemoteJob]]:
    """Store jobs together."""
    if not all(isinstance(job, PreparedJob) for job in jobs):
        msg = "enqueue_many takes prepared jobs: [client.prepare('resize', {...}), ...]."
        raise BadInput(msg)
    if len(jobs) > LARGEST_BATCH:
        msg = f"At most {LARGEST_BATCH:,} jobs are stored together, not {len(jobs):,}; enqueue them in several batches."
        raise BadInput(msg)
    return Ask("POST", "/v1/jobs/batch", _jobs, {"jobs": [job.body for job in jobs]})


def get(id_: UUID | str, *, payload: bool = False, wait: float = 0.0) -> Ask[RemoteJob]:
    """Read a job, when it has ended or the wait is over."""
    query = {"payload": "true" if payload else "false"} | ({"wait": wait} if wait else {})
    return Ask("GET", f"/v1/jobs/{job_id(id_)}", job_of, query=query, wait=wait)


def page(wanted: Filter, limit: int, cursor: str | None) -> Ask[tuple[list[RemoteJob], str | None]]:
    """List a page of jobs."""
    query = {name: str(value) for name, value in wanted.items() if value is not None} | {"limit": str(limit)}
    if cursor is not None:
        query["cursor"] = cursor
    return Ask("GET", "/v1/jobs", lambda said: (_jobs(said), said["next"]), query=query)


def cancel(id_: UUID | str) -> Ask[RemoteJob]:
    """Cancel a job."""
    return Ask("POST", f"/v1/jobs/{job_id(id_)}/cancel", job_of)


def redrive(id_: UUID | str) -> Ask[RemoteJob]:
    """Run a dead job again."""
    return Ask("POST", f"/v1/jobs/{job_id(id_)}/redrive", job_of)


def redrive_dead(wanted: Mapping[str, Any]) -> Ask[tuple[int, bool]]:
    """Run dead jobs again; gives their number and whether there may be more."""
    body = {name: value for name, value in wanted.items() if value is not None}
    return Ask("POST", "/v1/dead/redrive", lambda said: (said["redriven"], said["more"]), body, wait=LONGEST_WAIT + 10)


def signal(id_: UUID | str, name: str, payload: Any) -> Ask[RemoteJob]:
    """Send a job a signal."""
    body = {"name": name, "payload": plain(payload, "The payload of the signal")}
    return Ask("POST", f"/v1/jobs/{job_id(id_)}/signal", job_of, body, again=False)


def claim(
    worker: str,
    *,
    queues: Sequence[str] | None,
    kinds: Sequence[str],
    limit: int,
    lease: float | None,
    wait: float,
) -> Ask[list[Claimed]]:
    """Claim jobs, waiting for some if there are none."""
    body: dict[str, Any] = {"worker": worker, "kinds": list(kinds), "limit": limit, "wait": wait}
    if queues is not None:
        body["queues"] = list(queues)
    if lease is not None:
        body["lease"] = lease
    return Ask("POST", "/v1/claims", lambda said: [claimed_of(job) for job in said["jobs"]], body, wait=wait)


def heartbeat(job: Claimed, lease: float | None, progress: float | None, note: str) -> Ask[Beat]:
    """Renew a lease."""
    said = {"lease": lease, "progress": progress}
    body = {name: value for name, value in said.items() if value is not None} | {"note": note}
    return _held(job, "heartbeat", _beat, body)


def checkpoint(job: Claimed, step: str, result: Any) -> Ask[str]:
    """Record a step."""
    return _held(job, "checkpoint", _state, {"step": step, "result": plain(result, f"The result of step {step!r}")})


def complete(job: Claimed, result: Any) -> Ask[str]:
    """End a job as succeeded."""
    return _held(job, "complete", _state, {"result": plain(result, "The result")})


def fail(job: Claimed, code: str, message: str, *, retryable: bool, traceback: str | None) -> Ask[str]:
    """Record a failed attempt."""
    body = {"code": code, "message": message, "retryable": retryable}
    return _held(job, "fail", _state, body | ({} if traceback is None else {"traceback": traceback}))


def release(job: Claimed, delay: float | None) -> Ask[str]:
    """Give a job back."""
    return _held(job, "release", _state, {} if delay is None else {"delay": seconds(delay, "delay")})


def ended(job: RemoteJob) -> bool:
    """Tell whether a job has ended."""
    return State(job.state) in TERMINAL


def result_of(job: RemoteJob) -> Any:
    """Give the result of a job that has ended; raises `JobDead` or `JobCancelled`."""
    if job.state == State.CANCELLED:
        msg = f"Job {job.id} was cancelled."
        raise JobCancelled(msg)
    if job.state == State.DEAD:
        said = () if job.failure is None else (job.failure.code, job.failure.message.removesuffix("."))
        why = f": {', '.join(filter(None, said))}" if said else ""
        msg = f"Job {job.id} is dead ({job.cause}){why}."
        raise JobDead(msg)
    return job.fields.get("result")


def late(job: RemoteJob, timeout: float | None) -> ResultTimeout:
    """Say that a job has not ended in time."""
    return ResultTimeout(f"Job {job.id} is still {job.state} after {timeout} s.")


def _held(job: Claimed, verb: str, read: Callable[[Any], T], body: Mapping[str, Any]) -> Ask[T]:
    return Ask("POST", f"/v1/jobs/{job.id}/{verb}", read, {"token": job.token, **body})


def _jobs(said: Any) -> list[RemoteJob]:
    return [job_of(one) for one in said["items"]]


def _state(said: Any) -> str:
    return str(said["state"])


def _beat(said: Any) -> Beat:
    return Beat(said["cancel_requested"], datetime.fromisoformat(said["expires_at"]))
