"""What the routes of one server share."""

from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from holdfast.app import Holdfast
from holdfast.client.outside import Outside
from holdfast.port.store import Store
from holdfast.server.cursors import Cursors
from holdfast.server.limits import Limits
from holdfast.server.pulse import Pulse, Readiness
from holdfast.server.rate import Rate
from holdfast.server.waiting import Doorbell, Watch
from holdfast.server.work import Workbench

JSON = "application/json"


class Surface:
    """One server: the application whose jobs it serves, how, and what its requests share."""

    def __init__(self, app: Holdfast, *, auth: bool, any_kind: bool, read_only: bool, limits: Limits) -> None:
        self.app = app
        self.auth = auth
        self.read_only = read_only
        self.limits = limits
        self.pulse = Pulse()
        self.rate = Rate(limits.rate, limits.burst)
        store: Callable[[], Store] = lambda: app.store  # noqa: E731 - opened at its first use, by whoever needs it
        self.cursors = Cursors(store)
        self.doorbell = Doorbell(store, self.pulse)
        self.watch = Watch(store, self.pulse)
        self.work = Workbench(app)
        self.outside = Outside(app.registry, any_kind=any_kind)
        self.readiness = Readiness(store, self.pulse)

    def close(self) -> None:
        """Let every request that waits for something go, now. Called on the event loop."""
        self.doorbell.close()
        self.watch.close()


def surface_of(request: Request) -> Surface:
    """Find the server that a request came to."""
    found: Surface = request.app.state.surface
    return found


def reply(value: Any, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(to_json(value), status, media_type=JSON)
