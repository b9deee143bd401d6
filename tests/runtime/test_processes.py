"""Handlers in processes of their own: results cross as JSON, and a child's death is an outcome like any other."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from holdfast import Context, Holdfast, Permanent, Retry, Snooze
from tests.workers import LONG, Working

ONCE = Retry.fixed(0, retries=0)
handlers = Holdfast("memory://")


@handlers.job(run_in="process")
def square(n: int) -> dict[str, int]:
    return {"n": n * n, "pid": os.getpid()}


@handlers.job(run_in="process")
async def asquare(n: int) -> int:
    return n * n


@handlers.job(run_in="process", retry=ONCE)
def die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGSEGV if how == "segfault" else signal.SIGKILL)


@handlers.job(run_in="process", retry=ONCE, timeout=0.3)
def spin() -> None:
    while True:
        pass


@handlers.job(run_in="process", retry=ONCE)
def refuse(ctx: Context) -> None:
    if ctx.attempt == 1 and ctx.max_attempts == 1:
        raise Permanent("no", code="nope")


@handlers.job(run_in="process", retry=ONCE)
def leave() -> None:
    sys.exit("bye")


@handlers.job(run_in="process", retry=ONCE)
def numbers() -> Iterator[int]:
    yield 1
    raise KeyError


@handlers.job(run_in="process", retry=ONCE)
def nap(since: float) -> str:
    if time.time() < since + 0.3:
        raise Snooze(0.1)
    return "rested"


@pytest.fixture
def app(app: Holdfast) -> Holdfast:
    """The application with this module's handlers."""
    app.registry = handlers.registry
    return app


def enqueue(app: Holdfast, kind: str, **payload: object) -> object:
    return app.enqueue(kind, payload)


def test_results_come_back_from_another_process(app: Holdfast) -> None:
    job, other = app.enqueue("square", {"n": 7}), app.enqueue("asquare", {"n": 5})
    app.run_worker(until_idle=True)
    result = job.result(LONG)
    assert isinstance(result, dict)
    assert result["n"] == 49
    assert result["pid"] != os.getpid()
    assert other.result(LONG) == 25


@pytest.mark.parametrize(("how", "said"), [("exit", "exit code 7"), ("segfault", "SIGSEGV"), ("kill", "SIGKILL")])
def test_a_child_that_dies_is_recorded_and_replaced(app: Holdfast, how: str, said: str) -> None:
    job, after = app.enqueue("die", {"how": how}), app.enqueue("square", {"n": 2})
    app.run_worker(until_idle=True, concurrency=1)
    assert job.refresh().failure is not None
    assert (job.state, job.failure and job.failure.code) == ("dead", "process_died")
    assert said in (job.failure.message if job.failure else "")
    assert after.refresh().state == "succeeded"


def test_a_busy_loop_is_killed_at_its_timeout(app: Holdfast, working: Working) -> None:
    job = app.enqueue("spin", {})
    with working(app):
        end = time.monotonic() + LONG
        while job.refresh().state != "dead":
            assert time.monotonic() < end
    assert job.failure is not None
    assert job.failure.code == "timeout"


def test_permanent_snooze_and_exit_cross_the_border(app: Holdfast) -> None:
    refused, left, rested = (
        app.enqueue("refuse", {}),
        app.enqueue("leave", {}),
        app.enqueue("nap", {"since": time.time()}),
    )
    app.run_worker(until_idle=True)
    assert refused.refresh().failure == ("nope", "no", False)
    assert (left.refresh().failure or ("",))[0] == "system_exit"
    assert rested.result(LONG) == "rested"
    assert rested.refresh().attempt == 1


def test_an_exception_raised_while_the_result_is_written_crosses_the_border(app: Holdfast) -> None:
    job = app.enqueue("numbers", {})
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.failure and job.failure.code) == ("dead", "key_error")
