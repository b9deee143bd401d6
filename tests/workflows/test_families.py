"""Children: spawned with their parent's record, gathered when the last has ended, cancelled with their parent."""

import time
from typing import Any
from uuid import UUID

import pytest

from holdfast import BadInput, ChildFailed, Context, Holdfast, JobCancelled, JobDead, Permanent
from holdfast.client import family
from holdfast.port.store import Store
from holdfast.testing.engine import TestHoldfast
from tests.workers import Working
from tests.workflows.conftest import Until
from tests.workflows.reading import OFTEN, ONCE, code, names


def register(app: Holdfast) -> tuple[Any, Any]:
    """Make a child that does what it is told, and a parent that gathers some."""

    @app.job(retry=ONCE)
    def child(n: int) -> int:
        if n < 0:
            raise Permanent
        return n * 10

    @app.workflow(retry=ONCE)
    async def parent(numbers: list[int], ctx: Context, failures: str = "fail") -> list[Any]:
        results = await ctx.gather((child.prepare(n) for n in numbers), failures=failures)  # type: ignore[arg-type]
        return [f"{type(each).__name__}: {each}" if isinstance(each, Exception) else each for each in results]

    return parent, child


def test_results_come_in_the_order_asked_for(app: Holdfast) -> None:
    parent, _ = register(app)
    job = parent.using(tenant="acme", trace_id="t-1").enqueue(list(range(30)))
    app.run_worker(until_idle=True)
    assert job.result(1) == [n * 10 for n in range(30)]
    children = app.find(parent=job.id, limit=100)
    assert len(children) == 30
    assert {(child.parent, child.tenant, child.record.trace_id) for child in children} == {(job.id, "acme", "t-1")}
    assert names(job) == ["gather"]
    assert job.refresh().step_cursor == 1


def test_a_gather_of_nobody_gives_nothing(app: Holdfast) -> None:
    parent, _ = register(app)
    job = parent.enqueue([])
    app.run_worker(until_idle=True)
    assert job.result(1) == []


def test_a_parent_holds_neither_slot_nor_lease_while_its_children_run(
    app: Holdfast, working: Working, until: Until
) -> None:
    parent, _ = register(app)
    job = parent.enqueue([1, 2, 3])
    with working(app, concurrency=1):
        assert job.result(10) == [10, 20, 30]
    assert job.refresh().attempt == 1


def test_children_are_spawned_once_whatever_happens_to_their_parent(holdfast: TestHoldfast) -> None:
    ran: list[int] = []

    @holdfast.job
    def child(n: int) -> int:
        ran.append(n)
        return n

    @holdfast.workflow(retry=OFTEN, crash_cap=9)
    def parent(ctx: Context) -> list[int]:
        return list(ctx.gather([child.prepare(1), child.prepare(2)]))

    holdfast.crash_after("parent")
    job = parent.enqueue()
    holdfast.run_until_idle()
    assert holdfast.find(kind="child") == [], "the worker died before it could spawn them"
    holdfast.crash_after("gather")
    for _ in range(3):
        holdfast.advance(minutes=1)
        holdfast.run_until_idle()
    assert job.result() == [1, 2]
    assert ran == [1, 2]


@pytest.mark.parametrize(
    ("failures", "result"),
    [("ignore", [10, None, 20]), ("collect", [10, "JobDead: Job {} is dead: permanent.", 20])],
)
def test_a_child_that_dies_is_passed_over_or_collected_by_policy(
    app: Holdfast, failures: str, result: list[Any]
) -> None:
    parent, _ = register(app)
    job = parent.enqueue([1, -1, 2], failures=failures)
    app.run_worker(until_idle=True)
    dead = app.find(state="dead")
    assert len(dead) == 1
    assert job.result(1) == [each.format(dead[0].id) if isinstance(each, str) else each for each in result]


def test_a_child_that_dies_fails_its_parent_once_all_have_ended(app: Holdfast) -> None:
    parent, _ = register(app)
    job = parent.enqueue([-1, 1, 2])
    app.run_worker(until_idle=True)
    assert (job.refresh().state, job.cause, code(job)) == ("dead", "rejected", "child_failed")
    (dead,) = app.find(kind="child", state="dead")
    assert job.failure is not None
    assert job.failure.message == f"child {dead.id} (child) is dead: permanent"
    assert app.counts()["succeeded"] == 2


def test_a_parent_may_catch_what_became_of_its_child_and_go_on(app: Holdfast) -> None:
    _, child = register(app)

    @app.workflow(retry=ONCE)
    def careful(ctx: Context) -> str:
        try:
            ctx.gather([child.prepare(-1)])
        except ChildFailed:
            ctx.sleep("nap", 0.05)
            return str(ctx.step("instead", lambda: "fallback"))
        return "fine"

    job = careful.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == "fallback"


