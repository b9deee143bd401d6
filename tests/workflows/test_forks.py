"""Forks: a run again as a new job, from one of its steps on."""

from typing import Any

import pytest

from holdfast import BadInput, Context, Holdfast, InsufficientCredits, JobNotFound, Retry
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import ONCE, names


class Log(list[str]):
    """What ran."""

    def do(self, name: str) -> str:
        self.append(name)
        return name.upper()


@pytest.fixture
def log() -> Log:
    return Log()


def register(app: Holdfast, log: Log) -> Any:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> str:
        parts = [ctx.step(name, log.do, name) for name in ("a", "b", "b", "c")]
        return "".join(parts)

    return flow


def test_a_fork_runs_from_a_step_on_and_keeps_what_came_before(app: Holdfast, log: Log) -> None:
    job = register(app, log).using(tenant="acme", priority=3, user="u").enqueue()
    app.run_worker(until_idle=True)
    log.clear()
    fork = job.fork(from_step="b#2")
    assert fork.id != job.id
    assert (fork.tenant, fork.priority, fork.record.user, fork.step_cursor) == ("acme", 3, "u", 2)
    assert names(fork) == ["a", "b"]
    before = job.refresh().record
    app.run_worker(until_idle=True)
    assert fork.result(1) == "ABBC"
    assert (log, names(fork)) == (["b", "c"], ["a", "b", "b#2", "c"])
    assert job.refresh().record == before


def test_a_fork_from_the_first_step_runs_everything(app: Holdfast, log: Log) -> None:
    job = register(app, log).enqueue()
    app.run_worker(until_idle=True)
    fork = job.fork(from_step="a")
    app.run_worker(until_idle=True)
    assert fork.result(1) == "ABBC"
    assert log == ["a", "b", "b", "c"] * 2


@pytest.mark.parametrize("step", ["nowhere", "b#3", "", "~fork"])
def test_a_step_that_was_not_recorded_cannot_be_forked_from(app: Holdfast, log: Log, step: str) -> None:
    job = register(app, log).enqueue()
    app.run_worker(until_idle=True)
    with pytest.raises(BadInput, match="a, b, b#2, c"):
        job.fork(from_step=step)
    assert len(app.find()) == 1
    with pytest.raises(JobNotFound):
        app.fork("00000000-0000-7000-8000-000000000000", "a")


def test_a_pipeline_is_forked_by_its_list_even_where_nothing_is_recorded(app: Holdfast, log: Log) -> None:
    healthy: list[int] = []

    def fetch(payload: Any) -> str:
        return log.do("fetch")

    def ocr(payload: Any, results: Any) -> str:
        if not healthy:
            raise OSError
        return log.do("ocr")

    def index(payload: Any, results: dict[str, str]) -> str:
        return log.do("index") + str(sorted(results))

    pipe = app.pipeline("pipe", [fetch, ocr, index], retry=ONCE)
    job = pipe.enqueue({})
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"
    healthy.append(1)
    fork = job.fork(from_step="ocr")
    assert (fork.step_cursor, fork.steps_total) == (1, 3)
    app.run_worker(until_idle=True)
    assert fork.result(1) == "INDEX['fetch', 'ocr']"
    assert log == ["fetch", "ocr", "index"]
    again = fork.fork(from_step="index")
    app.run_worker(until_idle=True)
    assert again.result(1) == "INDEX['fetch', 'ocr']"
    assert log == ["fetch", "ocr", "index", "index"]
    assert again.refresh().step_cursor == 3


