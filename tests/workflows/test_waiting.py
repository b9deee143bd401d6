"""Sleeps and signals: neither a slot nor a lease is held meanwhile."""

import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import BadInput, BadPayload, Context, Holdfast, IllegalMove, JobNotFound
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import ONCE, code, names


def test_a_sleeping_workflow_holds_neither_slot_nor_lease(app: Holdfast, working: Working, until: Until) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> str:
        ctx.sleep("nap", 1.0)
        return "awake"

    @app.job
    def other() -> str:
        return "done"

    sleepers = [flow.enqueue() for _ in range(3)]
    with working(app, concurrency=1):
        until(lambda: [job.refresh().state for job in sleepers] == ["retrying"] * 3)
        assert {(job.lease, job.attempt) for job in sleepers} == {(None, 0)}
        assert other.enqueue().result(5) == "done"
        assert sleepers[0].refresh().state == "retrying"
        assert [job.result(10) for job in sleepers] == ["awake"] * 3


def test_a_sleep_is_counted_from_the_first_asking_whoever_asks_again(holdfast: TestHoldfast) -> None:
    begun: list[int] = []

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> str:
        begun.append(1)
        ctx.sleep("night", timedelta(hours=8))
        ctx.sleep("night", timedelta(hours=8))
        return "awake"

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert (job.refresh().available_at - holdfast.now) == timedelta(hours=8)
    job.signal("anything")
    holdfast.advance(hours=7, minutes=59)
    assert holdfast.run_until_idle() == 0, "a signal that nobody waits for wakes nobody"
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert (job.refresh().state, len(begun), names(job)) == ("retrying", 2, ["night", "night#2"])
    holdfast.advance(hours=8)
    holdfast.run_until_idle()
    assert job.result() == "awake"
    assert (job.refresh().attempt, len(begun)) == (1, 3)


def test_a_sleep_outlives_its_worker_and_its_process(url: str, app: Holdfast) -> None:
    if url.startswith("memory"):
        pytest.skip("a memory store does not outlive anything")

    def register(app: Holdfast) -> Any:
        def flow(ctx: Context) -> str:
            ctx.sleep("nap", 1.2)
            return "awake"

        return app.workflow(name="flow", retry=ONCE)(flow)

    job = register(app).enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "retrying"
    again = Holdfast(url, lease=2, heartbeat=0.2, upkeep=0.05)
    register(again)
    time.sleep(0.3)
    again.run_worker(until_idle=True)
    assert again.get(job.id).result(1) == "awake"
    again.close()