def test_a_dead_child_that_is_redriven_counts_when_its_parent_is_redriven(app: Holdfast) -> None:
    healthy: list[int] = []

    @app.job(retry=ONCE)
    def child() -> str:
        if not healthy:
            raise OSError
        return "fine"

    @app.workflow(retry=ONCE)
    def parent(ctx: Context) -> list[str]:
        return list(ctx.gather([child.prepare()]))

    job = parent.enqueue()
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"
    healthy.append(1)
    app.redrive(kind="child")
    app.run_worker(until_idle=True)
    job.redrive()
    app.run_worker(until_idle=True)
    assert job.result(1) == ["fine"]
    assert len(app.find(kind="child")) == 1


def test_a_child_that_is_cancelled_ends_the_wait(app: Holdfast, working: Working, until: Until) -> None:
    _, child = register(app)

    @app.workflow(name="waiting_parent", retry=ONCE)
    def waiting(ctx: Context) -> list[str]:
        found = ctx.gather([child.using(run_after=3600).prepare(1), child.prepare(2)], failures="collect")
        assert isinstance(found[0], JobCancelled)
        return [type(each).__name__ for each in found]

    job = waiting.enqueue()
    with working(app):
        until(lambda: app.find(kind="child", state="succeeded"))
        assert job.refresh().state == "retrying"
        app.find(kind="child", state="queued")[0].cancel()
        assert job.result(5) == ["JobCancelled", "int"]


def test_a_child_that_is_purged_before_it_was_gathered_counts_as_not_succeeded(holdfast: TestHoldfast) -> None:
    _, child = register(holdfast)

    @holdfast.workflow(name="slow", queue="parents", retry=ONCE)
    def slow(ctx: Context) -> list[str]:
        holdfast.pause("parents")
        return [str(each) for each in ctx.gather([child.prepare(1)], failures="collect")]

    job = slow.enqueue()
    holdfast.run_until_idle()
    assert [each.state for each in holdfast.find(kind="child")] == ["succeeded"]
    holdfast.advance(days=8)
    holdfast.run_until_idle()
    assert holdfast.find(kind="child") == []
    holdfast.resume("parents")
    holdfast.run_until_idle()
    (result,) = job.result()
    assert result.endswith("is dead: purged.")


def test_results_of_children_have_the_types_that_their_kinds_say(app: Holdfast) -> None:
    @app.job
    def child(n: int) -> UUID:
        return UUID(int=n)

    seen: list[Any] = []

    @app.workflow(retry=ONCE)
    def parent(ctx: Context) -> None:
        seen.append(ctx.gather([child.prepare(1)]))
        ctx.sleep("nap", 0)

    parent.enqueue()
    app.run_worker(until_idle=True)
    assert seen == [[UUID(int=1)]] * 2


def test_a_child_may_be_a_workflow_or_a_pipeline_with_children_of_its_own(app: Holdfast) -> None:
    @app.job
    def leaf(n: int) -> int:
        return n

    @app.workflow(retry=ONCE)
    def branch(n: int, ctx: Context) -> int:
        return int(sum(ctx.gather([leaf.prepare(n), leaf.prepare(n)])))

    def spread(payload: dict[str, int], results: Any, ctx: Context) -> int:
        return int(sum(ctx.gather([leaf.prepare(payload["n"])] * 3, name="leaves")))

    pipe = app.pipeline("pipe", [spread], retry=ONCE)

    @app.workflow(retry=ONCE)
    async def tree(ctx: Context) -> int:
        first = await ctx.gather([branch.prepare(n) for n in range(4)])
        second = await ctx.gather([pipe.prepare({"n": 5})])
        return int(sum(first) + sum(second))

    job = tree.enqueue()
    app.run_worker(until_idle=True)
    assert job.result(1) == 12 + 15


def test_cancelling_a_parent_cancels_children_and_grandchildren(app: Holdfast, working: Working, until: Until) -> None:
    @app.job(retry=ONCE)
    def leaf(ctx: Context) -> None:
        while True:
            ctx.check()
            time.sleep(0.005)

    @app.workflow(retry=ONCE)
    def branch(ctx: Context) -> None:
        ctx.gather([leaf.prepare(), leaf.using(run_after=3600).prepare()])

    @app.workflow(retry=ONCE)
    def tree(ctx: Context) -> None:
        ctx.gather([branch.prepare(), leaf.using(run_after=3600).prepare()])

    job = tree.enqueue()
    with working(app):
        until(lambda: len(app.find(kind="leaf", limit=10)) == 3 and app.find(kind="leaf", state="running"))
        assert job.refresh().state == "retrying"
        job.cancel()
        assert job.refresh().state == "cancelled"
        until(lambda: app.counts()["cancelled"] == 5)
    assert app.counts().unfinished == 0


