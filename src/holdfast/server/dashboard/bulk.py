"""What is done to several jobs at once: first the count is shown and confirmed, then exactly those jobs are changed."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from holdfast.domain.errors import BadInput, HoldfastError, IllegalMove
from holdfast.domain.ids import job_id
from holdfast.domain.move import LEGAL, Verb
from holdfast.server.dashboard import looking
from holdfast.server.dashboard.asked import LONGEST, Filtered, Text, within
from holdfast.server.dashboard.looking import BULK, Filter, Found
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.session import Looker, Operator, Visitor
from holdfast.server.problems import Problem
from holdfast.server.security import record

_VERBS = (Verb.CANCEL, Verb.REDRIVE)


def routes(panel: Panel) -> APIRouter:
    """Make the routes of the confirmation and of what follows it."""
    router = panel.router()

    @router.get("/confirm")
    def confirm(
        request: Request,
        visitor: Looker,
        asked: Filtered,
        *,
        verb: Text,
        id: Annotated[list[str] | None, Query(max_length=BULK)] = None,  # noqa: A002 - the job's own word
        cause: Text = "",
        back: Text = "",
    ) -> Response:
        if not visitor.operates:
            raise Problem(403, "scope-missing", "Your token may look and not change; use one with the scope 'operate'.")
        chosen = _verb(verb)
        found = _chosen(panel, visitor, asked, id)
        meant = [job for job in found.jobs if cause in ("", job.cause)]
        if not meant:
            return panel.done(request, visitor, _back(back, None), "No job was selected.", trouble=True)
        jobs = [job for job in meant if job.state in LEGAL[chosen]]
        return panel.page(
            request,
            visitor,
            "confirm.html",
            "jobs",
            verb=chosen.value,
            jobs=jobs,
            passed=len(meant) - len(jobs),
            more=found.next is not None,
            about=sorted(Counter((job.kind, job.state.value) for job in jobs).items()),
            back=_back(back, id),
        )

    @router.post("/bulk")
    def bulk(
        request: Request,
        visitor: Operator,
        verb: Annotated[str, Form(max_length=LONGEST)],
        ids: Annotated[str, Form(max_length=BULK * 40)],
        back: Annotated[str, Form(max_length=LONGEST)] = "",
    ) -> Response:
        chosen = _verb(verb)
        wanted = [job_id(each) for each in ids.split(",")]
        done, missed = _do(panel, visitor, chosen, wanted)
        if done:
            target = done[0] if len(done) == 1 else f"{len(done)} jobs"
            record(request, visitor.principal, f"job.{chosen}", target, ids=done if len(done) > 1 else None)
        return panel.done(
            request, visitor, _back(back, wanted), _sentence(chosen, len(done), missed), trouble=bool(missed)
        )

    return router


def _verb(text: str) -> Verb:
    if text not in _VERBS:
        msg = f"{text[:40]!r} is not done to several jobs; cancel and redrive are."
        raise BadInput(msg)
    return Verb(text)


def _chosen(panel: Panel, visitor: Visitor, asked: Filter, ids: Sequence[str] | None) -> Found:
    """Find the jobs that were selected one by one, or else those that pass the filter."""
    if ids:
        read = panel.app.store.read(sorted({job_id(each) for each in ids}))
        visible = [job for job in read if job is not None and visitor.tenant in (None, job.tenant)]
        return Found(visible, None, None)
    if not asked.given:
        return Found([], None, None)
    return looking.look(panel.app, within(visitor, asked).query(limit=BULK))


def _do(panel: Panel, visitor: Visitor, verb: Verb, ids: Sequence[str]) -> tuple[list[str], int]:
    """Do something to jobs, one by one and each guarded; give those it was done to, and the number of the others."""
    done: list[str] = []
    for id_ in ids:
        try:
            (job,) = panel.app.store.read([id_])
            if job is None or visitor.tenant not in (None, job.tenant) or job.state not in LEGAL[verb]:
                continue
            _act(panel, verb, id_)
        except IllegalMove:
            continue
        except HoldfastError:
            if not done:
                raise
            break
        done.append(id_)
    return done, len(ids) - len(done)


def _act(panel: Panel, verb: Verb, id_: str) -> None:
    if verb is Verb.CANCEL:
        panel.app.cancel(id_)
    else:
        panel.app.redrive(id_)


def _sentence(verb: Verb, done: int, missed: int) -> str:
    jobs = "1 job was" if done == 1 else f"{done:,} jobs were"
    others = "" if not missed else f"; {missed:,} could not be, and {'is' if missed == 1 else 'are'} unchanged"
    if verb is Verb.CANCEL:
        return f"{jobs} cancelled, or asked to stop{others}."
    return f"{jobs} redriven{others}."


def _back(back: str, ids: Sequence[str] | None) -> str:
    """Say where to go on: only to pages of our own."""
    if back == "dead":
        return "dead"
    if back in ("", "jobs"):
        return f"jobs/{job_id(ids[0])}" if ids is not None and len(ids) == 1 else "jobs"
    return f"jobs/{job_id(back.removeprefix('jobs/'))}"
