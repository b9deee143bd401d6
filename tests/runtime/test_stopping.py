"""Timeouts, cancellation, lost leases and shutdown: a handler stops when it must, and its job is settled once."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from holdfast import Context, Holdfast, Retry
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from tests.workers import LONG, Working

ONCE = Retry.fixed(0, retries=0)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something another thread brings about."""
    end = time.monotonic() + LONG
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        pause.wait(0.01)


def test_an_attempt_that_takes_too_long_fails_with_timeout(app: Holdfast, working: Working) -> None:
    @app.job(timeout=0.2, retry=ONCE)
    def slow() -> None:
        for _ in range(2_000):
            threading.Event().wait(0.01)

    @app.job(timeout=0.2, retry=ONCE)
    async def aslow() -> None:
        await asyncio.sleep(60)

    jobs = [slow.enqueue(), aslow.enqueue()]
    with working(app):
        for job in jobs:
            until(lambda job=job: job.refresh().state == "dead", "the timeout")  # type: ignore[misc]
            assert job.failure is not None
            assert (job.failure.code, job.cause) == ("timeout", "exhausted")


def test_a_quick_attempt_is_not_touched_by_its_timeout(app: Holdfast, working: Working) -> None:
    @app.job(timeout=0.1)
    def quick(n: int) -> int:
        return n

    jobs = [quick.enqueue(n) for n in range(50)]
    with working(app):
        assert [job.result(LONG) for job in jobs] == list(range(50))


def test_a_thread_that_ignores_its_timeout_is_given_up_and_does_not_block_others(
    app: Holdfast, working: Working
) -> None:
    free = threading.Event()

    @app.job(timeout=0.1, retry=ONCE)
    def deaf() -> None:
        free.wait()

    @app.job
    def next_one() -> str:
        return "ran"

    stuck = deaf.enqueue()
    with working(app, concurrency=1):
        until(lambda: stuck.refresh().state == "dead", "giving up")
        assert next_one.enqueue().result(LONG) == "ran"
        free.set()


def test_a_thread_that_does_not_heed_a_lost_lease_is_given_up_however_often_the_heart_beats(
    app: Holdfast, working: Working, caplog: pytest.LogCaptureFixture
) -> None:
    begun, free = threading.Event(), threading.Event()

    @app.job
    def deaf() -> None:
        begun.set()
        free.wait()

    @app.job
    def next_one() -> str:
        return "ran"

    stuck = deaf.enqueue()
    with working(app, concurrency=1):
        assert begun.wait(LONG)
        app.store.commit([lifecycle.complete(stuck.refresh().record, None, Retention())])
        assert next_one.enqueue().result(LONG) == "ran"
        free.set()
    assert caplog.text.count("the lease is lost (no-op-terminal)") == 1


def test_a_running_job_is_cancelled_at_its_next_heartbeat(app: Holdfast, working: Working) -> None:
    begun = threading.Event()

    @app.job
    def long() -> None:
        begun.set()
        while True:
            threading.Event().wait(0.01)

    @app.job
    async def along() -> None:
        begun.set()
        await asyncio.sleep(600)

    for kind in (long, along):
        begun.clear()
        job = kind.enqueue()
        with working(app):
            assert begun.wait(LONG)
            assert job.cancel().state == "running"
            until(lambda job=job: job.refresh().state == "cancelled", "the cancellation")  # type: ignore[misc]


def test_a_handler_can_see_that_it_should_stop(app: Holdfast, working: Working) -> None:
    begun, noticed = threading.Event(), threading.Event()

    @app.job
    def polite(ctx: Context) -> None:
        begun.set()
        try:
            while not ctx.stopping:
                threading.Event().wait(0.01)
        finally:
            noticed.set()
        ctx.check()

    job = polite.enqueue()
    with working(app):
        assert begun.wait(LONG)
        job.cancel()
        assert noticed.wait(LONG)
        until(lambda: job.refresh().state == "cancelled", "the cancellation")