def test_a_thousand_sleeping_workflows_wake_and_end(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(n: int, ctx: Context) -> int:
        ctx.sleep("nap", 0.5)
        return n

    app.enqueue_many([flow.prepare(n) for n in range(1000)])
    app.run_worker(until_idle=True)
    assert app.counts()["succeeded"] == 1000


def test_a_sleep_cannot_be_negative(holdfast: TestHoldfast) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.sleep("nap", -1)

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert (code(job), job.steps()) == ("bad_input", [])


@pytest.mark.parametrize("awaited", [False, True])
def test_a_signal_that_was_sent_before_is_taken_at_once(app: Holdfast, awaited: bool) -> None:
    if awaited:

        @app.workflow(name="flow", retry=ONCE)
        async def aflow(ctx: Context) -> Any:
            return await ctx.wait_for("approval")
    else:

        @app.workflow(name="flow", retry=ONCE)
        def flow(ctx: Context) -> Any:
            return ctx.wait_for("approval")

    job = app.enqueue("flow", {})
    job.signal("approval", {"by": "ada"})
    app.run_worker(until_idle=True)
    assert job.result(1) == {"by": "ada"}
    assert job.refresh().record.token == 1


def test_a_signal_wakes_whoever_waits_for_it(app: Holdfast, working: Working, until: Until) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> Any:
        return ctx.wait_for("approval")

    job = flow.enqueue()
    with working(app):
        until(lambda: job.refresh().state == "retrying")
        assert (job.lease, job.attempt) == (None, 0)
        job.signal("other")
        assert job.refresh().state == "retrying"
        job.signal("approval", [1, 2])
        assert job.result(5) == [1, 2]
    assert [(each.name, each.payload) for each in app.signals(job.id)] == [("other", "true"), ("approval", "[1,2]")]


def test_each_wait_takes_one_signal_in_the_order_sent(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[Any]:
        return [ctx.wait_for("page"), ctx.wait_for("other"), *(ctx.wait_for("page") for _ in range(2))]

    job = flow.enqueue()
    for n in range(3):
        job.signal("page", n)
    job.signal("other", "x")
    app.run_worker(until_idle=True)
    assert job.result(1) == [0, "x", 1, 2]
    assert names(job) == ["page", "other", "page#2", "page#3"]


@pytest.mark.parametrize("payload", [None, True, False, 0, "", [], {}, {"$timeout": True}, {"payload": 1}, "ünï", 1.5])
def test_a_signal_carries_any_json(app: Holdfast, payload: Any) -> None:
    seen: list[Any] = []

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> Any:
        seen.append(ctx.wait_for("x"))
        ctx.sleep("nap", 0)
        return "end"

    job = flow.enqueue()
    job.signal("x", payload)
    app.run_worker(until_idle=True)
    assert job.result(1) == "end"
    assert seen == [payload, payload]


def test_a_wait_gives_none_once_its_time_is_over(holdfast: TestHoldfast) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[Any]:
        first = ctx.wait_for("x", timeout=timedelta(days=3))
        return [first, ctx.wait_for("x", timeout=60)]

    job = flow.enqueue()
    holdfast.run_until_idle()
    holdfast.advance(days=2)
    job.signal("y")
    assert holdfast.run_until_idle() == 0
    holdfast.advance(days=1)
    holdfast.run_until_idle()
    assert (job.refresh().state, names(job)) == ("retrying", ["x"])
    job.signal("x", "late")
    holdfast.run_until_idle()
    assert job.result() == [None, "late"], "a signal that came too late is there for the next wait"


def test_a_workflow_that_never_waits_ends_without_its_signals(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> str:
        return "done"

    job = flow.enqueue()
    job.signal("x")
    app.run_worker(until_idle=True)
    assert job.result(1) == "done"


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled"])
def test_a_finished_job_takes_no_signal(app: Holdfast, end: str) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        if end == "dead":
            raise OSError

    job = flow.enqueue()
    if end == "cancelled":
        job.cancel()
    app.run_worker(until_idle=True)
    before = job.refresh().record
    with pytest.raises(IllegalMove, match="takes no signals any more") as refused:
        job.signal("x")
    assert refused.value.reason == "no-op-terminal"
    assert (job.refresh().record, app.signals(job.id)) == (before, [])


def test_a_signal_has_a_name_and_a_payload_that_can_be_kept(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        pass

    job = flow.enqueue()
    before = job.refresh().record
    for name in ("", "$children", "a\nb", "x" * 300):
        with pytest.raises(BadInput):
            job.signal(name)
    for payload in (object(), float("nan"), "x" * 300_000):
        with pytest.raises(BadPayload):
            job.signal("x", payload)
    with pytest.raises(JobNotFound):
        app.signal("00000000-0000-7000-8000-000000000000", "x")
    assert (job.refresh().record, app.signals(job.id)) == (before, [])


def test_a_signal_as_large_as_can_be_is_taken_once(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[int | None]:
        return [len(ctx.wait_for("x")), ctx.wait_for("x", timeout=0.05)]

    job = flow.enqueue()
    job.signal("x", "y" * (256 * 1024 - 2))
    app.run_worker(until_idle=True)
    assert job.result(1) == [256 * 1024 - 2, None]


def test_a_step_of_a_signals_name_is_no_wait(app: Holdfast) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[Any]:
        return [ctx.step("x", lambda: "step"), ctx.wait_for("x")]

    job = flow.enqueue()
    job.signal("x", "signal")
    app.run_worker(until_idle=True)
    assert job.result(1) == ["step", "signal"]


def test_explain_says_what_a_workflow_waits_for(holdfast: TestHoldfast) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.wait_for("approval", timeout=timedelta(days=3))

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert str(job.explain()) == "It waits for the signal 'approval', for another 3.0 days at most."
