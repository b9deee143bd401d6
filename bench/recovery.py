"""A server that crashes under load: how fast one worker is before, and from five to ten seconds after it is back."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.peers.server import own
from bench.rows import generate
from holdfast.app import Holdfast
from holdfast.bench.lines import Line, typical
from holdfast.bench.measures import opened, role
from holdfast.bench.place import place
from holdfast.bench.processes import Crew, crew
from holdfast.bench.roles import fill
from holdfast.domain.errors import StoreUnavailable

_WATCHED = 5.0
"""Seconds over which a rate is taken; and after the server's return, seconds before that."""
_LOOK = 0.05


class Sizes(NamedTuple):
    """How much is done."""

    jobs: int = 4_000_000
    crashes: int = 3


SHORT = Sizes(1_500_000, 1)


def lines(tell: Callable[[str], None], sizes: Sizes) -> Iterator[Line]:
    """Crash a server of our own, again and again."""
    rates: list[tuple[float, float]] = []
    with own() as server, place(server.address) as where, where.fresh() as url:
        tell(f"writing {sizes.jobs:,} waiting jobs")
        fill(url, 0)
        generate(url, "queued", sizes.jobs)
        with opened(url) as made, crew(role("work", 0), {"BENCH_URL": url}) as worker:
            worker.go()
            _pass(_WATCHED)
            for number in range(1, sizes.crashes + 1):
                before = _rate(made.app, worker)
                tell(f"crash {number} of {sizes.crashes}")
                server.stop("immediate")
                server.start()
                _pass(_WATCHED)
                rates.append((_rate(made.app, worker), before))
            assert list(made.app.store.check()) == []
    yield Line("drain, 5 to 10 s after a crash of the server, against before", *typical(rates), "jobs/s", 0.95)


def _rate(app: Holdfast, worker: Crew) -> float:
    """Take the rate over some seconds, all of which must have had work."""
    began, done = time.monotonic(), _done(app)
    _pass(_WATCHED)
    rate = (_done(app) - done) / (time.monotonic() - began)
    worker.check()
    assert app.counts()["queued"], "there was not enough to do"
    return rate


def _done(app: Holdfast) -> int:
    while True:
        try:
            return app.counts()["succeeded"]
        except StoreUnavailable:
            _pass(_LOOK)


def _pass(seconds: float) -> None:
    threading.Event().wait(seconds)
