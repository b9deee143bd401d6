"""Pipelines: ordered steps, each given the payload and the results so far."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import BadInput, BadPayload, Context, Holdfast, Step
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import AGAIN, OFTEN, names


class Document(BaseModel):
    name: str


class Page(BaseModel):
    text: str


def test_each_step_is_given_as_much_as_it_takes(app: Holdfast) -> None:
    seen: list[Any] = []

    def nothing() -> int:
        return 1

    def one(payload: Any) -> int:
        seen.append(payload)
        return 2

    def two(payload: Any, results: Any) -> int:
        seen.append(results)
        return 3

    def context_first(ctx: Context, payload: Any, results: Any) -> int:
        seen.append((ctx.effect_key.rpartition(":")[2], results))
        return 4

    def everything(*args: Any, ctx: Context) -> int:
        seen.append((args, ctx.kind))
        return 5

    def silent(payload: Any) -> None:
        return None

    pipe = app.pipeline("pipe", [nothing, one, two, context_first, everything, silent, Step(one, name="last")])
    job = pipe.enqueue({"n": 7})
    assert (job.steps_total, job.step_cursor) == (7, 0)
    app.run_worker(until_idle=True)
    assert job.result(1) == 2
    so_far = {"nothing": 1, "one": 2}
    four = {**so_far, "two": 3, "context_first": 4}
    assert seen[:3] == [{"n": 7}, so_far, ("context_first", {**so_far, "two": 3})]
    assert seen[3:] == [(({"n": 7}, four), "pipe"), {"n": 7}]
    assert (job.refresh().step_cursor, job.steps_total) == (7, 7)
    assert names(job) == ["nothing", "one", "two", "context_first", "everything", "silent", "last"]


def test_async_steps_stand_beside_plain_ones(app: Holdfast) -> None:
    async def fetch(payload: dict[str, int]) -> int:
        await asyncio.sleep(0)
        return payload["n"] + 1

    def double(payload: dict[str, int], results: dict[str, int]) -> int:
        return 2 * results["fetch"]

    job = app.pipeline("pipe", [fetch, double]).enqueue({"n": 20})
    app.run_worker(until_idle=True)
    assert job.result(1) == 42


def test_the_payload_and_results_have_the_types_that_the_steps_say(app: Holdfast) -> None:
    seen: list[Any] = []

    def fetch(document: Document) -> Page:
        seen.append(document)
        return Page(text=document.name.upper())

    def index(document: Document, results: dict[str, Any]) -> Page:
        seen.append(results["fetch"])
        if len(seen) < 3:
            raise OSError
        return Page(text="!")

    pipe = app.pipeline("pipe", [fetch, index], retry=AGAIN)
    with pytest.raises(BadPayload):
        pipe.enqueue({"nom": "a"})
    job = pipe.enqueue(Document(name="a"))
    app.run_worker(until_idle=True)
    assert job.result(1) == Page(text="!")
    assert seen == [Document(name="a"), Page(text="A"), Page(text="A")]
    assert len(app.find()) == 1


def test_the_cursor_is_the_next_step_to_run_and_moves_with_the_record(holdfast: TestHoldfast) -> None:
    ran: list[str] = []

    def step(name: str) -> Step:
        return Step(lambda _: ran.append(name), name=name)

    pipe = holdfast.pipeline("pipe", [step("a"), step("b"), step("c")], retry=OFTEN, crash_cap=9)
    job = pipe.enqueue({})
    for done, crashing in ((1, "a"), (2, "b"), (3, "c")):
        holdfast.crash_after(crashing)
        holdfast.run_until_idle()
        assert (job.refresh().step_cursor, job.steps_total, job.state) == (done, 3, "running")
        assert len(names(job)) == done
        holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.refresh().state == "succeeded"
    assert ran == ["a", "b", "c"]


def test_a_pipeline_may_wait_in_the_middle_of_a_step(app: Holdfast) -> None:
    ran: list[str] = []

    def fetch(payload: Any) -> None:
        ran.append("fetch")

    def approve(payload: Any, results: Any, ctx: Context) -> Any:
        return ctx.wait_for("approval")

    pipe = app.pipeline("pipe", [fetch, approve])
    job = pipe.enqueue({})
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.step_cursor, job.lease) == ("retrying", 1, None)
    job.signal("approval", "yes")
    app.run_worker(until_idle=True)
    assert (job.result(1), ran) == ("yes", ["fetch"])
    assert job.refresh().step_cursor == job.steps_total == 2


def noop(payload: Any) -> None:
    return None


def needs_more(payload: Any, results: Any, first: Any, ctx: Context) -> None:
    return None


def needs_a_name(payload: Any, *, first: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([], "one or more functions"),
        ("noop", "one or more functions"),
        (7, "one or more functions"),
        ([noop, noop], "two steps named 'noop'"),
        ([noop, Step(print, name="noop")], "two steps named 'noop'"),
        ([noop, 7], "named functions"),
        ([Step(noop, undo=7)], "named functions"),  # type: ignore[arg-type]
        ([Step(noop, name="a#2")], "no '#'"),
        ([Step(noop, name="undo:a")], "'undo:'"),
        ([Step(noop, timeout=-1)], "negative"),
        ([Step(noop, timeout=0)], "timeout must be more than 0 seconds"),
        ([Step(noop, retry=3)], "retry= takes Retry"),  # type: ignore[arg-type]
        ([noop, int], "named functions"),
        ([noop, Step(needs_more)], "'needs_more' of 'pipe' needs 'first' as well"),
        ([noop, needs_a_name], "'needs_a_name' of 'pipe' needs 'first' as well"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_when_it_is_made(holdfast: TestHoldfast, steps: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        holdfast.pipeline("pipe", steps)
    assert list(holdfast.registry) == []


@pytest.mark.parametrize("made", ["workflow", "pipeline"])
def test_a_workflow_does_not_run_in_a_process_of_its_own(holdfast: TestHoldfast, made: str) -> None:
    def flow(ctx: Context) -> None:
        ctx.step("a", lambda: 1)

    def make() -> None:
        if made == "pipeline":
            holdfast.pipeline("pipe", [noop], run_in="process")
        else:
            holdfast.workflow(run_in="process")(flow)

    with pytest.raises(BadInput, match="process"):
        make()
    assert list(holdfast.registry) == []


def test_a_workflow_takes_its_context(holdfast: TestHoldfast) -> None:
    with pytest.raises(BadInput, match="ctx: Context"):

        @holdfast.workflow
        def flow(n: int) -> None:
            pass


class TestChanged:
    """A pipeline whose list has changed since the run was made."""

    @pytest.fixture
    def ran(self) -> list[str]:
        return []

    def begun(self, holdfast: TestHoldfast, ran: list[str], kept: str = "ab", total: str = "abc") -> Any:
        """Run a pipeline up to some step, and take the code away."""
        pipe = holdfast.pipeline("pipe", [self.step(ran, name) for name in total], retry=OFTEN)
        job = pipe.enqueue({})
        holdfast.crash_after(kept[-1])
        holdfast.run_until_idle()
        assert ran == list(kept)
        ran.clear()
        holdfast.registry.__init__()  # type: ignore[misc]
        holdfast.advance(minutes=1)
        return job

    def step(self, ran: list[str], name: str) -> Step:
        def body(payload: Any, results: dict[str, str]) -> str:
            ran.append(name)
            return f"{name}({','.join(results)})"

        return Step(body, name=name)

    @pytest.mark.parametrize(
        ("now", "runs", "result"),
        [
            ("abcd", "cd", "d(a,b,c)"),
            ("ab", "", "b(a)"),
            ("a", "", "a()"),
            ("bc", "c", "c(b)"),
            ("xabc", "c", "c(a,b)"),
            ("axbc", "c", "c(a,b)"),
            ("abxc", "xc", "c(a,b,x)"),
            ("cba", "", "a()"),
            ("bac", "c", "c(b,a)"),
            ("xy", "xy", "y(x)"),
        ],
    )
    def test_what_is_recorded_stays_and_what_lies_behind_the_last_record_runs(
        self, holdfast: TestHoldfast, ran: list[str], now: str, runs: str, result: str
    ) -> None:
        job = self.begun(holdfast, ran)
        holdfast.pipeline("pipe", [self.step(ran, name) for name in now], retry=OFTEN)
        holdfast.run_until_idle()
        assert job.refresh().state == "succeeded"
        assert "".join(ran) == runs
        assert (job.record.steps_total, job.step_cursor) == (3, 3), "the total is what it was when the job was made"
        assert job.result() == result
