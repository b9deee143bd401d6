"""`/v1/schedules`: what is enqueued when, and the switches for it."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from holdfast.client import views
from holdfast.client.registry import text
from holdfast.domain.errors import ScheduleNotFound
from holdfast.server.answers import Items, JobAnswer, ScheduleAnswer
from holdfast.server.api.jobs import prepared
from holdfast.server.problems import responses
from holdfast.server.security import Chief, Overseer, record
from holdfast.server.shapes import ScheduleBody
from holdfast.server.surface import reply, surface_of

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])
Name = Annotated[str, Path(min_length=1, max_length=200)]


@router.get("", summary="List schedules", responses={200: {"model": Items[ScheduleAnswer]}, **responses()})
def list_schedules(request: Request, _principal: Overseer) -> Response:
    """List the stored schedules with the times they last fired for and fire next."""
    return reply({"items": [views.schedule(each) for each in surface_of(request).app.schedules.list()]})


@router.get("/{name:path}", summary="Read a schedule", responses={200: {"model": ScheduleAnswer}, **responses(404)})
def read_schedule(request: Request, _principal: Overseer, name: Name) -> Response:
    """Read a stored schedule."""
    for each in surface_of(request).app.schedules.list():
        if each.name == name:
            return reply(views.schedule(each))
    msg = f"There is no schedule {name!r}."
    raise ScheduleNotFound(msg)


@router.post(
    "",
    status_code=201,
    summary="Add a schedule",
    responses={201: {"model": ScheduleAnswer, "description": "The schedule is stored."}, **responses()},
)
def add(request: Request, principal: Chief, body: ScheduleBody) -> Response:
    """Store a schedule under a new name, with a cron line or a number of seconds."""
    surface = surface_of(request)
    job = prepared(surface, principal, body.job)
    added = surface.app.schedules.add(
        body.name, job, cron=body.cron, every=body.every, tz=body.tz, catch_up=body.catch_up
    )
    record(request, principal, "schedule.add", body.name, kind=added.kind)
    return reply(views.schedule(added), 201)


@router.post(
    "/{name:path}/pause", summary="Pause a schedule", responses={200: {"model": ScheduleAnswer}, **responses(404)}
)
def pause(request: Request, principal: Chief, name: Name) -> Response:
    """Fire a schedule no more until it is resumed."""
    paused = surface_of(request).app.schedules.pause(name)
    record(request, principal, "schedule.pause", name)
    return reply(views.schedule(paused))


@router.post(
    "/{name:path}/resume", summary="Resume a schedule", responses={200: {"model": ScheduleAnswer}, **responses(404)}
)
def resume(request: Request, principal: Chief, name: Name) -> Response:
    """Fire a paused schedule again, from its next time on."""
    resumed = surface_of(request).app.schedules.resume(name)
    record(request, principal, "schedule.resume", name)
    return reply(views.schedule(resumed))


@router.post(
    "/{name:path}/run",
    status_code=201,
    summary="Run a schedule's job now",
    responses={201: {"model": JobAnswer, "description": "The job is stored."}, **responses(402, 404, 409)},
)
def run(request: Request, principal: Chief, name: Name) -> Response:
    """Enqueue a schedule's job now; its times stay as they are."""
    job = surface_of(request).app.schedules.run(name)
    record(request, principal, "schedule.run", name, job=str(job.id))
    return reply(views.job(job.record, payload=False), 201)


@router.delete(
    "/{name:path}",
    status_code=204,
    summary="Remove a schedule",
    responses={204: {"description": "It is gone."}, **responses(404)},
)
def remove(request: Request, principal: Chief, name: Name) -> Response:
    """Forget a schedule; the jobs it has fired stay. One that code declares is back when a worker next starts."""
    surface_of(request).app.schedules.remove(text(name, "schedule's name"))
    record(request, principal, "schedule.remove", name)
    return Response(status_code=204)
