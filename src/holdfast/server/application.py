"""The parts of the server put together: routes, errors, limits, dashboard; and the description of all routes."""

import importlib.util
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import Holdfast
from holdfast.domain.errors import HoldfastError
from holdfast.server import api, problems
from holdfast.server.gate import Gate
from holdfast.server.limits import Limits
from holdfast.server.problems import Problem, ProblemBody
from holdfast.server.surface import Surface

_ABOUT = """\
Durable jobs over HTTP: enqueue them, watch them, and run them with workers in any language.

Every error is `application/problem+json` with a stable `code` and a sentence. A request that ends with 503 may be asked
again: a job with a `key` is stored once however often it is asked for, and whoever settles a job again under the same
token is answered as before.
"""


_TOKEN = {"type": "http", "scheme": "bearer", "description": "A token made by `holdfast tokens create`."}


class Application(FastAPI):
    """The server as an ASGI application."""

    def openapi(self) -> dict[str, Any]:
        """Describe all routes, with the shape of problems and the way of tokens, which no route names itself."""
        if self.openapi_schema is None:
            described = super().openapi()
            parts = described.setdefault("components", {})
            parts.setdefault("schemas", {})["ProblemBody"] = ProblemBody.model_json_schema()
            parts["securitySchemes"] = {"token": _TOKEN}
            for route in (each for path in described["paths"].values() for each in path.values()):
                if "401" in route["responses"]:
                    route.setdefault("security", [{"token": []}])
        return super().openapi()


def build(
    app: Holdfast,
    *,
    auth: bool,
    dashboard: bool,
    any_kind: bool,
    read_only: bool,
    hosts: tuple[str, ...] | None,
    limits: Limits,
) -> FastAPI:
    """Make the ASGI application; see `holdfast.server.asgi`."""
    served = Application(title="Holdfast", version="1", description=_ABOUT, docs_url=None, redoc_url=None)
    served.state.surface = Surface(app, auth=auth, any_kind=any_kind, read_only=read_only, limits=limits)
    served.add_middleware(Gate, hosts=hosts, limits=limits)
    served.add_exception_handler(Problem, problems.answered)
    served.add_exception_handler(HoldfastError, problems.answered)
    served.add_exception_handler(RequestValidationError, _invalid)
    served.add_exception_handler(HTTPException, _refused)
    for router in api.routers():
        served.include_router(router)
    for module, wanted in (("hooks", True), ("dashboard", dashboard)):
        if wanted and importlib.util.find_spec(f"holdfast.server.{module}") is not None:
            part = importlib.import_module(f"holdfast.server.{module}")
            if hasattr(part, "router"):
                served.include_router(part.router(app))
    return served


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problems.invalid(error.errors()).response()


async def _refused(_request: Request, error: Exception) -> Response:
    """Tell what the framework itself refuses: paths and methods that there are not, bodies that are not JSON."""
    assert isinstance(error, HTTPException)
    said = {
        404: ("not-found", "There is nothing at this address; the API is under /v1 and described in /openapi.json."),
        405: ("method-not-allowed", "This address takes other methods; see the Allow header."),
        400: ("bad-json", "The body is not JSON that can be read."),
    }
    code, detail = said.get(error.status_code, ("refused", f"{HTTPStatus(error.status_code).phrase}."))
    return Problem(error.status_code, code, detail, error.headers).response()