def test_a_failure_after_a_cancellation_ends_as_cancelled_not_as_a_retry(app: Holdfast, working: Working) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.job
    def fails() -> None:
        begun.set()
        go.wait()
        raise ValueError

    job = fails.enqueue()
    app.settings = app.settings.__class__(heartbeat=app.settings.lease // 2, lease=app.settings.lease)
    with working(app):
        assert begun.wait(LONG)
        job.cancel()
        go.set()
        until(lambda: job.refresh().state == "cancelled", "the cancellation")


def test_a_job_longer_than_its_lease_keeps_it_by_heartbeats(app: Holdfast, working: Working) -> None:
    @app.job
    def long(ctx: Context) -> int:
        threading.Event().wait(4.5)
        return ctx.attempt

    job = long.enqueue()
    with working(app):
        assert job.result(LONG) == 1
    assert job.refresh().record.token == 1


def test_stopping_lets_running_jobs_finish_and_gives_back_the_rest(app: Holdfast) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.job(retry=ONCE)
    def one() -> str:
        begun.set()
        go.wait(LONG)
        return "finished"

    jobs = [one.enqueue() for _ in range(5)]
    service = app.service(concurrency=1)
    thread = threading.Thread(target=service.run)
    thread.start()
    assert begun.wait(LONG)
    service.stop()
    go.set()
    thread.join(LONG)
    assert not thread.is_alive()
    states = [job.refresh().state for job in jobs]
    assert states.count("succeeded") >= 1
    assert "running" not in states
    assert all(job.attempt == 0 for job in jobs if job.state != "succeeded")


def test_a_second_stop_releases_what_is_running_at_once(app: Holdfast) -> None:
    begun = threading.Event()

    @app.job(retry=ONCE)
    def endless() -> None:
        begun.set()
        while True:
            threading.Event().wait(0.01)

    job = endless.enqueue()
    service = app.service()
    thread = threading.Thread(target=service.run)
    thread.start()
    assert begun.wait(LONG)
    started = time.monotonic()
    service.stop()
    service.stop()
    thread.join(LONG)
    assert not thread.is_alive()
    assert time.monotonic() - started < 3
    assert (job.refresh().state, job.attempt) == ("retrying", 0)


def test_a_late_worker_is_refused_after_another_has_taken_over(app: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    """The lease ends while the handler runs, another worker finishes the job, the late outcome changes nothing."""
    begun, go = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.job
    def job_body(ctx: Context) -> int:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            begun.set()
            go.wait(LONG)
        return ctx.attempt

    job = job_body.enqueue()
    late = app.service(worker_id="late")
    late._heart._beat = lambda: None  # type: ignore[method-assign]
    late._heart._fence = lambda: None  # type: ignore[method-assign]
    thread = threading.Thread(target=late.run)
    thread.start()
    assert begun.wait(LONG)
    assert app.store.abandon("late") == 1
    other = app.service(worker_id="other")
    second = threading.Thread(target=other.run)
    second.start()
    assert job.result(LONG) == 2
    before = job.refresh().record
    with caplog.at_level("WARNING", "holdfast.worker"):
        go.set()
        until(lambda: "was refused" in caplog.text, "the refusal")
    assert job.refresh().record == before
    for service in (late, other):
        service.stop()
    for each in (thread, second):
        each.join(LONG)


def test_a_worker_that_cannot_renew_stops_its_handler_before_the_lease_ends(app: Holdfast) -> None:
    begun, stopped = threading.Event(), threading.Event()

    @app.job
    def long() -> None:
        begun.set()
        try:
            while True:
                threading.Event().wait(0.01)
        finally:
            stopped.set()

    job = long.enqueue()
    service = app.service()
    service._heart._beat = lambda: None  # type: ignore[method-assign]
    thread = threading.Thread(target=service.run)
    thread.start()
    assert begun.wait(LONG)
    claimed = job.refresh().record
    assert stopped.wait(LONG)
    assert app.store.now() < (claimed.lease_expires_at or 0)
    service.stop()
    service.stop()
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_thread_that_ignores_its_timeout_gives_up_its_slot_to_other_lanes_too(
    app: Holdfast, working: Working
) -> None:
    free = threading.Event()

    @app.job(timeout=0.1, retry=ONCE)
    def deaf() -> None:
        free.wait()

    @app.job
    async def looped() -> str:
        return "ran"

    @app.job
    def threaded() -> str:
        return "ran too"

    stuck = deaf.enqueue()
    with working(app, concurrency=1):
        until(lambda: stuck.refresh().state == "dead", "giving up")
        assert looped.enqueue().result(LONG) == "ran"
        assert threaded.enqueue().result(LONG) == "ran too"
        free.set()
        assert looped.enqueue().result(LONG) == "ran"


def test_many_async_jobs_with_one_crash_left_run_one_at_a_time_and_all_of_them(app: Holdfast, working: Working) -> None:
    running, most = 0, 0

    @app.job(crash_cap=1)
    async def fragile(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return n

    jobs = app.enqueue_many([fragile.prepare(n) for n in range(40)])
    with working(app):
        assert [job.result(LONG) for job in jobs] == list(range(40))
    assert most == 1
