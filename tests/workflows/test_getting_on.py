"""Crashes that a workflow gets past are no crash loop; an effect is recorded though the job is to be cancelled."""

import asyncio

import pytest

from holdfast import Context, Holdfast, Permanent
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import NewJob, State
from holdfast.testing.engine import TestHoldfast


def test_a_workflow_that_records_a_step_before_each_crash_is_no_crash_loop(holdfast: TestHoldfast) -> None:
    @holdfast.workflow
    def flow(ctx: Context) -> int:
        return sum(ctx.step(f"s{n}", lambda n=n: n) for n in range(5))

    for n in range(4):
        holdfast.crash_after(f"s{n}")
    job = flow.enqueue()
    for _ in range(5):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert (job.refresh().state, job.result(), job.record.crashes) == ("succeeded", 10, 0)


def test_a_workflow_that_crashes_without_a_record_still_is_one(holdfast: TestHoldfast) -> None:
    @holdfast.workflow
    def flow(ctx: Context) -> int:
        return int(ctx.step("s", lambda: 1))

    holdfast.crash_after("flow", times=3)
    job = flow.enqueue()
    for _ in range(4):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert job.refresh().state == "dead"
    assert job.cause == "crashed"


def test_what_can_be_undone_is_recorded_though_the_job_is_to_be_cancelled_and_then_undone(app: Holdfast) -> None:
    said: list[str] = []

    @app.workflow
    def order(ctx: Context) -> None:
        def charge() -> str:
            app.cancel(ctx.job_id)
            said.append("charged")
            return "receipt"

        ctx.step("charge", charge, undo=lambda receipt: said.append(f"refunded {receipt}"))
        ctx.step("ship", lambda: None)

    job = order.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, said) == ("cancelled", ["charged", "refunded receipt"])
    assert [step.name for step in job.steps()] == ["charge", "undo:charge"]


def test_a_step_that_cannot_be_undone_still_gives_way_to_a_cancellation(app: Holdfast) -> None:
    @app.workflow
    def order(ctx: Context) -> None:
        ctx.step("charge", lambda: str(app.cancel(ctx.job_id).id))

    job = order.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.steps()) == ("cancelled", [])


@pytest.mark.parametrize(("others", "state"), [([], "dead"), ([OSError("busy")], "dead")])
def test_a_permanent_failure_in_a_group_is_permanent(app: Holdfast, others: list[Exception], state: str) -> None:
    @app.job
    async def grouped() -> None:
        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            for error in (Permanent("no such thing", code="absent"), *others):
                group.create_task(fail(error))

    job = grouped.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.failure and job.failure.code, job.attempt) == (state, "absent", 1)


def test_a_job_that_is_not_submitted_yet_takes_a_signal(app: Holdfast) -> None:
    @app.workflow
    def flow(ctx: Context) -> str:
        return str(ctx.wait_for("go"))

    new = flow.prepare().new._replace(state=State.CREATED, credits=3)
    assert isinstance(new, NewJob)
    (stored,) = app._inserting().insert([new])
    app.signal(stored.id, "go", "now")
    app.run_worker(until_idle=True)
    assert app.get(stored.id).result(1) == "now"
    with pytest.raises(IllegalMove, match="takes no signals"):
        app.signal(stored.id, "go")
