"""The worker protocol: claim jobs, keep their leases, say what came of them. In any language that speaks HTTP.

Everything that is said of a job carries the token of its lease. A stale one is answered with 409 and the reason:
`already-claimed` if the job may be another's by now, `no-op-terminal` if it has ended.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from holdfast.client import views
from holdfast.client.durable import checked_name
from holdfast.client.registry import queue_name, text
from holdfast.client.tokens import Principal
from holdfast.domain import codec, lifecycle
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import duration
from holdfast.domain.move import Answer, Held, Move
from holdfast.server.answers import BeatAnswer, ClaimsAnswer, SettledAnswer
from holdfast.server.api.jobs import carried
from holdfast.server.problems import responses
from holdfast.server.security import Worker
from holdfast.server.shapes import (
    CheckpointBody,
    ClaimBody,
    CompleteBody,
    FailBody,
    HeartbeatBody,
    HeldBody,
    ReleaseBody,
)
from holdfast.server.surface import Surface, reply, surface_of
from holdfast.server.waiting import Group, Stand
from holdfast.server.work import LONGEST_MESSAGE, Taken, accept

router = APIRouter(prefix="/v1", tags=["workers"])
_LONGEST_TRACEBACK = 16_000


@router.post("/claims", summary="Claim jobs", responses={200: {"model": ClaimsAnswer}, **responses()})
async def claim(request: Request, principal: Worker, body: ClaimBody) -> Response:
    """Lease jobs that are due, best first; if the token is bound to a tenant, that tenant's alone. If there are none,
    wait for some as long as `wait` says. A job that is not heartbeat, settled or released before its lease ends is
    given to another worker.
    """
    surface = surface_of(request)
    owner = text(body.worker, "worker")
    queues = None if body.queues is None else [queue_name(each, "leave queues out for all") for each in body.queues]
    kinds = [text(each, "kind") for each in body.kinds]
    lease = surface.app.settings.lease if body.lease is None else duration(body.lease, "lease")
    host = request.client.host if request.client else ""

    def look() -> list[Taken]:
        surface.work.roll.asks(owner, host, queues, kinds, room=body.limit, now=time.monotonic())
        return surface.work.claim(owner, queues, body.limit, lease, principal.tenant)

    who = Group(None if queues is None else tuple(sorted(set(queues))), principal.tenant)
    taken = await (_awaited(request, surface, who, body.wait, look) if body.wait else asyncio.to_thread(look))
    return reply({"jobs": [_given(each) for each in taken]})


@router.post(
    "/jobs/{id}/heartbeat", summary="Keep a lease", responses={200: {"model": BeatAnswer}, **responses(402, 404, 409)}
)
async def heartbeat(request: Request, principal: Worker, id: UUID, body: HeartbeatBody) -> Response:  # noqa: A002
    """Renew the lease of a job, and say how far it is. Send one well before `expires_at`."""
    surface = surface_of(request)
    lease = surface.app.settings.lease if body.lease is None else duration(body.lease, "lease")
    progress = None if body.progress is None else codec.encode([body.progress, _plain(body.note)], "The progress")
    answer, ends = await asyncio.to_thread(surface.work.beat, str(id), _held(body), lease, progress, principal.tenant)
    accept(answer, str(id))
    return reply({"cancel_requested": answer is Answer.CANCEL_REQUESTED, "expires_at": views.time(ends)})


@router.post(
    "/jobs/{id}/checkpoint",
    summary="Record a step",
    responses={200: {"model": SettledAnswer}, **responses(402, 404, 409)},
)
async def checkpoint(request: Request, principal: Worker, id: UUID, body: CheckpointBody) -> Response:  # noqa: A002
    """Record that a step is done, with its result; whoever claims the job later is told of it. A step that is on
    record already stays as it is.
    """
    surface, step = surface_of(request), checked_name(body.step)
    result = await _kept(surface, body.result, f"The result of step {step!r}")
    return await _settled(
        request, principal, id, body, lambda job: lifecycle.checkpoint(job, step, result, spend=body.spend)
    )


@router.post(
    "/jobs/{id}/complete",
    summary="Complete a job",
    responses={200: {"model": SettledAnswer}, **responses(402, 404, 409)},
)
async def complete(request: Request, principal: Worker, id: UUID, body: CompleteBody) -> Response:  # noqa: A002
    """End a job as succeeded."""
    surface = surface_of(request)
    result = await _kept(surface, body.result, "The result")
    retention = surface.app.settings.retention
    return await _settled(
        request, principal, id, body, lambda job: lifecycle.complete(job, result, retention, spend=body.spend)
    )


@router.post(
    "/jobs/{id}/fail", summary="Fail a job", responses={200: {"model": SettledAnswer}, **responses(402, 404, 409)}
)
async def fail(request: Request, principal: Worker, id: UUID, body: FailBody) -> Response:  # noqa: A002
    """Record a failed attempt. The job is tried again after its policy's delay, unless it has no attempts left or
    `retryable` is false: then it is dead.
    """
    work, code = surface_of(request).work, text(body.code, "code")
    trace = None if body.traceback is None else _keepable(body.traceback)[-_LONGEST_TRACEBACK:]
    message = _plain(body.message)[:LONGEST_MESSAGE]
    return await _settled(
        request,
        principal,
        id,
        body,
        lambda job: work.fail(job, code, message, retryable=body.retryable, traceback=trace),
    )


@router.post(
    "/jobs/{id}/release",
    summary="Give a job back",
    responses={200: {"model": SettledAnswer}, **responses(402, 404, 409)},
)
async def release(request: Request, principal: Worker, id: UUID, body: ReleaseBody) -> Response:  # noqa: A002
    """Give a job back; the attempt is returned. A worker that hears of a cancellation does the same, and the job is
    cancelled.
    """
    delay = None if body.delay is None else duration(body.delay, "delay")
    return await _settled(
        request,
        principal,
        id,
        body,
        lambda job: lifecycle.release(job) if delay is None else lifecycle.snooze(job, delay),
    )


async def _awaited(
    request: Request, surface: Surface, who: Group, wait: float, look: Callable[[], list[Taken]]
) -> list[Taken]:
    """Look for work until there is some, the time is over or the caller has gone; then nothing stays claimed."""
    end = time.monotonic() + wait
    gone = asyncio.ensure_future(_gone(request))
    stand = surface.doorbell.stand(who)
    try:
        taken = await asyncio.to_thread(look)
        while not taken and await _rung(surface, stand, gone, end - time.monotonic()):
            surface.doorbell.answer(stand)
            taken = await asyncio.to_thread(look)
        if taken:
            surface.doorbell.pass_on(stand.group)
        if taken and gone.done():
            await asyncio.to_thread(surface.work.give_back, taken)
        return taken
    finally:
        surface.doorbell.leave(stand)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _rung(surface: Surface, stand: Stand, gone: "asyncio.Future[None]", left: float) -> bool:
    """Wait for a reason to look again; false if there is none to wait any longer."""
    if left <= 0 or surface.doorbell.closed or gone.done():
        return False
    ring: asyncio.Future[Any] = asyncio.ensure_future(stand.rung.wait())
    await asyncio.wait({ring, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    ring.cancel()
    return stand.rung.is_set() and not surface.doorbell.closed and not gone.done()


async def _gone(request: Request) -> None:
    """Wait until the caller hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _settled(
    request: Request, principal: Principal, id_: UUID, body: HeldBody, decide: Callable[[JobRecord], Move]
) -> Response:
    state = await surface_of(request).work.settle(str(id_), _held(body), decide, principal.tenant)
    return reply({"id": str(id_), "state": state.value})


