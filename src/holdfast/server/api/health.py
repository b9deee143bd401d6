"""`/healthz`, `/readyz`, `/metrics`: whether the server is up, whether it can do its work, and its figures."""

import importlib.util

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from holdfast.server.answers import HealthAnswer, ReadyAnswer
from holdfast.server.problems import Problem, responses
from holdfast.server.security import Overseer
from holdfast.server.surface import reply, surface_of

router = APIRouter(tags=["health"])
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/healthz", summary="Is the server up?", responses={200: {"model": HealthAnswer}})
async def health() -> Response:
    """Answer, if the process does."""
    return reply({"status": "ok"})


@router.get(
    "/readyz",
    summary="Can the server do its work?",
    responses={200: {"model": ReadyAnswer}, 503: {"model": ReadyAnswer, "description": "Not now."}},
)
def ready(request: Request) -> Response:
    """Tell whether the store can be reached and how long ago each loop last got through a round."""
    told = surface_of(request).readiness.told()
    return reply(told, 200 if told["status"] == "ready" else 503)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Figures for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **responses(404)},
)
def metrics(request: Request, _principal: Overseer) -> Response:
    """Give the figures in Prometheus' text format."""
    if importlib.util.find_spec("holdfast.server.metrics") is None:
        raise Problem(404, "no-metrics", "This server has no figures to give.")
    from holdfast.server.metrics import render

    return Response(render(surface_of(request).app), media_type=_TEXT)
