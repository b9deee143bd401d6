"""A small archive with everything in it that a page can show, made by the real engine: jobs in every state, workflows
that wait, a killed worker's job, schedules, credits and dead letters.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast import Context, Holdfast, Permanent, Retry
from holdfast.domain.job import State
from holdfast.domain.moments import HOUR
from holdfast.port.store import Claim
from tests.servers import until
from tests.workers import running

LONG = 20.0
_NOW = Retry.fixed(0, retries=1)
_LATER = Retry.fixed(3600, retries=4)


@dataclass
class Scene:
    """The application, and the jobs that tests go to by name."""

    app: Holdfast
    jobs: dict[str, str] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    """Lets the jobs end that run."""


@contextmanager
def opened(url: str) -> Iterator[Scene]:
    """Fill a store, and keep a worker busy on it."""
    scene = make(url)
    with closing(scene.app), running(scene.app, queues=["documents"], concurrency=3, worker_id="second:2:bbbbbb"):
        try:
            for number in range(2):
                scene.jobs["running"] = str(
                    scene.app.enqueue("render", {"document": f"{number}.pdf"}, tenant="acme").id
                )
            until(lambda: scene.app.get(scene.jobs["running"]).progress, "a job runs and tells how far it is")
            _govern(scene.app)
            yield scene
        finally:
            scene.gate.set()


def make(url: str) -> Scene:
    """Fill a store."""
    app = Holdfast(url, lease=60, upkeep=0.2)
    scene = Scene(app)
    _declare(scene)
    for day in range(12):
        app.enqueue("summary", {"day": f"2026-11-{day + 1:02}"}, tenant="acme", key=f"summary:7:2026-11-{day + 1:02}")
    for number in range(9):
        app.enqueue("deliver", {"url": f"https://example.org/{number}"}, tenant="globex" if number % 3 else "acme")
    for number in range(4):
        app.enqueue("ocr", {"document": f"scan-{number}.wpd"}, tenant="initech")
    scene.jobs["dead"] = str(app.enqueue("deliver", {"url": "https://example.org/gone"}, tenant="globex").id)
    scene.jobs["retrying"] = str(app.enqueue("fetch", {"document": "a.pdf"}, tenant="acme", user="ada").id)
    scene.jobs["succeeded"] = str(app.enqueue("ingest", {"payload": {"document": "b.pdf"}}, tenant="acme").id)
    scene.jobs["workflow"] = str(app.enqueue("fulfil", {"order": 7}, tenant="acme").id)
    app.grant("acme", 5_000)
    app.grant("globex", 800)
    with running(app, concurrency=8, worker_id="first:1:aaaaaa"):
        until(lambda: _settled(scene), "the archive is filled")
    for number in range(5):
        app.enqueue("summary", {"day": f"2026-12-{number + 1:02}"}, tenant="acme", credits=100)
    scene.jobs["waiting"] = str(app.enqueue("summary", {"day": "2026-12-30"}, tenant="umbrella", priority=-5).id)
    cancelled = app.enqueue("summary", {"day": "2026-12-31"}, tenant="acme")
    scene.jobs["cancelled"] = str(cancelled.cancel().id)
    app.enqueue("summary", {"day": "2027-01-01"}, tenant="acme", run_after=timedelta(days=3))
    app.schedules.add("nightly", app.prepare("summary", {"day": "today"}), cron="0 3 * * *", tz="Europe/Prague")
    app.schedules.add("poll", app.prepare("deliver", {"url": "https://example.org/poll"}), every=90)
    app.schedules.add("old report", app.prepare("summary", {"day": "yesterday"}), cron="0 4 * * MON")
    app.schedules.pause("old report")
    app.pause("webhooks")
    return scene


def _govern(app: Holdfast) -> None:
    """Set rules of every sort, and take so much that some are full."""
    app.limits.order("imports", order="fair", weights={"acme": 3, "globex": 2}, aging=timedelta(minutes=10))
    app.limits.order("documents", aging=90)
    app.limits.set("imports", concurrency=4, per="tenant")
    app.limits.set("imports", rate="100/min", burst=20)
    app.limits.set("documents", concurrency=2, full="replace")
    app.limits.set("documents", rate="5/h", burst=5, per="key")
    app.limits.set("*", concurrency=100)
    for tenant, jobs in {"acme": 5, "globex": 4, "initech": 2, "umbrella": 1}.items():
        app.enqueue_many([app.prepare("load", {"row": row}, tenant=tenant) for row in range(jobs)])
    app.store.claim(Claim("third:3:cccccc", "imports", HOUR, 100, {"imports": 100}))
    app.pause(tenant="hooli")
    app.pause(tenant="umbrella")
    app.pause(kind="deliver")


def _settled(scene: Scene) -> bool:
    counts = scene.app.counts()
    workflow = scene.app.explain(scene.jobs["workflow"]).reason == "signal"
    return workflow and not counts[State.QUEUED] and not counts[State.RUNNING] and counts[State.RETRYING] == 2


def _declare(scene: Scene) -> None:  # noqa: C901 - one function for each kind
    app = scene.app

    @app.job(queue="mail")
    def summary(day: str) -> str:
        return f"sent for {day}"

    @app.job(queue="imports")
    def load(row: int) -> int:
        return row

    @app.job(queue="webhooks", retry=_NOW)
    def deliver(url: str) -> None:
        raise ConnectionRefusedError(url)

    @app.job(queue="documents", retry=_NOW)
    def ocr(document: str) -> None:
        raise Permanent(f"no reader for {document}", code="unsupported_format")

    @app.job(queue="documents", retry=_LATER)
    def fetch(document: str) -> None:
        raise TimeoutError(document)

    @app.job(queue="documents")
    def render(document: str, ctx: Context) -> str:
        ctx.progress(0.4, "page 4 of 10")
        scene.gate.wait(10 * LONG)
        with suppress(Exception):
            ctx.progress(1.0, "done")
        return document

    def scan(payload: dict[str, str]) -> str:
        return payload["document"]

    def read(payload: dict[str, str]) -> int:
        return len(payload["document"])

    def store(payload: dict[str, str]) -> str:
        return "stored"

    app.pipeline("ingest", [scan, read, store], queue="documents")

    @app.job(queue="documents")
    def pick(item: str) -> str:
        return item

    @app.workflow(queue="orders")
    async def fulfil(order: int, ctx: Context) -> str:
        await ctx.step("charge", lambda number: f"charge of {number}", order, undo=lambda _: None)
        await ctx.sleep("cool-off", timedelta(milliseconds=1200))
        await ctx.gather([pick.prepare("hull"), pick.prepare("sail")])
        await ctx.step("pack", lambda: "packed")
        await ctx.wait_for("approval", timeout=timedelta(days=3))
        return "shipped"
