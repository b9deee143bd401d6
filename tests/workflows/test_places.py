"""Workflows wherever they run, and whatever they carry: large values, deliveries, stores that stumble, no events."""

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, StoreUnavailable, retention
from holdfast.domain.move import Move
from holdfast.port.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import AGAIN, ONCE, code

LARGE = 300_000


def artifacts(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "artifacts").rglob("*") if path.is_file())


@pytest.mark.parametrize("awaited", [False, True])
def test_large_values_go_beside_the_store_and_come_back_whole(app: Holdfast, tmp_path: Path, awaited: bool) -> None:
    ran: list[int] = []

    @app.job
    def child(text: str) -> str:
        return text.upper()

    def make(text: str) -> str:
        ran.append(1)
        return text + "y"

    if awaited:

        @app.workflow(name="flow", retry=AGAIN)
        async def aflow(text: str, ctx: Context) -> list[str]:
            made = await ctx.step("make", make, text)
            return [made, *await ctx.gather([child.prepare(made)])]
    else:

        @app.workflow(name="flow", retry=AGAIN)
        def flow(text: str, ctx: Context) -> list[str]:
            made = ctx.step("make", make, text)
            return [made, *ctx.gather([child.prepare(made)])]

    large = "x" * LARGE
    job = app.enqueue("flow", {"text": large})
    app.run_worker(until_idle=True)
    assert job.result(5) == [large + "y", large.upper() + "Y"]
    assert ran == [1]
    assert job.payload == {"text": large}
    stored = [job.refresh().record.payload, job.record.result, *(step.result for step in job.steps())]
    assert max(len(each) for each in stored if each is not None) < 1000
    assert {len(each.record.payload) < 1000 for each in app.find(kind="child")} == {True}
    assert artifacts(tmp_path)


def test_what_lies_beside_the_store_goes_when_the_job_is_purged(url: str, tmp_path: Path) -> None:
    kept = retention(succeeded=0)
    app = Holdfast(url, upkeep=0.02, retention=kept, artifacts=f"file://{tmp_path}/artifacts")

    @app.workflow(retry=ONCE)
    def flow(text: str, ctx: Context) -> str:
        return str(ctx.step("same", lambda: text))

    job = flow.enqueue("x" * LARGE)
    assert len(artifacts(tmp_path)) == 1
    app.run_worker(until_idle=True)
    for _ in range(50):
        if not app.find():
            break
        app.run_worker(until_idle=True)
    assert (app.find(), artifacts(tmp_path)) == ([], [])
    assert job.state == "queued", "as it was when last read"
    app.close()


def test_a_fork_has_copies_of_its_own(app: Holdfast, tmp_path: Path) -> None:
    @app.workflow(retry=ONCE)
    def flow(text: str, ctx: Context) -> int:
        made = ctx.step("same", lambda: text)
        return int(ctx.step("count", lambda: len(made)))

    job = flow.enqueue("x" * LARGE)
    app.run_worker(until_idle=True)
    before = set(artifacts(tmp_path))
    fork = job.fork(from_step="count")
    assert len(set(artifacts(tmp_path)) - before) == 2
    for path in before:
        path.unlink()
    app.run_worker(until_idle=True)
    assert fork.result(1) == LARGE


def test_a_delivery_runs_a_workflow_as_a_worker_does(app: Holdfast) -> None:
    ran: list[str] = []

    @app.job
    def child() -> str:
        return "child"

    @app.workflow(retry=ONCE)
    async def flow(ctx: Context) -> list[Any]:
        await ctx.step("a", ran.append, "a")
        said = await ctx.wait_for("word")
        return [said, await ctx.gather([child.prepare()]), await ctx.step("b", lambda: "b")]

    job = flow.enqueue()
    assert app.process(app.envelope(job.id)) == "claimed"
    assert app.process(app.envelope(job.id)) == "already-claimed", "it waits, and cannot be claimed"
    assert job.refresh().state == "retrying"
    job.signal("word", "yes")
    assert app.process(app.envelope(job.id)) == "claimed"
    (spawned,) = app.find(kind="child")
    assert app.process(app.envelope(spawned.id)) == "claimed"
    assert app.process(app.envelope(job.id)) == "claimed"
    assert app.process(app.envelope(job.id)) == "no-op-terminal"
    assert job.result(1) == ["yes", ["child"], "b"]
    assert ran == ["a"]


