"""Whatever a handler does is recorded, and never ends the worker."""

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, computed_field

from holdfast import Context, Holdfast, JobHandler, Permanent, Retry, Snooze

ONCE = Retry.fixed(0, retries=0)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Custom(BaseException):
    pass


class Unfounded(Permanent):
    def __init__(self) -> None:
        """Leave out what the exception is made of."""


class Total(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean(self) -> float:
        return 1 / 0


def raiser(error: BaseException) -> Any:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), "value_error"),
        (Unprintable(), "unprintable"),
        (Custom(), "custom"),
        (KeyboardInterrupt(), "keyboard_interrupt"),
        (SystemExit(3), "system_exit"),
        (GeneratorExit(), "generator_exit"),
        (ExceptionGroup("many", [ValueError("a"), TypeError("b")]), "exception_group"),
        (RecursionError(), "recursion_error"),
        (MemoryError(), "memory_error"),
        (asyncio.CancelledError(), "cancelled_error"),
        (Permanent("gone", code=404), "404"),  # type: ignore[arg-type]
        (Permanent("gone", code=Unprintable()), "(the message cannot be printed)"),  # type: ignore[arg-type]
        (Unfounded(), "permanent"),
    ],
)
def test_any_exception_is_recorded_with_a_code_and_the_worker_goes_on(
    app: Holdfast, error: BaseException, code: str
) -> None:
    bad = app.job(name="bad", retry=ONCE)(raiser(error))

    @app.job
    def good() -> str:
        return "still here"

    first, second = bad.enqueue(), good.enqueue()
    app.run_worker(until_idle=True)
    assert first.refresh().state == "dead"
    assert first.failure is not None
    assert first.failure.code == code
    assert second.result(5) == "still here"


def test_any_exception_of_an_async_handler_is_recorded_too(app: Holdfast) -> None:
    @app.job(retry=ONCE)
    async def leave() -> None:
        sys.exit(1)

    @app.job(retry=ONCE)
    async def interrupt() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    @app.job
    async def good() -> int:
        return 1

    jobs = [leave.enqueue(), interrupt.enqueue(), good.enqueue(), good.enqueue()]
    app.run_worker(until_idle=True)
    assert [job.refresh().state for job in jobs] == ["dead", "dead", "succeeded", "succeeded"]


def test_the_message_of_a_failure_never_repeats_the_exceptions_text(app: Holdfast) -> None:
    @app.job(retry=ONCE)
    def leak() -> None:
        msg = "password is hunter2"
        raise ValueError(msg)

    job = leak.enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().failure is not None
    assert "hunter2" not in repr(job.record)
    (attempt,) = app.attempts(job.id)
    assert "hunter2" in (attempt.traceback or "")


@pytest.mark.parametrize("result", [object(), {1, object()}, float("nan"), "\ud800", "a\x00b", 2**70])
def test_a_result_that_is_not_json_is_rejected_and_recorded(app: Holdfast, result: object) -> None:
    @app.job
    def odd() -> object:
        return result

    job = odd.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, job.failure and job.failure.code) == ("dead", "rejected", "bad_result")


def test_a_handler_that_gives_a_coroutine_is_told_to_be_async(app: Holdfast) -> None:
    async def later() -> int:
        return 1

    @app.job
    def gives() -> Any:
        return later()

    job = gives.enqueue()
    app.run_worker(until_idle=True)
    failure = job.refresh().failure
    assert failure is not None
    assert (failure.code, failure.retryable) == ("bad_result", False)
    assert failure.message == "The handler returned a coroutine, which nobody awaits; make the handler itself async."


def test_an_exception_raised_while_the_result_is_written_is_recorded_as_the_handlers_own(app: Holdfast) -> None:
    @app.job(retry=ONCE)
    def numbers() -> Any:
        yield 1
        raise KeyError

    @app.job(retry=ONCE)
    def leaves() -> Any:
        yield 1
        sys.exit(1)

    @app.job(retry=ONCE)
    async def total() -> Total:
        return Total()

    jobs = [numbers.enqueue(), leaves.enqueue(), total.enqueue()]
    app.run_worker(until_idle=True)
    codes = [failure.code for job in jobs if (failure := job.refresh().failure)]
    assert codes == ["key_error", "system_exit", "zero_division_error"]


def test_a_result_over_the_limit_of_artifacts_is_rejected(app: Holdfast) -> None:
    @app.job
    def big() -> str:
        return "x" * app.max_payload

    job = big.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.failure and job.failure.code) == ("dead", "bad_result")


def test_permanent_goes_straight_to_dead_with_its_code(app: Holdfast) -> None:
    @app.job
    def refuse() -> None:
        raise Permanent("bad document", code="unsupported_format")

    job = refuse.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, job.attempt) == ("dead", "rejected", 1)
    assert job.failure == ("unsupported_format", "bad document", False)