async def _kept(surface: Surface, value: Any, what: str) -> str | None:
    """Give a result as it is to be stored."""
    return None if value is None else await surface.app.settings.artifacts.akeep(carried(surface, value, what), what)


def _held(body: HeldBody) -> Held:
    number, _, lease_id = body.token.partition(".")
    return Held(int(number), lease_id)


def _given(taken: Taken) -> dict[str, Any]:
    job = taken.job
    names = (
        "id", "kind", "queue", "tenant", "attempt", "max_attempts", "generation", "priority", "trace_id", "key",
    )  # fmt: skip
    lease = job.lease
    assert lease is not None
    return {name: getattr(job, name) for name in names} | {
        "created_at": views.time(job.created_at),
        "payload": json.loads(taken.payload),
        "steps": [{"name": each.name, "result": _value(each.result)} for each in taken.steps],
        "lease": {
            "token": str(lease),
            "lease_id": lease.id,
            "owner": lease.owner,
            "expires_at": views.time(lease.expires_at),
        },
    }


def _value(text_: str | None) -> Any:
    return None if text_ is None else json.loads(text_)


def _plain(said: str) -> str:
    """Give a short text as it can be shown anywhere."""
    return "".join(each if each.isprintable() else " " for each in said[: 2 * LONGEST_MESSAGE])


def _keepable(said: str) -> str:
    return said.encode(errors="replace").decode().replace("\x00", "\\x00")
