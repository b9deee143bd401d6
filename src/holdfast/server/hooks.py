"""`/v1/hooks/{name}`: requests that other programs sign become jobs; `client.hooks` checks and enqueues them.

No bearer token is asked for: the signature is the credential. A hook that does not exist answers as if the signature
were wrong.
"""

import time
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from holdfast.app import Holdfast
from holdfast.client.sinks.signature import SIGNATURE
from holdfast.domain.errors import BadSignature
from holdfast.server.problems import Problem, responses
from holdfast.server.surface import reply, surface_of

_CHALLENGE = {"WWW-Authenticate": SIGNATURE}


class ReceivedAnswer(BaseModel):
    """The job that a request has become."""

    id: str = Field(examples=["0199e3a4-5b6c-7d8e-9f01-23456789abcd"])
    duplicate: bool = Field(description="The same signed request came before, and has its job already.")


_SIGNED = {
    "parameters": [
        {
            "name": SIGNATURE,
            "in": "header",
            "required": True,
            "description": "`t=` the time in seconds since 1970, `,v1=` the HMAC-SHA256 in hex of that time, a full "
            "stop and the body, under the hook's secret. A hook may be declared with another header's name.",
            "schema": {"type": "string"},
            "example": "t=1794805200,v1=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        }
    ],
    "requestBody": {
        "required": True,
        "description": "The payload of the job, as its kind takes it.",
        "content": {"application/json": {"schema": {}, "example": {"ref": "refs/heads/main"}}},
    },
    "security": [],
}


def router(app: Holdfast) -> APIRouter:
    """Give the route of all hooks; raises `BadInput` if the secret of one cannot be read."""
    app.hooks.check()
    routes = APIRouter(prefix="/v1/hooks", tags=["hooks"])
    routes.add_api_route(
        "/{name}",
        receive,
        methods=["POST"],
        status_code=201,
        summary="Send a hook",
        openapi_extra=_SIGNED,
        responses={
            201: {"model": ReceivedAnswer, "description": "The job is stored."},
            200: {"model": ReceivedAnswer, "description": "The request came before; this is its job."},
            **responses(402, 409),
        },
    )
    return routes


async def receive(request: Request, name: Annotated[str, Path(max_length=100)]) -> Response:
    """Enqueue the job of a hook, with the body as its payload, if the request is signed with the hook's secret. The
    same signed request is one job, however often it is sent.
    """
    surface = surface_of(request)
    if surface.read_only:
        raise Problem(403, "read-only", "This server only shows; nothing can be changed through it.")
    _hold_back(request)
    try:
        received = await surface.app.hooks.areceive(name, request.headers, await request.body())
    except BadSignature as refused:
        raise Problem(401, "bad-signature", str(refused), _CHALLENGE) from refused
    answer = {"id": received.job_id, "duplicate": received.duplicate}
    return reply(answer, 200 if received.duplicate else 201)


def _hold_back(request: Request) -> None:
    """Take no more requests from one address than the server's rate."""
    address = request.client.host if request.client else ""
    wait = surface_of(request).rate.take(f"address {address}", time.monotonic())
    if wait:
        detail = f"There are too many requests; wait {wait:.1f} s."
        raise Problem(429, "too-many-requests", detail, {"Retry-After": str(ceil(wait))})
