"""What operators do to jobs: cancel, redrive, signal, fork; one by one, or dead ones by a filter. Each is recorded."""

import asyncio
import time
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from holdfast.client import views
from holdfast.client.job import Job
from holdfast.client.tokens import Principal
from holdfast.server.answers import JobAnswer, RedrivenAnswer
from holdfast.server.api.jobs import carried, chosen
from holdfast.server.problems import responses
from holdfast.server.security import Operator, record, seen
from holdfast.server.shapes import LONGEST_WAIT, ForkBody, RedriveBody, SignalBody
from holdfast.server.surface import Surface, reply, surface_of

router = APIRouter(prefix="/v1", tags=["operations"])
_SECOND = 1.0


@router.post("/jobs/{id}/cancel", summary="Cancel a job", responses={200: {"model": JobAnswer}, **responses(404, 409)})
def cancel(request: Request, principal: Operator, id: UUID) -> Response:  # noqa: A002 - the job's own word
    """Cancel a job: at once while it waits, by asking its worker while it runs. One that has ended stays as it is."""
    surface = _walled(request, principal, id)
    return _done(request, principal, "job.cancel", surface.app.cancel(id))


@router.post(
    "/jobs/{id}/redrive", summary="Redrive a job", responses={200: {"model": JobAnswer}, **responses(404, 409)}
)
def redrive(request: Request, principal: Operator, id: UUID) -> Response:  # noqa: A002 - the job's own word
    """Run a dead job again as a new generation. One that waits or runs already stays as it is."""
    surface = _walled(request, principal, id)
    job = surface.app.redrive(id)
    return _done(request, principal, "job.redrive", job)


@router.post("/jobs/{id}/signal", summary="Signal a job", responses={200: {"model": JobAnswer}, **responses(404, 409)})
def signal(request: Request, principal: Operator, id: UUID, body: SignalBody) -> Response:  # noqa: A002
    """Send a job a signal that it waits for, now or later."""
    surface = _walled(request, principal, id)
    carried(surface, body.payload, "The payload of the signal")
    job = surface.app.signal(id, body.name, body.payload)
    return _done(request, principal, "job.signal", job, name=body.name)


@router.post(
    "/jobs/{id}/fork",
    status_code=201,
    summary="Fork a job",
    responses={201: {"model": JobAnswer, "description": "The new job is stored."}, **responses(404, 409)},
)
def fork(request: Request, principal: Operator, id: UUID, body: ForkBody) -> Response:  # noqa: A002
    """Run a job again as a new one from one of its recorded steps on."""
    surface = _walled(request, principal, id)
    job = surface.app.fork(id, body.step)
    return _done(request, principal, "job.fork", job, status=201, of=str(id), step=body.step)


@router.post("/dead/redrive", summary="Redrive dead jobs", responses={200: {"model": RedrivenAnswer}, **responses()})
async def redrive_dead(request: Request, principal: Operator, body: RedriveBody) -> Response:
    """Run dead jobs again that a filter finds, newest first, no more than `per_second` of them in any second. It takes
    half a minute at most; `more` says whether to ask again.
    """
    surface = surface_of(request)
    found = chosen(principal, body.tenant, kind=body.kind, queue=body.queue, error_code=body.error_code)
    done, end, more = 0, time.monotonic() + LONGEST_WAIT, True
    while True:
        step = body.limit - done if body.per_second is None else min(body.per_second, body.limit - done)
        began, some = time.monotonic(), await surface.app.aredrive(**found, limit=step)
        done += some
        more = some == step
        if not more or done >= body.limit or time.monotonic() + _SECOND > end or await request.is_disconnected():
            break
        await asyncio.sleep(max(0.0, began + _SECOND - time.monotonic()))
    await asyncio.to_thread(record, request, principal, "dead.redrive", "dead jobs", redriven=done, **found)
    return reply({"redriven": done, "more": more})


def _walled(request: Request, principal: Principal, id_: UUID) -> Surface:
    """Let nobody touch another tenant's job."""
    surface = surface_of(request)
    (job,) = surface.app.store.read([str(id_)])
    seen(principal, str(id_), job)
    return surface


def _done(
    request: Request, principal: Principal, what: str, job: Job[Any], *, status: int = 200, **detail: Any
) -> Response:
    record(request, principal, what, str(job.id), state=job.state, **detail)
    return reply(views.job(job.record, payload=False), status)
