"""Steps of one workflow that run side by side on the event loop."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import AGAIN, ONCE, names


async def together(how: str, *work: Any) -> list[Any]:
    if how == "gather":
        return list(await asyncio.gather(*work))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
    return [task.result() for task in tasks]


@pytest.fixture(params=["gather", "group"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_steps_run_at_the_same_time_and_each_is_recorded_once(app: Holdfast, how: str) -> None:
    at_once = asyncio.Barrier(3)
    ran: list[int] = []

    async def body(n: int) -> int:
        ran.append(n)
        if len(ran) <= 3:
            await at_once.wait()
        return n

    @app.workflow(retry=AGAIN)
    async def flow(ctx: Context) -> list[int]:
        results = await together(how, *(ctx.step("part", body, n) for n in range(3)))
        if len(ran) == 3 and not ctx.stopping and ctx.attempt == 1:
            raise OSError
        return results

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == [0, 1, 2]
    assert sorted(ran) == [0, 1, 2]
    assert sorted(names(job)) == ["part", "part#2", "part#3"]
    assert job.refresh().step_cursor == 3


def test_a_step_beside_a_sleep_comes_to_its_end_first(app: Holdfast, how: str) -> None:
    ran: list[str] = []

    async def slow() -> str:
        ran.append("begins")
        await asyncio.sleep(0.1)
        ran.append("ends")
        return "done"

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        return await together(how, ctx.sleep("nap", 0.2), ctx.step("slow", slow))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == [None, "done"]
    assert ran == ["begins", "ends"]
    assert job.refresh().attempt == 1


def test_several_waits_side_by_side_are_all_waited_for(app: Holdfast, how: str) -> None:
    @app.job
    def child(n: int) -> int:
        return n * n

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        return await together(
            how,
            ctx.sleep("nap", 0.1),
            ctx.wait_for("first"),
            ctx.gather([child.prepare(3)], name="a"),
            ctx.gather([child.prepare(4)], name="b"),
            ctx.wait_for("second", timeout=0.1),
        )

    job = flow.enqueue()
    job.signal("first", "here")
    app.run_worker(until_idle=True)
    assert job.result(1) == [None, "here", [9], [16], None]


def test_two_waits_side_by_side_take_two_signals(app: Holdfast, how: str) -> None:
    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        return await together(how, ctx.wait_for("x"), ctx.wait_for("x"), ctx.wait_for("x", timeout=0.1))

    job = flow.enqueue()
    job.signal("x", 1)
    job.signal("x", 2)
    app.run_worker(until_idle=True)
    assert job.result(1) == [1, 2, None]


def test_a_step_that_fails_beside_another_fails_the_attempt_and_what_was_recorded_stays(app: Holdfast) -> None:
    ran: list[str] = []

    async def quick() -> str:
        ran.append("quick")
        return "quick"

    async def bad() -> str:
        ran.append("bad")
        await asyncio.sleep(0.1)
        if ran.count("bad") == 1:
            raise OSError
        return "bad"

    @app.workflow(retry=AGAIN)
    async def flow(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step("quick", quick), ctx.step("bad", bad)))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == ["quick", "bad"]
    assert sorted(ran) == ["bad", "bad", "quick"]


def test_steps_side_by_side_spend_each_for_itself(app: Holdfast) -> None:
    app.grant("acme", 100)

    @app.workflow(retry=AGAIN)
    async def flow(ctx: Context) -> None:
        async def body(cost: int, pause: float) -> None:
            ctx.spend(cost)
            await asyncio.sleep(pause)
            if cost == 5 and ctx.attempt == 1:
                raise OSError

        await asyncio.gather(ctx.step("a", body, 5, 0.1), ctx.step("b", body, 3, 0.01), ctx.step("c", body, 2, 0.05))

    job = flow.using(tenant="acme").enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"
    spent = {entry.step: entry.spent for entry in app.ledger("acme") if entry.spent}
    assert spent == {"a": 5, "b": 3, "c": 2}
    assert job.credits_spent == 10


def test_a_wait_in_the_body_of_a_step_puts_the_workflow_off_and_the_body_is_run_again(holdfast: TestHoldfast) -> None:
    begun: list[str] = []

    @holdfast.workflow
    async def order(ctx: Context) -> list[object]:
        async def approved() -> list[object]:
            begun.append("approved")
            slept = ctx.sleep("cool-off", timedelta(hours=1))
            asked = ctx.wait_for("approval")
            return list(await asyncio.gather(slept, asked))

        outer, beside = await asyncio.gather(ctx.step("approved", approved), ctx.step("beside", begun.append, "beside"))
        return [outer, beside]

    job = order.enqueue()
    holdfast.run_until_idle()
    assert (job.refresh().state, job.explain().reason) == ("retrying", "signal")
    job.signal("approval", "yes")
    holdfast.run_until_idle()
    holdfast.advance(hours=1)
    holdfast.run_until_idle()
    assert job.result() == [[None, "yes"], None]
    assert begun.count("beside") == 1
    assert begun.count("approved") > 1


@pytest.mark.parametrize("awaited", [False, True])
def test_a_workflow_that_swallows_its_suspension_waits_all_the_same(app: Holdfast, awaited: bool) -> None:
    ran: list[str] = []

    def late() -> None:
        ran.append("late")

    if awaited:

        @app.workflow(name="flow", retry=ONCE)
        async def aflow(ctx: Context) -> str:
            with suppress(BaseException):  # the mistake under test
                await ctx.sleep("nap", 0.1)
            await ctx.step("late", late)
            return "slept"
    else:

        @app.workflow(name="flow", retry=ONCE)
        def flow(ctx: Context) -> str:
            with suppress(BaseException):  # the mistake under test
                ctx.sleep("nap", 0.1)
            ctx.step("late", late)
            return "slept"

    job = app.enqueue("flow", {})
    app.run_worker(until_idle=True)
    assert job.result(1) == "slept"
    assert names(job) == ["nap", "late"]
    assert ran == ["late"]
    took = job.refresh().finished_at - job.created_at  # type: ignore[operator]
    assert took.total_seconds() >= 0.1


def test_waits_side_by_side_run_at_the_same_time(holdfast: TestHoldfast, how: str) -> None:
    @holdfast.job
    def child() -> str:
        return "child"

    async def one(ctx: Context) -> str:
        await ctx.sleep("hour", 3600)
        return str(await ctx.step("after an hour", lambda: "one"))

    async def two(ctx: Context) -> str:
        await ctx.sleep("two hours", 7200)
        return "two"

    async def three(ctx: Context) -> str:
        await ctx.gather([child.prepare()])
        return "three"

    async def four(ctx: Context) -> Any:
        return await ctx.wait_for("x", timeout=5400)

    @holdfast.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        return await together(how, two(ctx), four(ctx), one(ctx), three(ctx))

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert [each.state for each in holdfast.find(kind="child")] == ["succeeded"]
    holdfast.advance(seconds=30)
    holdfast.run_until_idle()
    assert "gather" in names(job)
    holdfast.advance(hours=1)
    holdfast.run_until_idle()
    assert "after an hour" in names(job)
    holdfast.advance(hours=1)
    holdfast.run_until_idle()
    assert job.result() == ["two", None, "one", "three"]
    assert holdfast.now - job.created_at == timedelta(hours=2, seconds=30)
    assert len(holdfast.find(kind="child")) == 1


def test_a_branch_that_brings_about_what_another_waits_for_gets_its_turn(holdfast: TestHoldfast, how: str) -> None:
    @holdfast.job
    def child() -> str:
        return "child"

    @holdfast.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        async def asks() -> None:
            await ctx.gather([child.prepare()])
            await ctx.step("ask", lambda: str(holdfast.signal(ctx.job_id, "answer", 42).id))

        return await together(how, ctx.wait_for("answer"), asks())

    job = flow.enqueue()
    for _ in range(3):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert job.result() == [42, None]


def test_what_a_branch_spends_between_steps_is_paid_for_once_whatever_comes_first_again(holdfast: TestHoldfast) -> None:
    holdfast.grant("acme", 100)

    @holdfast.workflow
    async def flow(ctx: Context) -> None:
        ctx.spend(1)

        async def one() -> None:
            await asyncio.sleep(0 if ctx.attempt == 1 else 0.02)
            ctx.spend(5)
            await asyncio.sleep(0.01)
            await ctx.step("one", lambda: 1)

        async def two() -> None:
            await asyncio.sleep(0.005)
            await ctx.step("two", lambda: 1)

        await asyncio.gather(one(), two())

    holdfast.crash_after("two")
    job = flow.using(tenant="acme").enqueue()
    holdfast.run_until_idle()
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.refresh().state == "succeeded"
    assert {entry.step or entry.verb: entry.spent for entry in holdfast.ledger("acme") if entry.spent} == {
        "one": 5,
        "complete": 1,
    }
