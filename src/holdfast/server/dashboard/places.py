"""The pages about all that is not a single job: dead letters, queues, schedules, workers, tenants and the trail."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from holdfast.domain.errors import BadInput
from holdfast.domain.job import Account, State
from holdfast.domain.limits import ALL
from holdfast.port.store import Query as Wanted
from holdfast.server.dashboard import flow as flows
from holdfast.server.dashboard import looking, samples, words
from holdfast.server.dashboard.looking import NEWEST
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.samples import Rate, Tide
from holdfast.server.dashboard.session import Chief, Looker, Overseer, Visitor
from holdfast.server.security import record

_ROWS = 200
"""The most rows of a page that has no paging."""
_TRAIL = 100
Name = Annotated[str, Form(max_length=255)]


@dataclass(frozen=True, slots=True)
class Row:
    """One queue."""

    queue: str
    paused: bool
    full: bool
    """A limit of the whole queue, or of all queues, is used up."""
    tide: Tide
    dead: int
    rate: Rate | None
    since: int | None
    """Since when its oldest job has been due."""


def routes(panel: Panel) -> APIRouter:
    """Make the routes of these pages."""
    router = panel.router()

    @router.get("/dead")
    def dead(request: Request, visitor: Looker) -> Response:
        groups, more = looking.dead_groups(panel.app, visitor.tenant)
        return panel.page(request, visitor, "dead.html", "dead", groups=groups[:_ROWS], more=more, newest=NEWEST)

    @router.get("/queues")
    async def queues(request: Request, visitor: Overseer) -> Response:
        panel.sampler.visit()
        return await asyncio.to_thread(_queues, panel, request, visitor)

    @router.post("/queues")
    def govern(request: Request, visitor: Chief, queue: Name, verb: Name) -> Response:
        if verb not in ("pause", "resume"):
            msg = f"{verb[:40]!r} is not done to queues; pause and resume are."
            raise BadInput(msg)
        (panel.app.pause if verb == "pause" else panel.app.resume)(queue)
        record(request, visitor.principal, f"queue.{verb}", queue)
        return panel.done(request, visitor, "queues", f"The queue {queue!r} was {verb}d.")

    @router.get("/schedules")
    def schedules(request: Request, visitor: Overseer) -> Response:
        found = panel.app.schedules.list()[:_ROWS]
        timed = [(each, words.micros(each.next_at), words.micros(each.last_at)) for each in found]
        return panel.page(request, visitor, "schedules.html", "schedules", schedules=timed)

    @router.post("/schedules")
    def arrange(request: Request, visitor: Chief, name: Name, verb: Name) -> Response:
        said = _arranged(panel, name, verb)
        record(request, visitor.principal, f"schedule.{verb}", name)
        return panel.done(request, visitor, "schedules", said)

    @router.get("/workers")
    def workers(request: Request, visitor: Overseer) -> Response:
        found, held = panel.app.store.workers(), looking.held(panel.app)
        known = {worker.id for worker in found}
        orphans = [job for owner, jobs in held.items() if owner not in known for job in jobs]
        return panel.page(
            request, visitor, "workers.html", "workers", workers=found[:_ROWS], held=held, orphans=orphans[:20]
        )

    @router.get("/tenants")
    def tenants(request: Request, visitor: Looker) -> Response:
        flow = flows.look(panel, visitor.tenant)
        held = frozenset[str]() if flow is None else flow.paused.tenants
        newest = looking.look(panel.app, Wanted(tenant=visitor.tenant, limit=NEWEST)).jobs
        accounts = _accounts(panel, visitor)
        return panel.page(
            request,
            visitor,
            "tenants.html",
            "tenants",
            shares=looking.tenant_shares(newest, held)[:_ROWS],
            looked=len(newest),
            flow=flow,
            held=held,
            accounts=accounts[:_ROWS],
            more=len(accounts[_ROWS:]),
        )

    @router.get("/trail")
    def trail(request: Request, visitor: Overseer, before: Annotated[str, Query(max_length=64)] = "") -> Response:
        entries = panel.app.trail.list(_TRAIL, before or None)
        following = entries[-1].id if len(entries) == _TRAIL else None
        return panel.page(request, visitor, "trail.html", "trail", entries=entries, before=before, next=following)

    return router


def _queues(panel: Panel, request: Request, visitor: Visitor) -> Response:
    flow = flows.look(panel)
    rows = _rows(panel, frozenset() if flow is None else flows.full(flow))
    shown, more = rows[:_ROWS], len(rows[_ROWS:])
    kinds = [] if flow is None else flows.kinds(panel, flow, _ROWS)
    return panel.page(request, visitor, "queues.html", "queues", rows=shown, more=more, flow=flow, kinds=kinds)


def _rows(panel: Panel, full: frozenset[str]) -> list[Row]:
    """Put together what is known of each queue; a paused one is shown though it be empty."""
    counts, paused, due = panel.app.counts(), panel.app.paused(), panel.app.store.due_since()
    rates = samples.rates(panel.sampler.samples)
    none = dict.fromkeys((state.value for state in State), 0)
    return [
        Row(
            queue,
            queue in paused,
            not full.isdisjoint((queue, ALL)),
            samples.tide(states),
            states[State.DEAD],
            rates.get(queue),
            due.get(queue),
        )
        for queue in sorted({*counts.queues, *paused})
        for states in (counts.queues.get(queue, none),)
    ]


def _arranged(panel: Panel, name: str, verb: str) -> str:
    match verb:
        case "run":
            job = panel.app.schedules.run(name)
            return f"The schedule {name!r} was run: job {job.id}."
        case "pause":
            panel.app.schedules.pause(name)
        case "resume":
            panel.app.schedules.resume(name)
        case _:
            msg = f"{verb[:40]!r} is not done to schedules; run, pause and resume are."
            raise BadInput(msg)
    return f"The schedule {name!r} was {verb}d."


def _accounts(panel: Panel, visitor: Visitor) -> Sequence[Account]:
    if visitor.tenant is None:
        return panel.app.accounts()
    own = panel.app.account(visitor.tenant) if visitor.tenant else None
    return [] if own is None else [own]
