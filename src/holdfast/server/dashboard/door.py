"""The way in and out, and what browsers fetch besides pages."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.server.dashboard import session
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.rendering import HERE, MENU, links_of
from holdfast.server.dashboard.session import Looker
from holdfast.server.problems import Problem
from holdfast.server.surface import surface_of

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_KEPT = "public, max-age=31536000, immutable"
Text = Annotated[str, Form(max_length=1000)]


def routes(panel: Panel) -> APIRouter:
    """Make the routes of the door."""
    router = panel.router()
    files = {file.name: file.read_bytes() for file in (HERE / "static").iterdir() if file.suffix in _TYPES}

    @router.get("/login")
    async def enter(request: Request, next: Annotated[str, Query(max_length=1000)] = "") -> Response:  # noqa: A002
        if not surface_of(request).auth:
            return RedirectResponse(links_of(request)(), HTTPStatus.SEE_OTHER)
        return _form(panel, request, next)

    @router.post("/login")
    async def login(request: Request, token: Text = "", word: Text = "", next: Text = "") -> Response:  # noqa: A002
        session.same_origin(request)
        session.known(session.cookie_of(request), word)
        principal = await panel.app.tokens.acheck(token.strip())
        if principal is None:
            return _form(panel, request, next, "The token is not valid: unknown, expired or revoked.")
        if not principal.may("read"):
            return _form(panel, request, next, "The token lacks the scope 'read' that the dashboard takes.")
        response = RedirectResponse(links_of(request)(_own(next)), HTTPStatus.SEE_OTHER)
        session.keep(request, response, session.COOKIE, await session.begin(request, principal))
        return response

    @router.post("/logout")
    async def logout(request: Request, visitor: Looker, word: Text = "") -> Response:
        session.same_origin(request)
        session.known(visitor.cookie, word)
        await session.finish(request)
        response = RedirectResponse(links_of(request)("login"), HTTPStatus.SEE_OTHER)
        session.keep(request, response, session.COOKIE, "", 0)
        return response

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise Problem(404, "not-found", "There is no such file.")
        media = _TYPES[f".{name.rpartition('.')[2]}"]
        return Response(files[name], media_type=media, headers={"Cache-Control": _KEPT})

    return router


def _form(panel: Panel, request: Request, then: str, trouble: str = "") -> Response:
    cookie = session.cookie_of(request) or session.new_cookie()
    text = panel.pages.text(
        "login.html", url=links_of(request), word=session.word_of(cookie), next=then, trouble=trouble
    )
    response = HTMLResponse(text, HTTPStatus.UNAUTHORIZED if trouble else HTTPStatus.OK)
    session.keep(request, response, session.COOKIE, cookie)
    return response


def _own(then: str) -> str:
    """Say where to go after logging in: only to a page of our own."""
    first = then.partition("?")[0].partition("/")[0]
    return then if first in {path for path, _ in MENU if path} else ""
