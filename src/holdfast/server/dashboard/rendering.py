"""Pages made of templates: every value escaped, every answer with the headers that keep others out."""

import hashlib
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import State
from holdfast.server import problems
from holdfast.server.dashboard import charts, words
from holdfast.server.problems import Problem

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MENU = (
    ("", "Overview"),
    ("jobs", "Jobs"),
    ("dead", "Dead letters"),
    ("queues", "Queues"),
    ("schedules", "Schedules"),
    ("workers", "Workers"),
    ("tenants", "Tenants"),
    ("trail", "Audit trail"),
)
OWN = frozenset({"jobs", "dead", "tenants"})
"""The pages that a principal of one tenant may see, with what is that tenant's own."""


class Links:
    """The addresses of one dashboard, which may be mounted anywhere."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def __call__(self, path: str = "", /, **query: str | int | None) -> str:
        """Give the address of a page, with what is given of a query."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.root}/{path}" + (f"?{urlencode(given)}" if given else "")


class Pages:
    """The templates of the dashboard."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "number": words.number,
            "span": words.span,
            "lasting": words.lasting,
            "micros": words.micros,
            "absolute": words.absolute,
            "iso": words.iso,
            "short": words.short,
        }
        self._templates.globals |= {
            "relative": words.relative,
            "share": charts.share,
            "states": [state.value for state in State],
            "menu": MENU,
            "own": OWN,
            "stamp": _stamp(),
        }

    def text(self, template: str, **values: Any) -> str:
        """Render a template."""
        return self._templates.get_template(template).render(values)


def _stamp() -> str:
    """Name this version of what browsers keep, so that they fetch it again when it has changed."""
    digest = hashlib.sha256()
    for file in sorted((HERE / "static").iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def links_of(request: Request) -> Links:
    """Give the addresses as whoever asks must write them."""
    return Links(str(request.scope.get("root_path", "")))


def is_partial(request: Request) -> bool:
    """Tell whether a script asks for a part of a page."""
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-Boosted") != "true"


def page_route(pages: Pages) -> type[APIRoute]:
    """Make the kind of route that answers people: errors are pages too."""

    class PageRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    response = await handler(request)
                except Problem as problem:
                    response = _refusal(pages, request, problem)
                except HoldfastError as error:
                    response = _refusal(pages, request, problems.told(error))
                except RequestValidationError as error:
                    response = _refusal(pages, request, problems.invalid(error.errors()))
                for name, value in HEADERS.items():
                    response.headers.setdefault(name, value)
                response.headers.setdefault("Cache-Control", "no-store")
                return response

            return answer

    return PageRoute


def _refusal(pages: Pages, request: Request, problem: Problem) -> Response:
    """Tell a person, or a script that asked for a part of a page, why not."""
    url = links_of(request)
    login = problem.status_code == HTTPStatus.UNAUTHORIZED
    if is_partial(request):
        part = HTMLResponse(pages.text("refusal.html", problem=problem), problem.status_code, problem.headers)
        if login:
            part.headers["HX-Redirect"] = url("login")
        return part
    if login and request.method == "GET":
        here = request.url.path.removeprefix(url.root).lstrip("/") + (
            f"?{request.url.query}" if request.url.query else ""
        )
        return RedirectResponse(url("login", next=here), HTTPStatus.SEE_OTHER)
    phrase = HTTPStatus(problem.status_code).phrase
    page = pages.text("problem.html", problem=problem, phrase=phrase, url=url)
    return HTMLResponse(page, problem.status_code, problem.headers)
