"""Watches observe and decide nothing: one that goes wrong holds up nobody."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NoReturn

import pytest

from holdfast import Context, Holdfast, Retry
from holdfast.domain.job import NewJob
from holdfast.domain.move import Move
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.telemetry.watch import Settled, Watch, Watches


class Clumsy(Watch):
    """Stumbles over all that it is told, on the way in or on the way out."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> NoReturn:
        raise RuntimeError

    def began(self, attempt: Attempt) -> NoReturn:
        raise RuntimeError

    def finished(self, attempt: Attempt, move: Move | None) -> NoReturn:
        raise RuntimeError

    def settled(self, settled: Sequence[Settled]) -> NoReturn:
        raise RuntimeError

    def scope(self, attempt: Attempt) -> NoReturn:
        raise RuntimeError

    @contextmanager
    def step(self, attempt: Attempt, name: str) -> Iterator[None]:
        yield
        raise RuntimeError


class Attentive(Watch):
    """Writes down what it is told of."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def enqueued(self, jobs: Sequence[Any]) -> None:
        self.told += ["enqueued"] * len(jobs)

    def began(self, attempt: Attempt) -> None:
        self.told.append("began")

    def settled(self, settled: Sequence[Any]) -> None:
        self.told += [move.state.value for _, move in settled]

    @contextmanager
    def step(self, attempt: Attempt, name: str) -> Iterator[None]:
        self.told.append(name)
        try:
            yield
        except ValueError:
            self.told.append("raised")
            raise


@pytest.mark.parametrize("awaited", [False, True], ids=["thread", "loop"])
def test_a_watch_that_stumbles_over_everything_changes_nothing_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture, awaited: bool
) -> None:
    other = Attentive()
    with closing(Holdfast("memory://")) as app:
        app.telemetry.watch = Watches((Clumsy(), other))

        def double(n: int, ctx: Context) -> int:
            return int(ctx.step("double", lambda: 2 * n))

        async def adouble(n: int, ctx: Context) -> int:
            return int(await ctx.step("double", lambda: 2 * n))

        workflow = app.workflow(name="double")(adouble if awaited else double)
        jobs = [workflow.enqueue(n) for n in range(3)]
        app.run_worker(until_idle=True)
        assert [job.result() for job in jobs] == [0, 2, 4]
    assert sorted(other.told) == sorted(["enqueued", "began", "double", "succeeded"] * 3)
    complaints = [record.getMessage() for record in caplog.records if record.name == "holdfast.telemetry"]
    assert len(complaints) == len(set(complaints))
    assert {"Clumsy.scope stumbled (RuntimeError), which is not told again"} <= set(complaints)


def test_what_a_step_raises_passes_through_all_that_is_around_it() -> None:
    other = Attentive()
    with closing(Holdfast("memory://")) as app:
        app.telemetry.watch = Watches((other, Clumsy()))

        @app.workflow(retry=Retry.fixed(0, retries=0))
        def fail(n: int, ctx: Context) -> None:
            ctx.step("fail", lambda: int("x"))

        job = fail.enqueue(1)
        app.run_worker(until_idle=True)
        assert (job.refresh().state, job.record.failure_code) == ("dead", "value_error")
    assert other.told == ["enqueued", "began", "fail", "raised", "dead"]
