"""The pages about jobs: the list, and one job with all that is known of it."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.client import timeline
from holdfast.domain import codec
from holdfast.domain.ids import job_id
from holdfast.domain.job import NOTE, PLAIN, TERMINAL, JobRecord
from holdfast.domain.move import LEGAL, Verb
from holdfast.server.dashboard import looking, stories, words
from holdfast.server.dashboard.asked import Filtered, Text, within
from holdfast.server.dashboard.looking import BULK
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.rendering import is_partial, links_of
from holdfast.server.dashboard.session import Looker, Visitor
from holdfast.server.security import seen, shielded

_HAPPENINGS = 100
"""The most that is told of one job; of more, the first and the last half."""
_ATTEMPTS = 50


def routes(panel: Panel) -> APIRouter:
    """Make the routes of these pages."""
    router = panel.router()

    @router.get("/jobs")
    def jobs(
        request: Request,
        visitor: Looker,
        asked: Filtered,
        before: Text = "",
        id: Text = "",  # noqa: A002 - the job's own word
    ) -> Response:
        if id:
            return RedirectResponse(links_of(request)(f"jobs/{job_id(id.strip())}"), 303)
        asked = within(visitor, asked)
        found = looking.look(panel.app, asked.query(before=before or None))
        shown = asked if visitor.tenant is None else asked._replace(tenant="")
        return panel.page(request, visitor, "jobs.html", "jobs", filter=shown, found=found, before=before, bulk=BULK)

    @router.get("/jobs/{id}")
    def job(request: Request, visitor: Looker, id: str) -> Response:  # noqa: A002 - the job's own word
        found = _read(panel, visitor, id)
        return panel.page(request, visitor, "job.html", "jobs", **_told(panel, visitor, found))

    @router.get("/jobs/{id}/payload")
    def payload(request: Request, visitor: Looker, id: str) -> Response:  # noqa: A002 - the job's own word
        found = _read(panel, visitor, id)
        shown = [("Payload", words.pretty(_loaded(panel, found.payload)))]
        if found.result is not None:
            shown.append(("Result", words.pretty(_loaded(panel, found.result))))
        if is_partial(request):
            return HTMLResponse(panel.pages.text("payload.html", shown=shown))
        return panel.page(request, visitor, "payload_page.html", "jobs", job=found, shown=shown)

    return router


def _read(panel: Panel, visitor: Visitor, id_: str) -> JobRecord:
    wanted = job_id(id_)
    (found,) = panel.app.store.read([wanted])
    return seen(visitor.principal, wanted, found)


def _loaded(panel: Panel, stored: str) -> object:
    return codec.decode(panel.app.settings.artifacts.load(stored))


def _told(panel: Panel, visitor: Visitor, job: JobRecord) -> dict[str, Any]:
    """Gather what is shown of one job."""
    app, now = panel.app, panel.app.store.now()
    attempts, notes = app.attempts(job.id), app.store.steps(job.id)
    steps = [step for step in notes if not step.name.startswith(NOTE)]
    why = shielded(visitor.principal, app.explain(job.id))
    happenings = timeline.timeline(job, attempts, steps, app.signals(job.id))
    cut = max(len(happenings) - _HAPPENINGS, 0)
    if cut:
        happenings = happenings[: _HAPPENINGS // 2] + happenings[-_HAPPENINGS // 2 :]
    stretches = stories.stretches(job, attempts)
    bars = stories.waterfall(job, attempts, notes, why.text)
    return {
        "job": job,
        "flow": job.flow or PLAIN,
        "ended": job.state in TERMINAL,
        "may": {"cancel": job.state in LEGAL[Verb.CANCEL], "redrive": job.state in LEGAL[Verb.REDRIVE]},
        "why": why,
        "retries": words.delays(job.retry, job.max_attempts),
        "progress": app.get(job.id).progress,
        "attempts": attempts[-_ATTEMPTS:],
        "happenings": happenings,
        "cut": cut,
        "stretches": list(zip(stretches, _laid(stretches, now), strict=True)),
        "bars": list(zip(bars, _laid(bars, now), strict=True)),
    }


def _laid(times: Sequence[stories.Stretch | stories.Bar], now: int) -> list[stories.Place]:
    return stories.places([(each.begin, each.end) for each in times], now)
