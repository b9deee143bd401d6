"""The dashboard: how long each page takes with a million jobs in the store, as a browser on this machine sees it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx

from holdfast import Holdfast
from holdfast.bench.lines import Line
from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, NewJob, Retention
from holdfast.domain.moments import SECOND
from holdfast.port.store import Claim
from holdfast.server import Limits, serve

GOAL = 100.0
"""Milliseconds."""
_ROUNDS = 15
_BATCH = 5_000
_KINDS = ("resize", "notify", "index")
_PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs, one state": "/jobs?state=succeeded",
    "jobs, one of a thousand": "/jobs?tenant=t77",
    "jobs, nothing found": "/jobs?kind=nothing",
    "dead letters": "/dead",
    "queues": "/queues",
    "workers": "/workers",
    "tenants": "/tenants",
    "audit trail": "/trail",
    "confirmation": "/confirm?verb=redrive&state=dead",
}


def lines(folder: Path, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Fill a store, and ask for every page."""
    jobs = 100_000 if short else 1_000_000
    with closing(Holdfast(f"sqlite:///{folder}/dashboard.db")) as app:
        tell(f"storing {jobs:,} jobs")
        _fill(app, jobs)
        tell("asking for pages")
        serving = serve(app, port=0, auth=False, limits=Limits(rate=1e9, burst=1e9))
        try:
            with httpx.Client(base_url=serving.address, timeout=60) as browser:
                pages = _PAGES | {"one job": f"/jobs/{app.find(state='dead', limit=1)[0].id}"}
                for name, path in pages.items():
                    what = f"dashboard: {name}, {jobs:,} jobs"
                    yield Line(what, _milliseconds(browser, path), None, "ms", GOAL, larger_is_better=False)
        finally:
            serving.stop()
            serving.join()


def _milliseconds(browser: httpx.Client, path: str) -> float:
    spans = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        browser.get(path).raise_for_status()
        spans.append((time.perf_counter() - begun) * 1_000)
    return statistics.median(spans)


def _fill(app: Holdfast, jobs: int) -> None:
    """Store jobs of a thousand tenants; let four of ten end, one in fifty of these dead."""
    store, ids = app.store, app._inserting()
    for first in range(0, jobs, _BATCH):
        made = [
            NewJob(_KINDS[n % 3], '{"n": 1}', queue=f"q{n % 10}", tenant=f"t{n % 1000}", max_attempts=1)
            for n in range(first, first + _BATCH)
        ]
        store.insert([list(zip(ids.take(_BATCH), made, strict=True))])
    retention, failure = Retention(), Failure("timeout", "took too long", retryable=True)
    for number in range(jobs * 4 // 10 // _BATCH):
        claimed = store.claim(Claim("bench", f"lease-{number}", 60 * SECOND, _BATCH))
        store.commit(
            [
                lifecycle.complete(job, None, retention)
                if place % 50
                else lifecycle.fail(job, failure, retention=retention, draw=0.0)
                for place, job in enumerate(claimed)
            ]
        )
