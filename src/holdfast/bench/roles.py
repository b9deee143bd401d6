"""The processes of a benchmark: `python -m holdfast.bench.roles ROLE NUMBER`, on the store that BENCH_URL names.

`work` is a worker as a user would start one, with default options; `loop` is the store's own exchange with no worker
around it; `send` enqueues one job after the other. A store that one process keeps to itself is filled by that process
(NUMBER of jobs for `work`, BENCH_FILL for `loop`), which then says itself what its records tell.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.bench.processes import say
from holdfast.client.function import JobFunction
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention, State
from holdfast.domain.moments import MINUTE, Micros
from holdfast.domain.move import Move
from holdfast.port.clock import SystemClock
from holdfast.port.store import Claim, Query, Store

WARM_UP = 20
GAP = 0.02
"""Seconds between two jobs when latency is measured."""
_PAGE = 1_000


class Span(NamedTuple):
    """What the records of some finished jobs say."""

    jobs: int
    first: Micros
    """When the first of them was claimed."""
    last: Micros
    """When the last outcome was recorded."""


class Application(NamedTuple):
    """The application under test, as a user would write it."""

    app: Holdfast
    add: JobFunction[[int, int], int]
    stamp: JobFunction[[int], None]


def application(url: str) -> Application:
    """Make it."""
    app = Holdfast(url)

    @app.job(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.job(name="stamp")
    def stamp(seq: int) -> None:
        say(seq=seq, started=time.time())

    return Application(app, add, stamp)


def fill(url: str, jobs: int) -> None:
    """Make the store, if it is not there yet, and enqueue jobs that do next to nothing."""
    made = application(url)
    try:
        made.app.counts()
        _fill(made, jobs)
    finally:
        made.app.close()


def _fill(made: Application, jobs: int) -> None:
    made.app.enqueue_many([made.add.prepare(n, n) for n in range(jobs)])


def span(store: Store, jobs: int) -> Span:
    """Read the records of the newest jobs that succeeded, this many at the most."""
    seen, first, last = 0, 2**63, 0
    before: str | None = None
    while seen < jobs:
        page = store.find(Query(State.SUCCEEDED, before=before, limit=min(_PAGE, jobs - seen)))
        if not page:
            break
        seen += len(page)
        first = min(first, *(job.claimed_at or first for job in page), first)
        last = max(last, *(job.finished_at or 0 for job in page), last)
        before = page[-1].id
    return Span(seen, first, last)


def ready() -> None:
    """Say that all is in place, and wait for the word."""
    say(ready=True)
    sys.stdin.readline()


def work(made: Application, own: int) -> None:
    """Run a worker until told to stop; with jobs of its own, until they are done."""
    app = made.app
    if own:
        _fill(made, own)
    service = app.service()
    clock = SystemClock()
    ahead = app.store.now() - clock.now()
    if not own:
        app.close()  # a worker has connections of its own
    ready()
    began, cpu = clock.now() + ahead, time.process_time()
    _beside(lambda: _obey(service.stop))
    if own:
        _beside(lambda: _stop_after(app, own, service.stop))
    service.run()
    told = span(app.store, own)._asdict() if own else {}
    say(began=began, cpu=time.process_time() - cpu, **told)


def loop(store: Store, batch: int) -> None:
    """Complete and claim in batches until there is nothing left."""
    ready()
    _beside(lambda: _obey(lambda: None))
    began = store.now()
    owner, retention = f"loop:{os.getpid()}", Retention()
    moves: list[Move] = []
    while True:
        _, jobs = store.exchange(moves, Claim(owner, secrets.token_hex(8), MINUTE, batch))
        if not jobs:
            break
        moves = [lifecycle.complete(job, "2", retention) for job in jobs]
    own = int(os.environ.get("BENCH_FILL", "0"))
    say(began=began, **(span(store, own)._asdict() if own else {}))


def send(made: Application, jobs: int) -> None:
    """Enqueue at a steady pace, and say when each call was made and when it returned."""
    ready()
    pause = threading.Event()
    due = time.perf_counter()
    for seq in range(-WARM_UP, jobs):
        due = max(due + GAP, time.perf_counter())
        pause.wait(due - time.perf_counter())
        called = time.time()
        made.stamp.enqueue(seq)
        returned = time.time()
        if seq >= 0:
            say(seq=seq, called=called, returned=returned)


def _stop_after(app: Holdfast, jobs: int, stop: Callable[[], None]) -> None:
    pause = threading.Event()
    while app.counts()["succeeded"] < jobs:
        pause.wait(0.01)
    stop()


def _obey(stop: Callable[[], None]) -> None:
    """Stop when told to; leave at once when the benchmark is gone, which held the other end."""
    while sys.stdin.readline():
        stop()
    os._exit(0)


def _beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def main(role: str, number: int) -> None:
    """Play a role."""
    made = application(os.environ["BENCH_URL"])
    try:
        match role:
            case "work":
                work(made, number)
            case "loop":
                _fill(made, int(os.environ.get("BENCH_FILL", "0")))
                loop(made.app.store, number)
            case _:
                send(made, number)
    finally:
        made.app.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
