"""`/v1/jobs`: enqueue jobs, one or many; read and list them, and what has become of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from holdfast.client import views
from holdfast.client.function import Prepared
from holdfast.client.job import Job
from holdfast.client.registry import text
from holdfast.client.timeline import timeline
from holdfast.client.tokens import Principal
from holdfast.domain import codec, dialects
from holdfast.domain.job import TERMINAL, JobRecord, NewJob, State
from holdfast.server.answers import (
    AttemptAnswer,
    BriefAnswer,
    HappeningAnswer,
    Items,
    JobAnswer,
    Page,
    StepAnswer,
    StoredAnswer,
    WhyAnswer,
)
from holdfast.server.problems import Problem, responses
from holdfast.server.security import Enqueuer, Reader, own_tenant, seen, shielded
from holdfast.server.shapes import LARGEST_PAGE, LONGEST_WAIT, BatchBody, NewJobBody
from holdfast.server.surface import JSON, Surface, reply, surface_of

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
Dialect = Literal["contract", "idempotency", "scheduled", "lifecycle", "leasing"]
StateName = Literal["created", "queued", "running", "retrying", "succeeded", "dead", "cancelled"]
Name = Annotated[str, Query(min_length=1, max_length=255)]
Words = Annotated[Dialect | None, Query(description="Tell it in the field names and states of another vocabulary.")]
Shown = JobAnswer | dict[str, Any]
"""A job; or, in a dialect, the record of that."""
_HUGE = 1 << 40
_AFTER_PAYLOAD = NewJob._fields.index("payload") + 1
assert set(StateName.__args__) == {state.value for state in State}  # type: ignore[attr-defined]


@router.post(
    "",
    status_code=201,
    summary="Enqueue a job",
    responses={
        201: {"model": StoredAnswer, "description": "The job is stored."},
        200: {"model": StoredAnswer, "description": "The key existed already; this is its job."},
        **responses(402, 409),
    },
)
async def enqueue(request: Request, principal: Enqueuer, body: NewJobBody) -> Response:
    """Store a job; it is durable when this answers. With a `key`, the same job is stored once however often it is
    asked for, and asking again is safe whatever happened.
    """
    surface = surface_of(request)
    job = await surface.app._aenqueue(prepared(surface, principal, body))  # noqa: SLF001 - as decorated functions do
    return reply(_stored(job), 200 if job.duplicate else 201)


@router.post(
    "/batch",
    status_code=201,
    summary="Enqueue many jobs",
    responses={
        201: {"model": Items[BriefAnswer], "description": "All jobs are stored."},
        200: {"model": Items[BriefAnswer], "description": "All keys existed already; these are their jobs."},
        **responses(402, 409),
    },
)
def enqueue_many(request: Request, principal: Enqueuer, body: BatchBody) -> Response:
    """Store up to a thousand jobs together, or none of them."""
    surface = surface_of(request)
    batch = [prepared(surface, principal, each) for each in body.jobs]
    jobs = surface.app.enqueue_many(batch)
    return Response(_told(jobs), 200 if all(job.duplicate for job in jobs) else 201, media_type=JSON)


@router.get("", summary="List jobs", responses={200: {"model": Page[Shown]}, **responses()})
def list_jobs(  # one parameter for each thing to filter by
    request: Request,
    principal: Reader,
    *,
    state: Annotated[StateName | None, Query(description="Jobs in this state.")] = None,
    kind: Annotated[Name | None, Query(description="Jobs of this kind.")] = None,
    queue: Annotated[Name | None, Query(description="Jobs of this queue.")] = None,
    tenant: Annotated[str | None, Query(max_length=255, description="Its jobs; empty for jobs without one.")] = None,
    error_code: Annotated[Name | None, Query(description="Jobs whose last failure has this code.")] = None,
    key: Annotated[Name | None, Query(description="The jobs that have this key, one of each tenant.")] = None,
    parent: Annotated[UUID | None, Query(description="The children of this job.")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="The most jobs of one page.")] = 50,
    dialect: Words = None,
) -> Response:
    """List jobs, newest first, without their payloads. `next` is the cursor of the page that follows."""
    surface = surface_of(request)
    question: dict[str, Any] = {
        "state": state,
        "parent": parent,
        **chosen(principal, tenant, kind=kind, queue=queue, error_code=error_code, key=key),
    }
    before = None if cursor is None else surface.cursors.read(cursor, question)
    found = [job.record for job in surface.app.find(**question, before=before, limit=limit)]
    more = surface.cursors.make(found[-1].id, question) if len(found) == limit else None
    return reply({"items": [_shown(surface, job, dialect) for job in found], "next": more})


@router.get("/{id}", summary="Read a job", responses={200: {"model": Shown}, **responses(404, 410)})
async def read_job(
    request: Request,
    principal: Reader,
    id: UUID,  # noqa: A002 - the job's own word
    *,
    dialect: Words = None,
    payload: Annotated[bool, Query(description="Whether to give payload and result.")] = True,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for its end.")] = 0,
) -> Response:
    """Read a job with its payload and result, unless `payload=false` leaves them out. With `wait`, the answer comes
    when the job has ended, or after so many seconds.
    """
    surface, id_ = surface_of(request), str(id)
    job = seen(principal, id_, await surface.work.read(id_))
    if wait and job.state not in TERMINAL:
        await surface.watch.ended(id_, wait)
        job = seen(principal, id_, await surface.work.read(id_))
    fields = _shown(surface, job, dialect)
    if payload:
        fields |= await _contents(surface, job, dialect)
    return reply(fields)


@router.get(
    "/{id}/attempts",
    summary="List a job's attempts",
    responses={200: {"model": Items[AttemptAnswer]}, **responses(404)},
)
def list_attempts(
    request: Request,
    principal: Reader,
    id: UUID,  # noqa: A002 - the job's own word
    *,
    traceback: Annotated[bool, Query(description="Whether to give the tracebacks.")] = False,
) -> Response:
    """List the attempts of a job, oldest first, the running or successful one included."""
    app, job = surface_of(request).app, _read(request, principal, id)
    return reply({"items": [views.attempt(each, traceback=traceback) for each in app.attempts(job.id)]})


@router.get(
    "/{id}/steps", summary="List a job's steps", responses={200: {"model": Items[StepAnswer]}, **responses(404)}
)
def list_steps(
    request: Request,
    principal: Reader,
    id: UUID,  # noqa: A002 - the job's own word
    *,
    payload: Annotated[bool, Query(description="Whether to give the results.")] = False,
) -> Response:
    """List the recorded steps of a job, in order; with `payload=true` their results as well."""
    app, job = surface_of(request).app, _read(request, principal, id)
    steps = app.steps(job.id)
    if payload:
        load = app.settings.artifacts.load
        steps = [each._replace(result=None if each.result is None else load(each.result)) for each in steps]
    return reply({"items": [views.step(each, payload=payload) for each in steps]})


@router.get(
    "/{id}/history",
    summary="Tell a job's history",
    responses={200: {"model": Items[HappeningAnswer]}, **responses(404)},
)
def history(request: Request, principal: Reader, id: UUID) -> Response:  # noqa: A002 - the job's own word
    """List what has happened to a job, oldest first."""
    app, job = surface_of(request).app, _read(request, principal, id)
    told = timeline(job, app.attempts(job.id), app.steps(job.id), app.signals(job.id))
    return reply({"items": [each._asdict() | {"at": views.time(each.at)} for each in told]})


@router.get("/{id}/why", summary="Why is it not running?", responses={200: {"model": WhyAnswer}, **responses(404)})
def why(request: Request, principal: Reader, id: UUID) -> Response:  # noqa: A002 - the job's own word
    """Say why a job is not running."""
    app, job = surface_of(request).app, _read(request, principal, id)
    because = shielded(principal, app.explain(job.id))
    return reply({"id": job.id, "state": job.state.value, **asdict(because)})


def chosen(principal: Principal, tenant: str | None, **names: str | None) -> dict[str, str | None]:
    """Check what jobs are to be found by, within the walls of the principal's tenant."""
    own = own_tenant(principal, tenant)
    checked = {name: None if value is None else text(value, name) for name, value in names.items()}
    return {"tenant": text(own, "tenant") if own else own, **checked}


