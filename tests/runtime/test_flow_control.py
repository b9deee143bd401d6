"""Flow control at work: real workers and the fixture's engine keep to the rules."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Context, Holdfast
from holdfast.testing.engine import TestHoldfast
from tests.workers import LONG, running


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=0.1)


def test_a_worker_never_runs_more_at_once_than_may(app: Holdfast) -> None:
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    @app.job
    def work(tenant: str) -> None:
        with lock:
            busy[tenant] += 1
            most[tenant] = max(most[tenant], busy[tenant])
        threading.Event().wait(0.01)
        with lock:
            busy[tenant] -= 1

    app.limit("default", concurrency=2, per="tenant")
    jobs = app.enqueue_many([work.using(tenant=tenant).prepare(tenant) for tenant in "ab" for _ in range(15)])
    app.run_worker(until_idle=True, concurrency=12)
    assert {job.refresh().state for job in jobs} == {"succeeded"}
    assert most == {"a": 2, "b": 2}
    app.close()


def test_a_limit_changed_at_run_time_is_followed_without_a_restart(app: Holdfast) -> None:
    gate = threading.Event()
    begun = threading.Semaphore(0)

    @app.job
    def hold(n: int) -> None:
        begun.release()
        gate.wait(LONG)

    app.limit("default", concurrency=1)
    with running(app, concurrency=8):
        app.enqueue_many([hold.prepare(n) for n in range(4)])
        assert begun.acquire(timeout=LONG)
        assert not begun.acquire(timeout=0.3)
        app.limits.set("default", concurrency=3)
        assert begun.acquire(timeout=LONG)
        assert begun.acquire(timeout=LONG)
        assert not begun.acquire(timeout=0.3)
        gate.set()
        assert begun.acquire(timeout=LONG)
    app.close()


def test_what_is_beyond_a_full_limit_is_dropped_or_gives_way(app: Holdfast) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    @app.job
    def hold(n: int) -> None:
        begun.release()
        gate.wait(LONG)

    app.limit("drop", concurrency=1, full="drop")
    app.limit("replace", concurrency=1, per="key", full="replace")
    with running(app, concurrency=8):
        first = hold.using(queue="drop").enqueue(1)
        assert begun.acquire(timeout=LONG)
        second = hold.using(queue="drop").enqueue(2)
        _until(lambda: second.refresh().state == "cancelled")
        assert second.record.failure_code == "limit"
        assert str(second.explain()).endswith(", because as many jobs were running as may run at once.")
        old = hold.using(queue="replace", group="x").enqueue(1)
        assert begun.acquire(timeout=LONG)
        newer = [hold.using(queue="replace", group="x").enqueue(n) for n in (2, 3)]
        _until(lambda: newer[0].refresh().state == "cancelled")
        assert newer[0].record.failure_code == "superseded"
        _until(lambda: old.refresh().record.cancel_requested)
        gate.set()
        assert newer[1].result(LONG) is None
        assert first.result(LONG) is None
    app.close()


def _until(condition: object) -> None:
    assert callable(condition)
    end = threading.Event()
    for _ in range(int(LONG / 0.02)):
        if condition():
            return
        end.wait(0.02)
    pytest.fail("it did not come about")


def test_the_fixture_keeps_to_declared_rules(holdfast: TestHoldfast) -> None:
    ran: list[str] = []

    @holdfast.job
    def work(n: int, ctx: Context) -> None:
        ran.append(ctx.tenant)

    holdfast.queue("default", order="fair", weights={"a": 2})
    holdfast.limit("default", rate="3/min", burst=3, per="tenant")
    for tenant in "ab":
        holdfast.enqueue_many([work.using(tenant=tenant).prepare(n) for n in range(4)])
    holdfast.run_until_idle()
    assert "".join(ran) == "aababb"
    holdfast.advance(seconds=20)
    holdfast.run_until_idle()
    assert "".join(ran) == "aababbab"