def test_a_parent_that_is_cancelled_while_it_runs_cancels_its_children(
    app: Holdfast, working: Working, until: Until
) -> None:
    _, child = register(app)

    @app.workflow(name="busy", retry=ONCE)
    def parent(ctx: Context) -> None:
        ctx.gather([child.using(run_after=0.05).prepare(1)], name="first")
        while True:
            ctx.check()
            time.sleep(0.005)

    job = parent.enqueue()
    with working(app):
        until(lambda: "first" in names(job))
        job.cancel()
        until(lambda: job.refresh().state == "cancelled")


def test_a_parent_that_was_cancelled_spawns_no_child(holdfast: TestHoldfast) -> None:
    _, child = register(holdfast)

    @holdfast.workflow(name="late", retry=ONCE)
    def late(ctx: Context) -> None:
        holdfast.cancel(ctx.job_id)
        ctx.gather([child.prepare(1)])

    job = late.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().state == "cancelled"
    assert holdfast.find(kind="child") == []


def test_a_parent_is_woken_even_if_whoever_ended_its_last_child_died_at_once(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, _ = register(app)

    def dies(store: Store, *args: Any, **more: Any) -> None:
        """Take part in nothing: as if the worker had died after its commit."""

    for module in ("runtime.worker", "runtime.delivery", "client.operator"):
        monkeypatch.setattr(f"holdfast.{module}.tend", dies)
    assert family.tend is not dies
    job = parent.enqueue([1, 2, 3])
    app.run_worker(until_idle=True)
    assert job.refresh().state in ("retrying", "succeeded")
    for _ in range(20):
        if job.refresh().state == "succeeded":
            break
        time.sleep(0.05)
        app.run_worker(until_idle=True)
    assert job.result(1) == [10, 20, 30]


@pytest.mark.parametrize("lost", ["crash", "expired"])
def test_a_child_that_ends_without_a_worker_wakes_its_parent_too(holdfast: TestHoldfast, lost: str) -> None:
    @holdfast.job(retry=ONCE, crash_cap=1)
    def child() -> None:
        pass

    @holdfast.workflow(retry=ONCE)
    def parent(ctx: Context) -> str:
        one = child.prepare() if lost == "crash" else child.using(run_after=60, expires_after=0).prepare()
        (error,) = ctx.gather([one], failures="collect")
        return f"{type(error).__name__} {str(error).rpartition(' ')[2]}"

    if lost == "crash":
        holdfast.crash_after("child")
    job = parent.enqueue()
    for _ in range(3):
        holdfast.run_until_idle()
        holdfast.advance(minutes=2)
    assert job.result() == f"{JobDead.__name__} {'lease_expired.' if lost == 'crash' else 'expired.'}"


def test_what_cannot_be_gathered_is_refused_and_nothing_is_spawned(holdfast: TestHoldfast) -> None:
    _, child = register(holdfast)
    wrong: list[Any] = [
        lambda ctx: ctx.gather([child]),
        lambda ctx: ctx.gather([1, 2]),
        lambda ctx: ctx.gather([child.using(key="k").prepare(1)]),
        lambda ctx: ctx.gather([child.prepare(1)], failures="whatever"),
        lambda ctx: ctx.gather([child.prepare(1)], name="a#2"),
    ]

    @holdfast.workflow(name="wrong", retry=ONCE)
    def flow(n: int, ctx: Context) -> None:
        wrong[n](ctx)

    jobs = [flow.enqueue(n) for n in range(len(wrong))]
    holdfast.run_until_idle()
    assert [code(job) for job in jobs] == [BadInput.code] * len(wrong)
    assert holdfast.find(kind="child") == []


def test_a_parent_that_is_woken_early_goes_on_waiting(holdfast: TestHoldfast) -> None:
    woken: list[int] = []

    @holdfast.job
    def child(n: int) -> int:
        return n

    @holdfast.workflow
    def parent(ctx: Context) -> list[int]:
        woken.append(1)
        if len(woken) == 1:
            job.signal("hello")  # the wait that follows is over before it begins
        return list(ctx.gather([child.using(priority=1).prepare(1), child.using(run_after=60).prepare(2)]))

    job = parent.enqueue()
    holdfast.run_until_idle()
    assert (job.refresh().state, len(woken)) == ("retrying", 2)
    holdfast.advance(minutes=1)
    holdfast.run_until_idle()
    assert job.result() == [1, 2]


def test_a_parent_of_one_child_is_explained_as_such(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def child() -> None: ...

    @holdfast.workflow
    async def parent(number: int, ctx: Context) -> None:
        await ctx.gather([child.using(run_after=60).prepare() for _ in range(number)])

    one, two = parent.enqueue(1), parent.enqueue(2)
    holdfast.run_until_idle()
    assert one.explain().text == "It waits for its child to end, which wakes it."
    assert two.explain().text == "It waits for its 2 children to end; the last one wakes it."