def test_what_was_slept_and_waited_for_is_behind_the_fork(holdfast: TestHoldfast, log: Log) -> None:
    @holdfast.job
    def child() -> str:
        return log.do("child")

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[Any]:
        ctx.sleep("night", 3600)
        said = ctx.wait_for("word")
        return [said, ctx.gather([child.prepare()]), ctx.step("end", log.do, "end")]

    job = flow.enqueue()
    job.signal("word", "yes")
    holdfast.run_until_idle()
    holdfast.advance(hours=1)
    holdfast.run_until_idle()
    assert job.result() == ["yes", ["CHILD"], "END"]
    late, middle = job.fork(from_step="end"), job.fork(from_step="gather")
    holdfast.run_until_idle()
    assert late.result() == middle.result() == ["yes", ["CHILD"], "END"]
    assert sorted(log) == ["child", "child", "end", "end", "end"]
    early = job.fork(from_step="word")
    holdfast.run_until_idle()
    assert early.refresh().state == "retrying", "it waits for a signal of its own"
    early.signal("word", "no")
    holdfast.run_until_idle()
    assert early.result() == ["no", ["CHILD"], "END"]


def test_a_fork_of_a_waiting_run_does_not_wait_for_its_children(holdfast: TestHoldfast, log: Log) -> None:
    @holdfast.job
    def child(ctx: Context) -> str:
        return log.do("child")

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> list[str]:
        ctx.step("a", log.do, "a")
        return list(ctx.gather([child.using(run_after=60).prepare()]))

    job = flow.enqueue()
    holdfast.run_until_idle()
    fork = job.fork(from_step="a")
    holdfast.run_until_idle()
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.result() == fork.result() == ["CHILD"]
    assert len(holdfast.find(parent=fork.id)) == 1


def test_tries_of_the_old_job_are_not_the_forks(holdfast: TestHoldfast) -> None:
    calls: list[int] = []

    def body() -> int:
        calls.append(1)
        if len(calls) in (1, 3):
            raise OSError
        return len(calls)

    @holdfast.workflow(retry=ONCE)
    def flow(ctx: Context) -> int:
        return int(ctx.step("a", body, retry=Retry.fixed(60, retries=1)))

    job = flow.enqueue()
    holdfast.run_until_idle()
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.result() == 2
    fork = job.fork(from_step="a")
    holdfast.run_until_idle()
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert fork.result() == 4


def test_a_fork_undoes_what_it_did_itself_and_not_what_it_started_out_with(app: Holdfast, log: Log) -> None:
    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> None:
        for name in "abc":
            ctx.step(name, log.do, name, undo=lambda result: log.append(f"undo {result}"))
        if log.count("c") > 1:
            raise OSError

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "succeeded"
    log.clear()
    log.append("c")
    fork = job.fork(from_step="b")
    app.run_worker(until_idle=True)
    assert fork.refresh().state == "dead"
    assert log == ["c", "b", "c", "undo C", "undo B"]


def test_a_fork_of_an_undone_run_does_again_what_was_undone(app: Holdfast, log: Log) -> None:
    healthy: list[int] = []

    @app.workflow(retry=ONCE)
    def flow(ctx: Context) -> str:
        ctx.step("a", log.do, "a", undo=lambda result: log.append(f"undo {result}"))
        ctx.step("plain", log.do, "plain")
        ctx.step("last", log.do, "last")
        if not healthy:
            raise OSError
        return "fine"

    job = flow.enqueue()
    app.run_worker(until_idle=True)
    log.clear()
    healthy.append(1)
    fork = job.fork(from_step="last")
    app.run_worker(until_idle=True)
    assert fork.result(1) == "fine"
    assert log == ["a", "last"]
    job.redrive()
    app.run_worker(until_idle=True)
    log.clear()
    second = job.fork(from_step="last")
    app.run_worker(until_idle=True)
    assert second.result(1) == "fine"
    assert "last" in log


def test_a_fork_is_paid_for_like_any_job(app: Holdfast, log: Log) -> None:
    app.grant("acme", 15)
    job = register(app, log).using(tenant="acme", credits=10).enqueue()
    app.run_worker(until_idle=True)
    fork = job.fork(from_step="c")
    assert fork.credits_reserved == 10
    with pytest.raises(InsufficientCredits):
        job.fork(from_step="c")
    assert len(app.find()) == 2


def test_a_fork_has_no_key_and_no_parent(app: Holdfast, log: Log) -> None:
    job = register(app, log).using(key="k").enqueue()
    app.run_worker(until_idle=True)
    fork = job.fork(from_step="c")
    assert (fork.key, fork.parent) == (None, None)
