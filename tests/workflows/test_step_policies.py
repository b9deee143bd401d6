"""A step's own retry policy and time limit."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Permanent, Retry, Snooze, Step, StepTimeout
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import AGAIN, ONCE, code, names


def flaky(times: int, error: type[Exception] = OSError) -> tuple[Callable[[], int], list[int]]:
    """Make a function that fails so many times before it gives the number of its calls."""
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return body, calls


@pytest.mark.parametrize("awaited", [False, True])
def test_a_step_is_tried_again_in_place_and_the_attempt_goes_on(app: Holdfast, awaited: bool) -> None:
    body, calls = flaky(2)
    begun: list[int] = []
    policy = Retry.fixed(0.01, retries=2)
    if awaited:

        @app.workflow(name="flow", retry=ONCE)
        async def aflow(ctx: Context) -> int:
            begun.append(1)
            return int(await ctx.step("a", body, retry=policy))
    else:

        @app.workflow(name="flow", retry=ONCE)
        def flow(ctx: Context) -> int:
            begun.append(1)
            return int(ctx.step("a", body, retry=policy))

    job = app.enqueue("flow", {})
    app.run_worker(until_idle=True)
    assert job.result(1) == 3
    assert (len(calls), len(begun)) == (3, 1)


def test_a_step_that_fails_as_often_as_it_may_fails_the_attempt_and_the_next_begins_anew(app: Holdfast) -> None:
    body, calls = flaky(3)

    @app.workflow(retry=AGAIN)
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", body, retry=Retry.fixed(0, retries=1)))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == 4
    assert len(calls) == 4
    assert [each.outcome for each in app.attempts(job.id)] == ["fail", "complete"]


@pytest.mark.parametrize("error", [Permanent, lambda: Snooze(0), KeyError])
def test_what_is_final_is_not_tried_again_in_place(holdfast: TestHoldfast, error: Any) -> None:
    calls: list[int] = []

    def body() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise error()

    @holdfast.workflow(retry=ONCE, permanent=KeyError)
    def flow(ctx: Context) -> int:
        ctx.step("a", body, retry=Retry.fixed(0, retries=5))
        return len(calls)

    job = flow.enqueue()
    holdfast.run_until_idle()
    snoozed = job.refresh().state == "succeeded"
    assert (len(calls), job.state) == ((2, "succeeded") if snoozed else (1, "dead"))
    assert snoozed is (error not in (Permanent, KeyError))


def test_a_long_pause_between_tries_leaves_the_worker_and_is_counted_on(holdfast: TestHoldfast) -> None:
    body, calls = flaky(3)

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", body, retry=Retry.exponential(60, max_attempts=4)))

    job = flow.enqueue()
    for minutes in (1, 2, 4):
        holdfast.run_until_idle()
        assert (job.refresh().state, job.lease, job.attempt) == ("retrying", None, 0)
        assert (job.available_at - holdfast.now).total_seconds() == 60 * minutes
        holdfast.advance(minutes=minutes)
    holdfast.run_until_idle()
    assert job.result() == 4
    assert len(calls) == 4
    assert names(job) == ["a"]


def test_tries_that_are_used_up_over_long_pauses_end_the_workflow(holdfast: TestHoldfast) -> None:
    body, calls = flaky(9)

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", body, retry=Retry.fixed(60, retries=2)))

    job = flow.enqueue()
    for _ in range(4):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert (job.refresh().state, code(job), len(calls)) == ("dead", "oserror", 3)


def test_a_pipelines_step_has_a_policy_of_its_own_too(app: Holdfast, working: Working, until: Until) -> None:
    body, calls = flaky(1)

    def fetch(payload: dict[str, int]) -> int:
        return body() + payload["n"]

    pipe = app.pipeline("pipe", [Step(fetch, retry=Retry.fixed(2.2, retries=1))], retry=ONCE)
    job = pipe.enqueue({"n": 1})
    with working(app):
        until(lambda: job.refresh().state == "retrying")
        assert (job.lease, job.attempt, job.failure) == (None, 0, None)
        assert job.result(15) == 3
    assert len(calls) == 2


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("coroutine", [False, True])
def test_a_step_that_takes_too_long_is_stopped(app: Holdfast, awaited: bool, coroutine: bool) -> None:
    def plain() -> None:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.005)

    async def slow() -> None:
        await asyncio.sleep(5)

    body: Any = slow if coroutine else plain
    seen: list[type[BaseException]] = []
    if awaited:

        @app.workflow(name="flow", retry=ONCE)
        async def aflow(ctx: Context) -> None:
            try:
                await ctx.step("a", body, timeout=0.1)
            except StepTimeout as error:
                seen.append(type(error))
                raise
    else:

        @app.workflow(name="flow", retry=ONCE)
        def flow(ctx: Context) -> None:
            try:
                ctx.step("a", body, timeout=0.1)
            except StepTimeout as error:
                seen.append(type(error))
                raise

    job = app.enqueue("flow", {})
    began = time.monotonic()
    app.run_worker(until_idle=True)
    assert time.monotonic() - began < 4
    assert (job.refresh().state, code(job), seen) == ("dead", "step_timeout", [StepTimeout])
    assert job.steps() == []


def test_a_step_that_swallows_its_time_limit_is_late_all_the_same(app: Holdfast) -> None:
    def body() -> str:
        try:
            for _ in range(1000):
                time.sleep(0.005)
        except StepTimeout:
            return "got away"
        return "slow"

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("a", body, timeout=0.05)

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (code(job), job.steps()) == ("step_timeout", [])


def test_a_late_step_is_tried_again_by_its_policy(app: Holdfast) -> None:
    calls: list[int] = []

    async def body() -> int:
        calls.append(1)
        await asyncio.sleep(5 if len(calls) == 1 else 0)
        return len(calls)

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> int:
        return int(await ctx.step("a", body, timeout=0.05, retry=Retry.fixed(0, retries=1)))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == 2


def test_a_timeout_of_the_functions_own_is_not_the_steps(app: Holdfast) -> None:
    async def body() -> None:
        raise TimeoutError

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> None:
        await ctx.step("a", body, timeout=5)

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert code(job) == "timeout_error"


def test_progress_is_seen_while_the_workflow_runs(app: Holdfast, working: Working, until: Until) -> None:
    go: list[int] = []

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        for n in range(100):
            ctx.progress(n / 200, f"page {n}\n")
        while not go:
            time.sleep(0.005)

    job = flow.enqueue()
    with working(app):
        until(lambda: job.refresh().progress == (0.495, "page 99 "))
        assert job.state == "running"
        go.append(1)
        until(lambda: job.refresh().state == "succeeded")
    assert job.progress == (0.495, "page 99 ")


@pytest.mark.parametrize(("fraction", "text"), [(-0.1, ""), (1.1, ""), (float("nan"), ""), ("half", ""), (0.5, 7)])
def test_progress_is_a_number_from_0_to_1_and_a_text(holdfast: TestHoldfast, fraction: Any, text: Any) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.progress(fraction, text)

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert code(job) == "bad_input"
    assert job.progress is None


def test_a_step_that_may_take_no_time_is_refused(holdfast: TestHoldfast) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("a", dict, timeout=0)

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert code(job) == "bad_input"
