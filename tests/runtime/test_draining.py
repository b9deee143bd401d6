"""A worker that drains: what others hold is waited for, but not for ever."""

import threading
import time
from contextlib import closing
from pathlib import Path

from holdfast import Holdfast
from holdfast.port.store import Claim
from tests.workers import LONG, Working

SECOND = 1_000_000


def test_what_a_dead_worker_held_is_done_before_a_drain_ends(app: Holdfast) -> None:
    @app.job
    def work() -> str:
        return "done"

    job = work.enqueue()
    (held,) = app.store.claim(Claim("dead", "lease", SECOND, 10))
    assert held.id == str(job.id)
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"


def test_a_drain_does_not_wait_for_a_queue_that_it_does_not_serve(app: Holdfast) -> None:
    @app.job(queue="elsewhere")
    def work() -> None: ...

    job = work.enqueue()
    app.store.claim(Claim("busy", "lease", 3600 * SECOND, 10))
    app.run_worker(queues=["here"], until_idle=True)
    assert job.refresh().state == "running"


def test_a_drain_ends_though_another_worker_is_at_work_for_long(tmp_path: Path, working: Working) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    busy, draining = (Holdfast(url, lease=1, heartbeat=0.2, upkeep=0.05) for _ in range(2))
    begun, ended = threading.Event(), threading.Event()

    @busy.job
    def long() -> None:
        begun.set()
        ended.wait(LONG)

    draining.job(name="long")(long.function)
    job = long.enqueue()
    with working(busy):
        assert begun.wait(LONG)
        draining.run_worker(until_idle=True)
        assert job.refresh().state == "running"
        ended.set()
        assert job.result(LONG) is None
    busy.close()
    draining.close()


def test_a_drain_of_quick_jobs_ends_when_the_last_is_done(postgres_url: str) -> None:
    """The two trips that a worker makes at once must not go on keeping each other from seeing that nothing is left."""
    with closing(Holdfast(postgres_url)) as app:

        @app.job
        def noop() -> None: ...

        app.enqueue_many([noop.prepare() for _ in range(2_000)])
        begun = time.monotonic()
        app.run_worker(until_idle=True)
        assert time.monotonic() - begun < LONG / 2
        assert app.counts().unfinished == 0
