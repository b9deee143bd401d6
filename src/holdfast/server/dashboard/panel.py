"""What the pages of one dashboard share."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.app import Holdfast
from holdfast.server.dashboard import session
from holdfast.server.dashboard.rendering import Pages, links_of, page_route
from holdfast.server.dashboard.samples import Sampler
from holdfast.server.dashboard.session import Visitor


@dataclass(frozen=True, slots=True)
class Panel:
    """One dashboard: the application it shows, its templates and its samples."""

    app: Holdfast
    pages: Pages
    sampler: Sampler

    def router(self) -> APIRouter:
        """Make a place for routes that answer people."""
        return APIRouter(route_class=page_route(self.pages), include_in_schema=False)

    def page(self, request: Request, visitor: Visitor, template: str, here: str, **values: Any) -> Response:
        """Answer with a page; `here` is its place in the menu."""
        notice = session.told(request, visitor.cookie)
        text = self.pages.text(
            template,
            url=links_of(request),
            visitor=visitor,
            here=here,
            notice=notice,
            now=self.app.store.now(),
            **values,
        )
        response = HTMLResponse(text)
        if visitor.fresh:
            session.keep(request, response, session.COOKIE, visitor.cookie)
        if notice is not None:
            session.keep(request, response, session.NOTICE, "", 0)
        return response

    def done(self, request: Request, visitor: Visitor, path: str, text: str, *, trouble: bool = False) -> Response:
        """Go on to a page that says what was done."""
        response = RedirectResponse(links_of(request)(path), HTTPStatus.SEE_OTHER)
        session.tell(request, response, visitor.cookie, text, trouble=trouble)
        return response
