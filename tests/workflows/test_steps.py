"""Steps: run once, recorded, and read back from the record by whoever runs the workflow next."""

import asyncio
import functools
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from holdfast import Context, Holdfast, Permanent
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import AGAIN, ONCE, code, names


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    id: int
    due: date


def test_plain_and_async_functions_are_steps_of_a_blocking_workflow(app: Holdfast) -> None:
    async def later(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    @app.workflow
    def flow(n: int, ctx: Context) -> int:
        first: int = ctx.step("plain", lambda: n * 10)
        second: int = ctx.step("later", later, first)
        return int(ctx.step("partial", functools.partial(later, second)))

    job = flow.enqueue(4)
    app.run_worker(until_idle=True)
    assert job.result(1) == 42
    assert names(job.refresh()) == ["plain", "later", "partial"]
    assert (job.step_cursor, job.steps_total, job.attempt) == (3, 0, 1)


def test_plain_and_async_functions_are_steps_of_an_asynchronous_workflow(app: Holdfast) -> None:
    async def later(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    @app.workflow
    async def flow(n: int, ctx: Context) -> int:
        first = await ctx.step("plain", lambda: n * 10)
        second = await ctx.step("later", later, n=first)
        return int(await ctx.step("partial", functools.partial(later, second)))

    job = flow.enqueue(4)
    app.run_worker(until_idle=True)
    assert job.result(1) == 42
    assert [step.result for step in job.steps()] == ["40", "41", "42"]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_retry_is_given_what_is_on_record_and_runs_the_rest(app: Holdfast, awaited: bool) -> None:
    ran: list[str] = []

    def body(name: str) -> str:
        ran.append(name)
        if name == "b" and ran.count("b") == 1:
            raise OSError
        return name.upper()

    if awaited:

        @app.workflow(name="flow", retry=AGAIN)
        async def aflow(ctx: Context) -> list[str]:
            return [await ctx.step(each, body, each) for each in "abc"]
    else:

        @app.workflow(name="flow", retry=AGAIN)
        def flow(ctx: Context) -> list[str]:
            return [ctx.step(each, body, each) for each in "abc"]

    job = app.enqueue("flow", {})
    app.run_worker(until_idle=True)
    assert job.result(1) == ["A", "B", "C"]
    assert ran == ["a", "b", "b", "c"]
    assert names(job.refresh()) == ["a", "b", "c"]


def test_a_step_on_record_is_not_run_again_after_its_worker_died(holdfast: TestHoldfast) -> None:
    ran: list[str] = []

    @holdfast.workflow(name="flow")
    def flow(ctx: Context) -> list[int]:
        return [ctx.step(name, counted, name) for name in ("a", "b", "c")]

    def counted(name: str) -> int:
        ran.append(name)
        return len(ran)

    holdfast.crash_after("a")
    holdfast.crash_after("c")
    job = flow.enqueue()
    for _ in range(3):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert job.result() == [1, 2, 3]
    assert ran == ["a", "b", "c"]


def test_a_worker_that_dies_at_the_very_end_leaves_all_steps_on_record(holdfast: TestHoldfast) -> None:
    ran: list[int] = []

    @holdfast.workflow(name="flow")
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", counted))

    def counted() -> int:
        ran.append(1)
        return len(ran)

    holdfast.crash_after("flow")
    job = flow.enqueue()
    holdfast.run_until_idle()
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.result() == 1
    assert ran == [1]


def test_a_name_used_again_has_a_number_and_a_record_of_its_own(app: Holdfast) -> None:
    ran: list[int] = []

    def body(n: int) -> int:
        ran.append(n)
        if ran.count(2) == 1 and n == 2:
            raise OSError
        return n

    @app.workflow(retry=AGAIN)
    def flow(ctx: Context) -> list[int]:
        return [ctx.step("page", body, n) for n in range(4)]

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == [0, 1, 2, 3]
    assert names(job) == ["page", "page#2", "page#3", "page#4"]
    assert ran == [0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Order, Order(id=1, due=date(2026, 1, 2))),
        (list[Order], [Order(id=1, due=date(2026, 1, 2))]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (UUID, UUID(int=7)),
        (Colour, Colour.RED),
        (dict[int, str], {1: "a"}),
        (Any, {"a": [1, None, True]}),
        (None, None),
        (int | None, None),
    ],
)
def test_a_result_is_of_the_same_type_now_and_from_the_record(holdfast: TestHoldfast, hint: Any, value: Any) -> None:
    def body() -> Any:
        return value

    body.__annotations__["return"] = hint
    seen: list[Any] = []

    @holdfast.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        seen.append(ctx.step("make", body))
        if len(seen) == 1:
            raise OSError

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().state == "succeeded"
    assert seen == [value, value]
    assert {type(each) for each in seen} == {type(value)}


def test_a_step_that_returns_something_else_than_it_says_gives_plain_json_both_times(holdfast: TestHoldfast) -> None:
    seen: list[Any] = []

    def body() -> int:
        return "not a number"  # type: ignore[return-value]

    @holdfast.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        seen.append(ctx.step("lie", body))
        if len(seen) == 1:
            raise OSError

    flow.enqueue()
    holdfast.run_until_idle()
    assert seen == ["not a number"] * 2


def test_a_function_that_cannot_be_hashed_is_a_step(holdfast: TestHoldfast) -> None:
    class Adder:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, n: int) -> int:
            return n + 1

    @holdfast.workflow
    def flow(ctx: Context) -> int:
        return int(ctx.step("add", Adder(), 1))

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert job.result() == 2


