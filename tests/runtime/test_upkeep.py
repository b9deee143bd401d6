"""Upkeep in every worker, done by one: lost leases, unsubmitted jobs, retention."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, Retry, retention
from holdfast.domain import lifecycle
from holdfast.domain.job import NewJob, State
from holdfast.port.store import Claim
from holdfast.runtime import upkeep
from holdfast.testing.clock import ManualClock

SECOND = 1_000_000


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Holdfast, ManualClock]]:
    clock = ManualClock()
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    app = Holdfast(url, clock=clock, retention=retention(succeeded=60, cancelled=120, dead=timedelta(days=30)))

    @app.job(name="work", retry=Retry.fixed(1, retries=9))
    def work() -> None: ...

    yield app, clock
    app.close()


def test_a_lost_lease_is_taken_back_and_can_run_at_once(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed
    job = app.enqueue("work", {})
    app.store.claim(Claim("gone", "x", 15 * SECOND, 10))
    assert upkeep.reap(app.store, app.settings) == 0
    clock.advance(seconds=15)
    assert upkeep.reap(app.store, app.settings) == 1
    assert (job.refresh().state, job.attempt, job.failure and job.failure.code) == ("retrying", 1, "lease_expired")
    assert len(app.store.claim(Claim("next", "y", 15 * SECOND, 10))) == 1


def test_a_job_that_kills_its_worker_is_dead_after_the_crash_cap(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed
    job = app.enqueue("work", {})
    for _ in range(3):
        (claimed,) = app.store.claim(Claim("gone", "x", SECOND, 10))
        if claimed.crashes:
            app.store.commit([lifecycle.start(claimed)])
        clock.advance(seconds=1)
        assert upkeep.reap(app.store, app.settings) == 1
    assert (job.refresh().state, job.cause) == ("dead", "crashed")


def test_a_bystander_of_many_crashes_is_not_blamed(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed
    job = app.enqueue("work", {})
    for _ in range(20):
        app.store.claim(Claim("gone", "x", SECOND, 10))
        clock.advance(seconds=1)
        upkeep.reap(app.store, app.settings)
    assert (job.refresh().state, job.attempt) == ("retrying", 1)


def test_a_created_job_is_submitted_once_its_enqueuer_must_be_gone(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed
    app.store.insert([[("018f0000-0000-7000-8000-000000000001", NewJob("work", "{}", state=State.CREATED))]])
    assert upkeep.resubmit(app.store) == 0
    clock.advance(seconds=5)
    assert upkeep.resubmit(app.store) == 1
    assert app.counts()["queued"] == 1


def test_each_terminal_state_is_kept_for_its_own_time(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed

    @app.job(name="fails", retry=Retry.fixed(0, retries=0))
    def fails() -> None:
        raise ValueError

    done, failed, stopped = app.enqueue("work", {}), app.enqueue("fails", {}), app.enqueue("work", {}, run_after=500)
    stopped.cancel()
    for job in (done, failed):
        assert app.process(app.envelope(job.id)) == "claimed"
    kept = []
    for seconds in (59, 1, 60, 30 * 86400):
        clock.advance(seconds=seconds)
        upkeep.purge(app.store, app.settings)
        kept.append(app.counts().total)
    assert kept == [3, 2, 1, 0]


def test_with_a_cap_of_one_a_bystander_is_not_blamed_for_the_first_crash(timed: tuple[Holdfast, ManualClock]) -> None:
    app, clock = timed

    @app.job(name="fragile", crash_cap=1)
    def fragile() -> None: ...

    culprit, bystander = app.enqueue("fragile", {}), app.enqueue("fragile", {})
    claimed = {str(job.id): job for job in app.store.claim(Claim("gone", "x", SECOND, 10))}
    app.store.commit([lifecycle.start(claimed[str(culprit.id)])])
    clock.advance(seconds=1)
    upkeep.reap(app.store, app.settings)
    assert (culprit.refresh().state, culprit.cause) == ("dead", "crashed")
    assert (bystander.refresh().state, bystander.attempt) == ("retrying", 0)


def test_whoever_ends_leaves_the_upkeep_to_the_next_at_once(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=3600)

    @app.job
    def work() -> None: ...

    ends: list[Callable[[], None]] = [lambda: app.run_worker(until_idle=True), app.sweep]
    for end in ends * 2:
        job = work.using(expires_after=0).enqueue()
        end()
        assert (job.refresh().state, job.cause) == ("dead", "expired")
    app.close()
