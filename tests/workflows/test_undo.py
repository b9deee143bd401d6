"""Undo: what was recorded is taken back in reverse when the workflow dies or is cancelled."""

import asyncio
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Permanent, Retry, Step
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import OFTEN, ONCE, code, names


class Diary:
    """A workflow of three steps that can be undone, and what happened to it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.end: Any = None
        self.bad_undos = 0

    def do(self, name: str) -> str:
        self.lines.append(name)
        return name.upper()

    def undo(self, result: str) -> None:
        self.lines.append(f"undo {result}")
        if self.bad_undos and result == "B":
            self.bad_undos -= 1
            raise OSError

    def register(self, app: Holdfast, *, awaited: bool = False, **options: Any) -> Any:
        def flow(ctx: Context) -> str:
            for name in "abc":
                ctx.step(name, self.do, name, undo=self.undo)
            ctx.step("plain", self.do, "plain")
            return str(self.end(ctx))

        async def aflow(ctx: Context) -> str:
            for name in "abc":
                await ctx.step(name, self.do, name, undo=self.undo)
            await ctx.step("plain", self.do, "plain")
            result = self.end(ctx)
            return str(await result if asyncio.iscoroutine(result) else result)

        return app.workflow(**{"name": "flow", "retry": ONCE, **options})(aflow if awaited else flow)


@pytest.fixture
def diary() -> Diary:
    return Diary()


def fail(ctx: Context) -> None:
    raise OSError


def reject(ctx: Context) -> None:
    raise Permanent("no", code="no")


DONE = ["a", "b", "c", "plain"]
UNDONE = ["undo C", "undo B", "undo A"]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("end", "ended"), [(fail, ("exhausted", "oserror")), (reject, ("rejected", "no"))])
def test_a_workflow_that_dies_is_undone_in_reverse_and_each_undo_is_recorded(
    app: Holdfast, diary: Diary, end: Any, ended: tuple[str, str], awaited: bool
) -> None:
    diary.end = end
    job = diary.register(app, awaited=awaited).enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, (job.cause, code(job))) == ("dead", ended)
    assert diary.lines == DONE + UNDONE
    assert names(job) == ["a", "b", "c", "plain", "undo:c", "undo:b", "undo:a"]
    assert [attempt.outcome for attempt in app.attempts(job.id)] == ["fail", "undo"]


def test_nothing_is_undone_while_there_are_attempts_left_or_after_success(app: Holdfast, diary: Diary) -> None:
    diary.end = lambda ctx: fail(ctx) if ctx.attempt < 3 else "fine"
    job = diary.register(app, retry=Retry.fixed(0, retries=2)).enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == "fine"
    assert diary.lines == DONE


def test_only_what_is_on_record_is_undone(app: Holdfast, diary: Diary) -> None:
    def do(name: str) -> str:
        if name == "c":
            raise OSError
        return name.upper()

    diary.do = do  # type: ignore[method-assign]
    job = diary.register(app).enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"
    assert diary.lines == ["undo B", "undo A"]


def test_a_workflow_that_loses_its_workers_is_undone(holdfast: TestHoldfast, diary: Diary) -> None:
    diary.end = lambda _: "fine"
    job = diary.register(holdfast, retry=OFTEN, crash_cap=2).enqueue()
    holdfast.crash_after("flow", times=2)
    for _ in range(3):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert (job.refresh().state, job.cause, code(job)) == ("dead", "crashed", "lease_expired")
    assert diary.lines == DONE + UNDONE


def test_a_workflow_that_is_cancelled_while_it_waits_is_undone(app: Holdfast, diary: Diary) -> None:
    diary.end = lambda ctx: ctx.wait_for("never")
    job = diary.register(app).enqueue()
    app.run_worker(until_idle=True)
    assert job.cancel().state == "retrying"
    assert job.cancel().state == "retrying", "it is on its way"
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause) == ("cancelled", None)
    assert diary.lines == DONE + UNDONE


def test_a_workflow_that_is_cancelled_while_it_sleeps_is_undone_at_once(holdfast: TestHoldfast, diary: Diary) -> None:
    diary.end = lambda ctx: ctx.sleep("night", 3600)
    job = diary.register(holdfast).enqueue()
    holdfast.run_until_idle()
    job.cancel()
    holdfast.run_until_idle()
    assert job.refresh().state == "cancelled"
    assert diary.lines == DONE + UNDONE


@pytest.mark.parametrize("awaited", [False, True])
def test_a_workflow_that_is_cancelled_while_it_runs_is_undone(
    app: Holdfast, diary: Diary, working: Working, until: Until, awaited: bool
) -> None:
    running = threading.Event()

    async def hang(ctx: Context) -> None:
        running.set()
        await asyncio.sleep(60)

    def spin(ctx: Context) -> None:
        running.set()
        while True:
            time.sleep(0.005)

    diary.end = hang if awaited else spin
    job = diary.register(app, awaited=awaited).enqueue()
    with working(app):
        until(running.is_set)
        job.cancel()
        until(lambda: job.refresh().state == "cancelled")
    assert diary.lines == DONE + UNDONE


def test_an_undo_that_fails_is_tried_again_and_those_done_are_not(app: Holdfast, diary: Diary) -> None:
    diary.end, diary.bad_undos = fail, 2
    job = diary.register(app, retry=Retry.fixed(0, retries=2)).enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause) == ("dead", "exhausted")
    assert diary.lines == [*DONE, "undo C", "undo B", "undo B", "undo B", "undo A"]


def test_an_undo_that_is_tried_again_does_not_hide_what_ended_the_job(app: Holdfast, diary: Diary) -> None:
    told: list[tuple[str, str | None]] = []
    app.sink("told", lambda event: told.append((event["name"], event.get("code"))), names=["job_retrying", "job_dead"])
    diary.end, diary.bad_undos = reject, 1
    job = diary.register(app, retry=Retry.fixed(0, retries=2)).enqueue()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, code(job)) == ("dead", "rejected", "no")
    assert [each.code for each in app.attempts(job.id)] == ["no", "oserror", None]
    assert told[1:] == [("job_retrying", "oserror"), ("job_dead", "no")]


def test_an_undo_that_goes_on_failing_leaves_the_job_dead_and_a_redrive_goes_on_with_it(
    app: Holdfast, diary: Diary
) -> None:
    diary.end, diary.bad_undos = (lambda ctx: ctx.wait_for("never")), 1
    job = diary.register(app).enqueue()
    app.run_worker(until_idle=True)
    job.cancel()
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause) == ("dead", "exhausted")
    assert names(job)[-1] == "undo:c"
    job.redrive()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "cancelled"
    assert diary.lines == [*DONE, "undo C", "undo B", "undo B", "undo A"]


def test_a_crash_in_the_middle_of_undoing_repeats_nothing_that_is_recorded(
    holdfast: TestHoldfast, diary: Diary
) -> None:
    diary.end = reject
    job = diary.register(holdfast, retry=OFTEN).enqueue()
    for step in ("undo:c", "undo:b"):
        holdfast.crash_after(step)
    for _ in range(3):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert (job.refresh().state, job.cause) == ("dead", "rejected")
    assert diary.lines == DONE + UNDONE


def test_a_redrive_does_again_what_was_undone_and_keeps_the_rest(app: Holdfast, diary: Diary) -> None:
    diary.end = fail
    job = diary.register(app).enqueue()
    app.run_worker(until_idle=True)
    diary.lines.clear()
    diary.end = lambda _: "fine"
    job.redrive()
    app.run_worker(until_idle=True)
    assert job.result(1) == "fine"
    assert diary.lines == ["a", "b", "c"]
    assert names(job)[-3:] == ["a@2", "b@2", "c@2"]


def test_a_job_that_dies_again_after_a_redrive_is_undone_again(app: Holdfast, diary: Diary) -> None:
    diary.end = fail
    job = diary.register(app).enqueue()
    app.run_worker(until_idle=True)
    for generation in (2, 3):
        diary.lines.clear()
        job.redrive()
        app.run_worker(until_idle=True)
        assert (job.refresh().state, job.generation) == ("dead", generation)
        assert diary.lines == ["a", "b", "c", *UNDONE]
    assert len(names(job)) == len(set(names(job))) == 1 + 3 * 6


def test_a_crash_while_undoing_a_later_generation_undoes_that_one(holdfast: TestHoldfast, diary: Diary) -> None:
    diary.end = reject
    job = diary.register(holdfast, retry=OFTEN).enqueue()
    holdfast.run_until_idle()
    diary.lines.clear()
    holdfast.crash_after("undo:b@2")
    job.redrive()
    for _ in range(2):
        holdfast.run_until_idle()
        holdfast.advance(minutes=1)
    assert job.refresh().state == "dead"
    assert diary.lines == ["a", "b", "c", *UNDONE]


def test_a_pipeline_is_undone_and_a_redrive_runs_what_was_undone_again(app: Holdfast, diary: Diary) -> None:
    healthy: list[int] = []

    def reserve(payload: Any) -> str:
        return diary.do("reserve")

    def notify(payload: Any) -> str:
        return diary.do("notify")

    def ship(payload: Any, results: dict[str, str]) -> str:
        if not healthy:
            raise OSError
        return ",".join(results.values())

    def unreserve(result: str, payload: Any, ctx: Context) -> None:
        diary.lines.append(f"undo {result} {payload} {ctx.kind}")

    pipe = app.pipeline("pipe", [Step(reserve, undo=unreserve), notify, ship], retry=ONCE)
    job = pipe.enqueue({"n": 1})
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.step_cursor) == ("dead", 2)
    assert diary.lines == ["reserve", "notify", "undo RESERVE {'n': 1} pipe"]
    diary.lines.clear()
    healthy.append(1)
    job.redrive()
    app.run_worker(until_idle=True)
    assert job.result(1) == "RESERVE,NOTIFY"
    assert diary.lines == ["reserve"]
    assert job.refresh().step_cursor == job.steps_total == 3


@pytest.mark.parametrize(
    ("undo", "given"),
    [
        (lambda: ("nothing",), ("nothing",)),
        (lambda result: (result,), (3,)),
        (lambda result, a: (result, a), (3, 1)),
        (lambda result, a, b: (result, a, b), (3, 1, 2)),
        (lambda result, b: (result, b), (3, 2)),
        (lambda result, *, b: (result, b), (3, 2)),
        (lambda *args: args, (3, 1)),
        (lambda *args, **more: (*args, more), (3, 1, {"b": 2})),
        (lambda result, a=9, b=9, c=9: (result, a, b, c), (3, 1, 2, 9)),
    ],
)
def test_an_undo_is_given_as_much_as_it_takes(holdfast: TestHoldfast, undo: Any, given: tuple[Any, ...]) -> None:
    seen: list[Any] = []

    async def later(*args: Any, **named: Any) -> None:
        seen.append(undo(*args, **named))

    later.__signature__ = __import__("inspect").signature(undo)  # type: ignore[attr-defined]

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("add", lambda a, b: a + b, 1, b=2, undo=later)
        raise OSError

    job = flow.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().state == "dead"
    assert seen == [given]


def test_a_step_beside_a_failing_one_is_undone_too(app: Holdfast, diary: Diary) -> None:
    async def bad(job: UUID) -> None:
        while len(await app.asteps(job)) < 2:  # noqa: ASYNC110 - another thread records them
            await asyncio.sleep(0.01)
        raise OSError

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("bad", bad, ctx.job_id),
            ctx.step("a", diary.do, "a", undo=diary.undo),
            ctx.step("b", diary.do, "b", undo=diary.undo),
        )

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"
    assert sorted(diary.lines) == ["a", "b", "undo A", "undo B"]


def test_a_job_that_is_being_undone_takes_no_signal_and_no_second_cancel(holdfast: TestHoldfast, diary: Diary) -> None:
    from holdfast import IllegalMove

    diary.end = lambda ctx: ctx.wait_for("x")
    job = diary.register(holdfast).enqueue()
    holdfast.run_until_idle()
    job.cancel()
    with pytest.raises(IllegalMove):
        job.signal("x")
    holdfast.run_until_idle()
    assert job.refresh().state == "cancelled"