def prepared(surface: Surface, principal: Principal, body: NewJobBody) -> Prepared:
    """Validate a job that is asked for."""
    choices = body.choices()
    tenant = own_tenant(principal, body.tenant)
    if tenant:
        choices["tenant"] = tenant
    payload = carried(surface, body.payload, "The payload")
    return surface.outside.prepare(body.kind, payload, surface.app.max_payload, choices)


def carried(surface: Surface, value: Any, what: str) -> str:
    """Turn what a request carries into JSON text, if it is not too large."""
    written = codec.encode(value, what, _HUGE)
    if len(written) > surface.limits.payload and len(written.encode()) > surface.limits.payload:
        detail = f"{what} is larger than the {surface.limits.payload:,} bytes that this server takes."
        raise Problem(413, "too-large", f"{detail} Keep it elsewhere and send a reference.")
    return written


def _told(jobs: Sequence[Job[Any]]) -> bytes:
    """Write what is said of jobs that were stored together. Most differ in their ids alone, and the rest is written
    once.
    """
    items: list[bytes] = []
    model: tuple[Any, ...] = ()
    rest = b""
    for job in jobs:
        stored = job.stored
        if stored is None:
            items.append(to_json(views.brief(job.record) | {"duplicate": job.duplicate}))
            continue
        like = (stored.at, stored.new.kind, *stored.new[_AFTER_PAYLOAD:])
        if like != model:
            model = like
            rest = to_json(views.brief(stored.job) | {"duplicate": False}).partition(b",")[2]
        items.append(b'{"id":"%b",%b' % (stored.id.encode(), rest))
    return b'{"items":[%b]}' % b",".join(items)


def _stored(job: Job[Any]) -> dict[str, Any]:
    return views.job(job.record, payload=False) | {"duplicate": job.duplicate}


def _shown(surface: Surface, job: JobRecord, dialect: str | None) -> dict[str, Any]:
    if dialect is None:
        return views.job(job, payload=False)
    shown = dialects.dialect(dialect).render(job, surface.app.store.now())
    return {name: value for name, value in shown.items() if name != "payload"}


async def _contents(surface: Surface, job: JobRecord, dialect: str | None) -> Mapping[str, Any]:
    """Give a job's payload and result, from wherever they are kept; in a dialect, what that has a field for."""
    load = surface.app.settings.artifacts.aload
    if dialect is not None:
        return {"payload": await load(job.payload)} if "payload" in dialects.dialect(dialect).fields else {}
    result = None if job.result is None else json.loads(await load(job.result))
    return {"payload": json.loads(await load(job.payload)), "result": result}


def _read(request: Request, principal: Principal, id_: UUID) -> JobRecord:
    (job,) = surface_of(request).app.store.read([str(id_)])
    return seen(principal, str(id_), job)