@pytest.mark.parametrize("value", [object(), float("nan"), {1, object()}, "\ud800", 2**70, lambda: 1])
def test_a_result_that_is_not_json_rejects_the_workflow_and_records_nothing(app: Holdfast, value: object) -> None:
    @app.workflow
    def flow(ctx: Context) -> None:
        ctx.step("fine", lambda: 1)
        ctx.step("bad", lambda: value)

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, job.attempt) == ("dead", "rejected", 1)
    assert job.failure is not None
    assert job.failure.code == "bad_result"
    assert "The result of step 'bad'" in job.failure.message
    assert names(job) == ["fine"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_step_that_raises_anything_at_all_fails_its_attempt_and_no_more(
    app: Holdfast, error: BaseException, awaited: bool
) -> None:
    ran: list[int] = []

    def body() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise error
        return 7

    if awaited:

        @app.workflow(name="flow", retry=AGAIN)
        async def aflow(ctx: Context) -> int:
            return int(await ctx.step("a", body))
    else:

        @app.workflow(name="flow", retry=AGAIN)
        def flow(ctx: Context) -> int:
            return int(ctx.step("a", body))

    job = app.enqueue("flow", {})
    app.run_worker(until_idle=True)
    assert job.result(1) == 7
    assert [attempt.outcome for attempt in app.attempts(job.id)] == ["fail", "complete"]


def test_a_permanent_failure_in_a_step_rejects_the_workflow_at_once(app: Holdfast) -> None:
    @app.workflow
    def flow(ctx: Context) -> None:
        def body() -> None:
            raise Permanent("no such order", code="no_order")

        ctx.step("a", body)

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().cause, job.attempt) == ("rejected", 1)
    assert code(job) == "no_order"


def test_the_effect_key_is_the_steps_own_and_stays_the_same(holdfast: TestHoldfast) -> None:
    keys: list[str] = []

    @holdfast.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        def body() -> None:
            keys.append(ctx.effect_key)
            if len(keys) == 1:
                raise OSError

        ctx.step("charge", body)
        ctx.step("charge", body)

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert keys == [f"{job.id}:1:charge", f"{job.id}:1:charge", f"{job.id}:1:charge#2"]


@pytest.mark.parametrize("name", ["", "x" * 201, "a#2", "a@2", "~a", "$a", "undo:a", "a\nb", None, 7])
def test_a_step_has_a_name_that_can_be_told_from_our_own(holdfast: TestHoldfast, name: Any) -> None:
    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step(name, lambda: 1)

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert code(job) == "bad_input"
    assert job.steps() == []


def test_a_step_is_a_function_with_a_policy_and_a_time_limit(holdfast: TestHoldfast) -> None:
    wrong: list[dict[str, Any]] = [{"undo": 3}, {"retry": 3}, {"timeout": -1}, {"timeout": "soon"}]

    @holdfast.workflow(retry=ONCE)
    def flow(n: int, ctx: Context) -> None:
        if n == len(wrong):
            ctx.step("a", 7)  # type: ignore[arg-type]
        ctx.step("a", lambda: 1, **wrong[n])

    jobs = [flow.enqueue(n) for n in range(len(wrong) + 1)]
    holdfast.run_until_idle()
    assert [code(job) for job in jobs] == ["bad_input"] * 5
    assert {job.state for job in jobs} == {"dead"}


def test_a_decorated_job_can_be_a_step(app: Holdfast) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    @app.workflow
    def flow(ctx: Context) -> int:
        return int(ctx.step("double", double, 21))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == 42
    assert [each.kind for each in app.find()] == ["flow"]


def test_a_job_that_takes_its_context_can_have_steps_as_well(app: Holdfast) -> None:
    @app.job
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", lambda: 7))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (job.result(1), names(job)) == (7, ["a"])


def test_a_workflow_that_does_not_await_what_it_asks_for_has_not_succeeded(holdfast: TestHoldfast) -> None:
    ran: list[str] = []

    @holdfast.workflow
    async def hasty(ctx: Context) -> str:
        await ctx.step("first", ran.append, "first")
        ctx.step("charge", ran.append, "charge")
        return "charged"

    job = hasty.enqueue()
    holdfast.run_until_idle()
    failure = job.refresh().failure
    assert failure is not None
    assert (job.state, job.cause, failure.code) == ("dead", "rejected", "not_awaited")
    assert failure.message == "The handler returned and never awaited 'charge' of its context; write await before it."
    assert ran == ["first"]


def test_a_step_that_was_called_off_before_it_began_is_not_missed(holdfast: TestHoldfast) -> None:
    @holdfast.workflow
    async def careful(ctx: Context) -> str:
        task = asyncio.create_task(ctx.step("late", dict))
        task.cancel()
        await asyncio.wait([task])
        return "done"

    job = careful.enqueue()
    holdfast.run_until_idle()
    assert job.result() == "done"
