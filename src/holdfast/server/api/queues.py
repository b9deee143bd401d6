"""`/v1/queues` and `/v1/workers`: what waits where, who works, and the switches for it."""

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from holdfast.client import views
from holdfast.client.counts import Counts
from holdfast.client.registry import text
from holdfast.server.answers import Items, PausedAnswer, QueueAnswer, QueuesAnswer, WorkerAnswer
from holdfast.server.problems import responses
from holdfast.server.security import Chief, Overseer, record
from holdfast.server.surface import reply, surface_of

router = APIRouter(prefix="/v1", tags=["queues"])
Name = Annotated[str, Path(min_length=1, max_length=255)]


@router.get("/queues", summary="List queues", responses={200: {"model": QueuesAnswer}, **responses()})
def list_queues(request: Request, _principal: Overseer) -> Response:
    """List the queues that have jobs or are paused, with the numbers of their jobs by state."""
    app = surface_of(request).app
    counts, paused = app.counts(), app.paused()
    names = sorted(counts.queues.keys() | paused)
    return reply({"items": [_queue(name, counts, paused) for name in names], "counts": dict(counts)})


@router.get("/queues/{name:path}", summary="Read a queue", responses={200: {"model": QueueAnswer}, **responses(404)})
def read_queue(request: Request, _principal: Overseer, name: Name) -> Response:
    """Read a queue with the numbers of its jobs by state. A queue that nobody has used is an empty one."""
    app = surface_of(request).app
    return reply(_queue(text(name, "queue"), app.counts(), app.paused()))


@router.post(
    "/queues/{name:path}/pause", summary="Pause a queue", responses={200: {"model": PausedAnswer}, **responses(404)}
)
def pause(request: Request, principal: Chief, name: Name) -> Response:
    """Let no worker claim from a queue."""
    surface_of(request).app.pause(name)
    record(request, principal, "queue.pause", name)
    return reply({"name": name, "paused": True})


@router.post(
    "/queues/{name:path}/resume", summary="Resume a queue", responses={200: {"model": PausedAnswer}, **responses(404)}
)
def resume(request: Request, principal: Chief, name: Name) -> Response:
    """Let workers claim from a queue again."""
    surface_of(request).app.resume(name)
    record(request, principal, "queue.resume", name)
    return reply({"name": name, "paused": False})


@router.get("/workers", summary="List workers", responses={200: {"model": Items[WorkerAnswer]}, **responses()})
def list_workers(request: Request, _principal: Overseer) -> Response:
    """List the workers that are alive."""
    return reply({"items": [views.worker(each) for each in surface_of(request).app.store.workers()]})


def _queue(name: str, counts: Counts, paused: Collection[str]) -> dict[str, Any]:
    empty = dict.fromkeys(counts, 0)
    return {"name": name, "paused": name in paused, "counts": counts.queues.get(name, empty)}
