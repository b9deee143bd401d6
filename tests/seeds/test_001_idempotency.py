"""Seed 001: deliveries and retries never corrupt a job, do its work twice, or regress it once it is terminal."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Job, JobFunction, Permanent, Retry
from holdfast.domain import lifecycle
from tests.seeds.scene import Scene

NON_TERMINAL = {"queued", "claimed", "running"}
TERMINAL = {"succeeded", "failed", "cancelled", "dead_lettered"}
OUTCOMES = {"claimed", "already-claimed", "no-op-terminal"}


def test_re_processing_the_same_sqs_message_is_idempotent_for_a_non_terminal_job(scene: Scene) -> None:
    work: list[int] = []

    @scene.app.job
    def charge(order: int) -> None:
        work.append(order)

    job = charge.enqueue(7)
    assert scene.status("idempotency", job) == "queued"
    message = scene.app.envelope(job.id)
    outcomes = [scene.app.process(message) for _ in range(5)]
    assert outcomes == ["claimed", *["no-op-terminal"] * 4]
    assert work == [7]
    assert scene.status("idempotency", job) == "succeeded"


def test_a_second_delivery_sees_an_in_progress_state_and_never_a_regression_to_queued(scene: Scene) -> None:
    seen: list[tuple[str, str, str | None]] = []

    @scene.app.job
    def charge(ctx: Context) -> None:
        outcome = scene.app.process(scene.app.envelope(ctx.job_id))
        row = scene.tell("idempotency", scene.app.get(ctx.job_id))
        seen.append((outcome, row["status"], row["locked_by"]))

    job = charge.enqueue()
    versions = [scene.tell("idempotency", job)["version"]]
    assert scene.deliver(job) == "claimed"
    versions.append(scene.tell("idempotency", job)["version"])
    ((outcome, status, locked_by),) = seen
    assert (outcome, status) == ("already-claimed", "claimed")
    assert locked_by is not None
    assert scene.tell("idempotency", job) == {
        "job_id": str(job.id),
        "status": "succeeded",
        "version": versions[-1],
        "locked_by": None,
    }
    assert versions == sorted(versions)


def test_the_in_progress_states_are_claimed_and_running(scene: Scene) -> None:
    @scene.app.job
    def charge() -> None: ...

    job = charge.enqueue()
    (held,) = scene.claim("worker-1")
    assert scene.tell("idempotency", job)["locked_by"] == "worker-1"
    assert scene.status("idempotency", job) == "claimed"
    scene.heartbeat(held)
    assert scene.status("idempotency", job) == "running"
    before = scene.row(job)
    assert scene.deliver(job) == "already-claimed"
    assert scene.row(job) == before


def succeeded(scene: Scene) -> Job[Any]:
    job = _jobs(scene)["good"].enqueue()
    assert scene.deliver(job) == "claimed"
    return job


def failed(scene: Scene) -> Job[Any]:
    job = _jobs(scene)["bad"].enqueue()
    assert scene.deliver(job) == "claimed"
    return job


def cancelled(scene: Scene) -> Job[Any]:
    return _jobs(scene)["good"].enqueue().cancel()


def dead_lettered(scene: Scene) -> Job[Any]:
    job = _jobs(scene)["flaky"].enqueue()
    for _ in range(2):
        assert scene.deliver(job) == "claimed"
        scene.clock.advance(seconds=1)
    return job


def _jobs(scene: Scene) -> dict[str, JobFunction[[], None]]:
    @scene.app.job
    def good() -> None: ...

    @scene.app.job
    def bad() -> None:
        raise Permanent

    @scene.app.job(retry=Retry.fixed(1, retries=1))
    def flaky() -> None:
        raise TimeoutError

    return {"good": good, "bad": bad, "flaky": flaky}


@pytest.mark.parametrize("end", [succeeded, failed, cancelled, dead_lettered], ids=lambda end: end.__name__)
def test_late_or_out_of_order_deliveries_are_pure_no_ops_once_the_job_is_terminal(
    scene: Scene, end: Callable[[Scene], Job[Any]]
) -> None:
    job = end(scene)
    assert scene.status("idempotency", job) == end.__name__
    before = scene.row(job)
    for late in (0, 1, 3600):
        scene.clock.advance(seconds=late)
        for attempt in (1, 2, 3, 99):
            assert scene.deliver(job, attempt=attempt) == "no-op-terminal"
            assert scene.row(job) == before


@pytest.mark.parametrize("end", [succeeded, failed, cancelled, dead_lettered], ids=lambda end: end.__name__)
def test_nobody_else_touches_a_terminal_row_either(scene: Scene, end: Callable[[Scene], Job[Any]]) -> None:
    job = end(scene)
    before = scene.row(job)
    scene.clock.advance(hours=1)
    assert scene.claim("worker-2", 10) == []
    assert scene.reap() == 0
    assert scene.app.cancel(job.id).state == job.refresh().state
    assert scene.row(job) == before


def test_a_worker_that_is_late_with_its_outcome_finds_the_condition_failed(scene: Scene) -> None:
    @scene.app.job
    def charge() -> None: ...

    job = charge.enqueue()
    (late,) = scene.claim("worker-1")
    scene.clock.advance(seconds=15)
    scene.reap()
    (winner,) = scene.claim("worker-2")
    before = scene.row(job)
    assert (scene.complete(late), scene.fail(late)) == ("already-claimed", "already-claimed")
    assert scene.heartbeat(late) == "already-claimed"
    assert scene.row(job) == before
    assert scene.complete(winner) == "ok"
    before = scene.row(job)
    assert (scene.complete(late), scene.fail(late)) == ("no-op-terminal", "no-op-terminal")
    assert scene.heartbeat(late) == "no-op-terminal"
    assert scene.row(job) == before


@pytest.mark.parametrize("workers", [2, 8])
def test_multiple_workers_racing_on_the_same_job_yield_a_single_winner_and_safe_losers(
    scene: Scene, workers: int
) -> None:
    work: list[int] = []
    apps = [scene.app, *(scene.another() for _ in range(workers - 1))]

    def charge(order: int) -> None:
        work.append(order)

    for app in apps:
        app.job(charge)
    jobs = [scene.app.enqueue("charge", {"order": order}) for order in range(10)]
    for job in jobs:
        message = scene.app.envelope(job.id)
        start = threading.Barrier(workers)
        outcomes: list[str] = []

        def race(app: Any, message: Any = message, start: Any = start, outcomes: Any = outcomes) -> None:
            start.wait()
            outcomes.append(app.process(message))

        racers = [threading.Thread(target=race, args=(app,)) for app in apps]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert len(outcomes) == workers
        assert outcomes.count("claimed") == 1
        assert set(outcomes) <= OUTCOMES
        assert scene.status("idempotency", job) == "succeeded"
    assert work == list(range(10))


def test_a_claim_is_a_conditional_write_on_the_version_that_was_read(scene: Scene) -> None:
    @scene.app.job
    def charge() -> None: ...

    job = charge.enqueue()
    read = scene.record(job)
    (held,) = scene.claim("worker-1", job=job)
    assert held.version == read.version + 1
    assert scene.claim("worker-2", job=job) == []
    assert scene.write(lifecycle.cancel(read, scene.app.settings.retention)) == "already-claimed"
    assert scene.tell("idempotency", job)["locked_by"] == "worker-1"


def test_retries_pass_through_queued_and_end_terminal_once(scene: Scene) -> None:
    @scene.app.job(retry=Retry.fixed(1, retries=3))
    def flaky() -> None:
        raise TimeoutError

    job = flaky.enqueue()
    walk = [scene.status("idempotency", job)]
    while walk[-1] in NON_TERMINAL:
        assert scene.deliver(job) == "claimed"
        assert scene.deliver(job) in {"already-claimed", "no-op-terminal"}
        walk.append(scene.status("idempotency", job))
        scene.clock.advance(seconds=1)
    assert walk == ["queued", "queued", "queued", "queued", "dead_lettered"]
    assert walk[-1] in TERMINAL
