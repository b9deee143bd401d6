"""`/v1/trail`: who did what, and when."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from holdfast.client import views
from holdfast.server.answers import DeedAnswer, Page
from holdfast.server.problems import responses
from holdfast.server.security import Admin
from holdfast.server.shapes import LARGEST_PAGE
from holdfast.server.surface import reply, surface_of

router = APIRouter(prefix="/v1/trail", tags=["trail"])


@router.get("", summary="List what was done", responses={200: {"model": Page[DeedAnswer]}, **responses()})
def list_deeds(
    request: Request,
    _principal: Admin,
    *,
    cursor: Annotated[str | None, Query(max_length=100, description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="The most deeds of one page.")] = 50,
) -> Response:
    """List what operators and admins did, newest first."""
    surface = surface_of(request)
    question = {"of": "trail"}
    before = None if cursor is None else surface.cursors.read(cursor, question)
    deeds = surface.app.trail.list(limit, before)
    more = surface.cursors.make(deeds[-1].id, question) if len(deeds) == limit else None
    return reply({"items": [each._asdict() | {"at": views.time(each.at)} for each in deeds], "next": more})
