"""How the flow of jobs is governed, for people: what the pages show of it, and the pauses of tenants and kinds.

A pause holds jobs back in every queue, so it is confirmed first; that something goes on again is not.
"""

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response

from holdfast.client import governed
from holdfast.client.limits import able, refuse_unable
from holdfast.client.registry import text
from holdfast.domain.errors import BadInput
from holdfast.server.dashboard.asked import LONGEST, Text
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.session import Chief, Overseer
from holdfast.server.problems import Problem
from holdfast.server.security import record

_QUEUES = 100
"""The most queues with rules that one page looks at."""
_BACK = {"tenant": "tenants", "kind": "queues"}
"""Where each sort of thing that can be paused is shown."""
Word = Annotated[str, Form(max_length=LONGEST)]


def look(panel: Panel, tenant: str | None = None) -> governed.Flow | None:
    """Look at the rules and what is in use of them; None if the store has no flow control."""
    store = panel.app.store
    return governed.flow(store, tenant=tenant, most=_QUEUES) if able(store) else None


def full(flow: governed.Flow) -> frozenset[str]:
    """Name the queues that are full as a whole, whosever jobs wait; `*` stands for all."""
    return frozenset(
        queue.queue for queue in flow.queues for each in queue.limits if each.limit.per == "queue" and each.full
    )


def kinds(panel: Panel, flow: governed.Flow, most: int) -> list[tuple[str, bool]]:
    """Name the kinds that are paused, and then those that are declared here or that workers say they know; tell whether
    they are paused.
    """
    told = (kind for worker in panel.app.store.workers() for kind in worker.kinds)
    paused = sorted(flow.paused.kinds)
    others = sorted({*panel.app.registry, *told} - flow.paused.kinds)
    return [(kind, kind in flow.paused.kinds) for kind in (*paused, *others)][:most]


def routes(panel: Panel) -> APIRouter:
    """Make the routes of the pauses of tenants and kinds."""
    router = panel.router()

    @router.get("/hold")
    def confirm(request: Request, visitor: Overseer, what: Text = "", which: Text = "") -> Response:
        if not visitor.operates:
            raise Problem(403, "scope-missing", "Your token may look and not change; use one with the scope 'operate'.")
        back = _back(what)
        refuse_unable(panel.app.store)
        named = text(which.strip(), what)
        return panel.page(request, visitor, "hold.html", back, what=what, which=named, back=back)

    @router.post("/hold")
    def hold(request: Request, visitor: Chief, what: Word, which: Word, verb: Word) -> Response:
        back = _back(what)
        if verb not in ("pause", "resume"):
            msg = f"{verb[:40]!r} is not done to a {what}; pause and resume are."
            raise BadInput(msg)
        (panel.app.pause if verb == "pause" else panel.app.resume)(**{what: which})
        record(request, visitor.principal, f"{what}.{verb}", which)
        return panel.done(request, visitor, back, f"The {what} {which!r} was {verb}d.")

    return router


def _back(what: str) -> str:
    if what not in _BACK:
        msg = f"{what[:40]!r} is not paused here; tenants and kinds are."
        raise BadInput(msg)
    return _BACK[what]