def test_listed_exceptions_are_permanent(app: Holdfast) -> None:
    @app.job(permanent=(LookupError,))
    def refuse() -> None:
        raise KeyError

    job = refuse.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause) == ("dead", "rejected")


def test_retries_end_as_exhausted_after_max_attempts(app: Holdfast) -> None:
    runs: list[int] = []

    @app.job(retry=Retry.fixed(0.01, retries=2))
    def flaky(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise OSError

    job = flaky.enqueue()
    app.run_worker(until_idle=True)
    assert runs == [1, 2, 3]
    assert (job.refresh().state, job.cause, job.attempt) == ("dead", "exhausted", 3)
    assert [a.outcome for a in app.attempts(job.id)] == ["fail", "fail", "fail"]


def test_snooze_runs_again_without_charging_an_attempt(app: Holdfast) -> None:
    runs: list[int] = []

    @app.job(retry=ONCE)
    def later(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if len(runs) < 4:
            raise Snooze(0.01)
        return "done"

    job = later.enqueue()
    app.run_worker(until_idle=True)
    assert runs == [1, 1, 1, 1]
    assert job.result(5) == "done"


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, 1e18, "soon", True])
def test_a_snooze_without_a_time_is_a_failure_like_others(app: Holdfast, delay: Any) -> None:
    @app.job(retry=ONCE)
    def later() -> None:
        raise Snooze(delay)

    job = later.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.failure and job.failure.code) == ("dead", "bad_input")


def test_a_stored_payload_that_no_longer_fits_is_rejected_without_its_value(app: Holdfast, tmp_path: Path) -> None:
    @app.job(name="send")
    def old(to: str) -> None: ...

    job = old.enqueue("secret-address")
    other = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @other.job(name="send")
    def new(to: int) -> None: ...

    other.run_worker(until_idle=True)
    other.close()
    assert (job.refresh().state, job.cause, job.failure and job.failure.code) == ("dead", "rejected", "bad_payload")
    assert "to" in (job.failure.message if job.failure else "")
    assert "secret-address" not in (job.failure.message if job.failure else "")


def test_a_kind_nobody_knows_waits_for_the_grace_and_is_then_rejected(tmp_path: Path) -> None:
    producer = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @producer.job
    def new_kind() -> None: ...

    job = new_kind.enqueue()
    patient = Holdfast(f"sqlite:///{tmp_path}/jobs.db", unknown_kind_grace=60)
    patient.run_worker(until_idle=True)
    assert (job.refresh().state, job.attempt) == ("retrying", 0)
    hasty = Holdfast(f"sqlite:///{tmp_path}/jobs.db", unknown_kind_grace=0)
    late = new_kind.enqueue()
    hasty.run_worker(until_idle=True)
    assert (late.refresh().state, late.cause, late.failure and late.failure.code) == (
        "dead",
        "rejected",
        "unknown_kind",
    )
    for app in (producer, patient, hasty):
        app.close()


def test_handler_classes_run_with_their_model(app: Holdfast) -> None:
    seen: list[int] = []

    class Summary(BaseModel):
        user_id: int

    class Handler(JobHandler):
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return Summary

        def handle(self, payload: Summary) -> str:
            seen.append(payload.user_id)
            return f"user {payload.user_id}"

    job = app.register("daily_summary", Handler).enqueue(Summary(user_id=7))
    app.run_worker(until_idle=True)
    assert (seen, job.result(5)) == ([7], "user 7")


@pytest.mark.parametrize(
    "wrong", [lambda ctx: ctx.spend(-1), lambda ctx: ctx.step("a#2", print), lambda ctx: ctx.sleep("a", -1)]
)
def test_a_wrong_call_of_holdfast_is_not_tried_again_and_the_failure_names_the_callers_place(
    app: Holdfast, wrong: Any
) -> None:
    @app.workflow(retry=Retry.fixed(0, retries=3))
    def flow(ctx: Context) -> None:
        wrong(ctx)

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, job.attempt) == ("dead", "rejected", 1)
    assert job.failure is not None
    assert (job.failure.code, job.failure.retryable) == ("bad_input", False)
    assert job.failure.message.endswith("of test_outcomes.py")


def test_a_step_that_calls_holdfast_wrongly_is_not_tried_again_in_place(app: Holdfast) -> None:
    calls: list[int] = []

    def body(ctx: Context) -> None:
        calls.append(1)
        ctx.spend(-1)

    @app.workflow
    def flow(ctx: Context) -> None:
        ctx.step("a", body, ctx, retry=Retry.fixed(0, retries=3))

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, calls) == ("dead", [1])
