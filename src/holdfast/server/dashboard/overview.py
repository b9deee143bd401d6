"""The first page: how many jobs are where, how fast they move, and what has waited longest or died."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from holdfast.client.counts import Counts
from holdfast.domain.job import State
from holdfast.server.dashboard import looking, samples
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.rendering import Links, links_of
from holdfast.server.dashboard.session import Looker, Overseer, visitor_of
from holdfast.server.problems import Problem
from holdfast.server.surface import surface_of

_MOST_STREAMS = 100
_CHARTS_EVERY = 5
_SAID_EVERY = 30
"""Samples between two sentences for those who listen to the page."""
_CHECKED_EVERY = 15


def routes(panel: Panel) -> APIRouter:
    """Make the routes of the first page."""
    router = panel.router()
    streams: set[object] = set()

    @router.get("/")
    async def overview(request: Request, visitor: Looker) -> Response:
        if visitor.tenant is not None:
            return RedirectResponse(links_of(request)("jobs"), 303)
        panel.sampler.visit()
        return await asyncio.to_thread(_overview, panel, request, visitor)

    @router.get("/live")
    async def live(request: Request, visitor: Overseer) -> Response:  # noqa: ARG001 - it must be let in
        if len(streams) >= _MOST_STREAMS:
            detail = "Too many pages are watching; close some, or load this one again later."
            raise Problem(503, "too-many-streams", detail, {"Retry-After": "30"})
        return StreamingResponse(_watched(panel, request, streams), media_type="text/event-stream")

    return router


def _overview(panel: Panel, request: Request, visitor: Overseer) -> Response:
    counts = panel.app.counts()
    groups, _ = looking.dead_groups(panel.app, None) if counts[State.DEAD] else ([], False)
    kept = panel.sampler.samples
    return panel.page(
        request,
        visitor,
        "overview.html",
        "",
        counts=counts,
        groups=groups,
        oldest=looking.oldest_waiting(panel.app),
        since=kept[0].at if kept else None,
        said=_said(counts),
        trouble=panel.sampler.trouble,
        **_charts(panel),
    )


def _charts(panel: Panel) -> dict[str, Any]:
    kept = panel.sampler.samples
    return {"throughput": samples.throughput(kept), "latency": samples.latency(kept)}


def _said(counts: Counts) -> str:
    return ", ".join(f"{jobs:,} {state}" for state, jobs in counts.items() if jobs) or "No jobs."


async def _watched(panel: Panel, request: Request, streams: set[object]) -> AsyncIterator[str]:
    """Send the counters whenever there is a new sample, until the visitor leaves or may not look any more."""
    place, url, doorbell = object(), links_of(request), surface_of(request).doorbell
    streams.add(place)
    try:
        number = 0
        while not doorbell.closed:
            if number % _CHECKED_EVERY == 0:
                await visitor_of(request)
            panel.sampler.visit()
            await panel.sampler.wait()
            for event in _events(panel, url, number):
                yield event
            number += 1
    except Problem:
        return
    finally:
        streams.discard(place)


def _events(panel: Panel, url: Links, number: int) -> list[str]:
    kept, trouble = panel.sampler.samples, panel.sampler.trouble
    if not kept:
        return []
    counts = kept[-1].counts
    events = [_event("counters", panel.pages.text("counters.html", counts=counts, url=url, trouble=trouble))]
    if number % _CHARTS_EVERY == 0:
        events.append(_event("charts", panel.pages.text("charts.html", **_charts(panel))))
    if number and number % _SAID_EVERY == 0:
        events.append(_event("said", _said(counts)))
    return events


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() if line)
    return f"event: {name}\n{lines}\n"