def test_a_delivery_undoes_what_is_to_be_undone(app: Holdfast) -> None:
    ran: list[str] = []

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.step("a", ran.append, "a", undo=lambda: ran.append("undo"))
        raise OSError

    job = flow.enqueue()
    assert app.process(app.envelope(job.id)) == "claimed"
    assert job.refresh().state == "retrying"
    assert app.process(app.envelope(job.id)) == "claimed"
    assert (job.refresh().state, ran) == ("dead", ["a", "undo"])


def test_a_handler_in_a_process_of_its_own_is_told_that_it_has_no_steps(tmp_path: Path) -> None:
    from tests.workflows import elsewhere

    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    app.registry = elsewhere.app.registry
    job = app.enqueue("apart", {})
    app.run_worker(until_idle=True)
    assert (job.refresh().state, code(job)) == ("dead", "bad_input")
    assert job.steps() == []
    app.close()


def test_nothing_is_told_unless_somebody_asked_for_it(app: Holdfast) -> None:
    @app.workflow(retry=AGAIN)
    def flow(ctx: Context) -> None:
        ctx.step("a", lambda: 1, undo=lambda: 1)
        ctx.sleep("nap", 0)
        raise OSError

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"
    assert [event.name for event in app.store.events(0, 100) if not event.name.startswith("holdfast.")] == []


class Stumbling(MemoryStore):
    """A store that is not there for a while, whatever it is asked about a job."""

    trouble = 0

    def _stumble(self) -> None:
        if self.trouble:
            self.trouble -= 1
            msg = "The store is away."
            raise StoreUnavailable(msg)

    def steps(self, id: str) -> Any:  # noqa: A002
        self._stumble()
        return super().steps(id)

    def signals(self, id: str) -> Any:  # noqa: A002
        self._stumble()
        return super().signals(id)

    def commit(self, moves: Any) -> Any:
        if any(isinstance(move, Move) and move.step is not None for move in moves):
            self._stumble()
        return super().commit(moves)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_store_that_stumbles_costs_no_attempt(awaited: bool) -> None:
    app = Holdfast("memory://")
    store: Store = Stumbling()
    app._opened = store
    ran: list[str] = []

    def body(name: str) -> str:
        ran.append(name)
        return name

    if awaited:

        @app.workflow(name="flow", retry=ONCE)
        async def aflow(ctx: Context) -> Any:
            Stumbling.trouble = 1
            await ctx.step("a", body, "a")
            await ctx.sleep("nap", 0)
            Stumbling.trouble = 1
            return await ctx.wait_for("x")
    else:

        @app.workflow(name="flow", retry=ONCE)
        def flow(ctx: Context) -> Any:
            Stumbling.trouble = 1
            ctx.step("a", body, "a")
            ctx.sleep("nap", 0)
            Stumbling.trouble = 1
            return ctx.wait_for("x")

    job = app.enqueue("flow", {})
    job.signal("x", "there")
    app.run_worker(until_idle=True)
    assert job.result(1) == "there"
    assert ran == ["a"]
    assert [attempt.outcome for attempt in app.attempts(job.id)] == ["snooze", "complete"]


def test_a_worker_stops_in_time_though_a_step_does_not(app: Holdfast, working: Working, until: Until) -> None:
    begun, end = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        end.wait(20)

    @app.workflow(retry=Retry.fixed(0, retries=3))
    async def flow(ctx: Context) -> None:
        await ctx.step("stuck", stuck)

    job = flow.enqueue()
    with working(app):
        until(begun.is_set)
    daemons = [thread.daemon for thread in threading.enumerate() if thread.name.startswith("holdfast-step")]
    assert daemons
    assert all(daemons), "or the process could not end"
    end.set()
    assert job.refresh().state in ("retrying", "running")
    assert job.steps() == []


def test_the_fixture_runs_workflows_and_lets_time_pass(holdfast: TestHoldfast) -> None:
    @holdfast.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep("year", 365 * 86_400)
        return "a year later"

    job = flow.enqueue()
    holdfast.run_until_idle()
    holdfast.advance(days=365)
    holdfast.run_until_idle()
    assert job.result() == "a year later"
