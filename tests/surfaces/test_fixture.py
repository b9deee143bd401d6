"""The `holdfast` fixture: the real engine, run by hand under a clock that the test moves."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from holdfast import (
    BadInput,
    Context,
    JobNotFound,
    Permanent,
    Prepared,
    ResultTimeout,
    Retry,
    Snooze,
)
from holdfast.domain.job import NewJob
from holdfast.testing.engine import NotAtRest, TestHoldfast


@pytest.fixture
def engine() -> Iterator[TestHoldfast]:
    """A second engine, for the tests that look at how one ends."""
    app = TestHoldfast()
    yield app
    app.end()


def test_nothing_runs_until_the_test_says_so(holdfast: TestHoldfast) -> None:
    ran: list[int] = []

    @holdfast.job
    def add(a: int, b: int) -> int:
        ran.append(a + b)
        return a + b

    job = add.enqueue(2, 3)
    assert (job.state, ran) == ("queued", [])
    assert holdfast.run_until_idle() == 1
    assert ran == [5]
    assert job.result() == 5
    assert holdfast.get(job.id).state == "succeeded"
    assert holdfast.run_until_idle() == 0


def test_jobs_run_in_the_order_of_claims_even_those_that_come_meanwhile(holdfast: TestHoldfast) -> None:
    ran: list[str] = []

    @holdfast.job
    def note(word: str) -> None:
        ran.append(word)
        if word == "first":
            note.using(priority=9).enqueue("urgent")

    note.enqueue("third")
    note.using(priority=5).enqueue("first")
    note.using(run_after=1).enqueue("last")
    note.enqueue("fourth")
    note.using(priority=1).enqueue("second")
    holdfast.advance(seconds=1)
    assert holdfast.run_until_idle() == 6
    assert ran == ["first", "urgent", "second", "third", "fourth", "last"]


def test_a_retry_waits_for_its_time_and_jitter_is_none(holdfast: TestHoldfast) -> None:
    @holdfast.job(retry=Retry.exponential(base=60, jitter=1.0))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise TimeoutError
        return ctx.attempt

    job = flaky.enqueue()
    assert holdfast.run_until_idle() == 1
    assert job.refresh().state == "retrying"
    holdfast.advance(seconds=59)
    assert holdfast.run_until_idle() == 0
    holdfast.advance(seconds=1)
    assert holdfast.run_until_idle() == 1
    holdfast.advance(seconds=120)
    assert holdfast.run_until_idle() == 1
    assert job.result() == 3


def test_the_clock_moves_only_forward_and_says_where_it_stands(holdfast: TestHoldfast) -> None:
    start = holdfast.now
    assert holdfast.advance(hours=1) == start + timedelta(hours=1) == holdfast.now
    assert holdfast.advance(timedelta(days=1), seconds=1) == start + timedelta(days=1, hours=1, seconds=1)
    with pytest.raises(BadInput, match="must not be negative"):
        holdfast.advance(seconds=-1)


def test_a_crash_leaves_the_lease_and_the_job_runs_again_when_it_is_over(holdfast: TestHoldfast) -> None:
    charged: list[int] = []

    @holdfast.job
    def charge(order: int) -> str:
        charged.append(order)
        return "charged"

    job = charge.enqueue(7)
    holdfast.crash_after("charge")
    assert holdfast.run_until_idle() == 1
    assert charged == [7]
    assert job.refresh().state == "running"
    assert job.lease is not None
    assert holdfast.run_until_idle() == 0

    holdfast.advance(seconds=15)
    assert holdfast.run_until_idle() == 1
    assert (charged, job.refresh().attempt, job.result()) == ([7, 7], 2, "charged")
    lost, done = holdfast.attempts(job.id)
    assert (lost.code, lost.owner == done.owner, done.outcome) == ("lease_expired", False, "complete")


def test_a_worker_may_die_more_than_once_and_poison_is_found_out(holdfast: TestHoldfast) -> None:
    @holdfast.job
    async def poison() -> None: ...

    @holdfast.job
    def bystander() -> str:
        return "alive"

    job, other = poison.enqueue(), bystander.enqueue()
    holdfast.crash_after("poison", times=3)
    assert holdfast.run_until_idle() == 2
    assert other.result() == "alive"
    for _ in range(2):
        holdfast.advance(seconds=15)
        assert holdfast.run_until_idle() == 1
    holdfast.advance(seconds=15)
    assert holdfast.run_until_idle() == 0
    assert (job.refresh().state, job.cause) == ("dead", "crashed")


def test_a_crash_comes_after_the_body_whatever_the_body_did_and_not_without_it(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def charge(order: int) -> None:
        raise Permanent

    holdfast.crash_after("charge")
    bad, good = holdfast.enqueue_many([Prepared(NewJob("charge", '{"order": "seven"}')), charge.prepare(7)])
    holdfast.run_until_idle()
    assert (bad.refresh().cause, good.refresh().state) == ("rejected", "running")


@pytest.mark.parametrize("times", [0, -1, True, 1.5])
def test_a_crash_is_counted_in_whole_numbers(holdfast: TestHoldfast, times: int) -> None:
    with pytest.raises(BadInput, match="whole number of times"):
        holdfast.crash_after("charge", times=times)


def test_a_crash_that_was_never_reached_is_an_error_at_the_end() -> None:
    engine = TestHoldfast()

    @engine.job
    def charge() -> None: ...

    engine.crash_after("chrage")
    charge.enqueue()
    engine.run_until_idle()
    with pytest.raises(AssertionError, match=r"crash_after\('chrage'\) was never reached.*Known kinds: charge"):
        engine.end()


def test_a_crash_that_came_once_of_twice_is_no_error() -> None:
    engine = TestHoldfast()

    @engine.job
    def charge() -> None: ...

    engine.crash_after("charge", times=2)
    charge.enqueue()
    engine.run_until_idle()
    engine.end()


def test_a_job_that_enqueues_itself_for_ever_is_told_apart(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def again(n: int) -> None:
        again.enqueue(n + 1)

    again.enqueue(0)
    with pytest.raises(NotAtRest, match=r"After 50 attempts jobs are still due, the next a again .* raise max_jobs"):
        holdfast.run_until_idle(max_jobs=50)
    assert holdfast.counts()["queued"] == 1
    assert holdfast.counts()["succeeded"] == 50


def test_a_job_that_snoozes_for_no_time_does_not_come_to_rest_either(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def lazy() -> None:
        raise Snooze(0)

    lazy.enqueue()
    with pytest.raises(NotAtRest):
        holdfast.run_until_idle(max_jobs=5)


def test_as_many_jobs_as_allowed_are_not_too_many(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def add(a: int) -> int:
        return a

    holdfast.enqueue_many([add.prepare(n) for n in range(20)])
    assert holdfast.run_until_idle(max_jobs=20) == 20


def test_async_handlers_share_one_loop(holdfast: TestHoldfast) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @holdfast.job
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return n

    jobs = [look.enqueue(n) for n in range(3)]
    assert holdfast.run_until_idle() == 3
    assert [job.result() for job in jobs] == [0, 1, 2]
    assert len(set(map(id, loops))) == 1


def test_it_runs_inside_a_running_loop_too(holdfast: TestHoldfast) -> None:
    threads: dict[str, threading.Thread] = {}

    @holdfast.job
    async def on_a_loop() -> str:
        threads["async"] = threading.current_thread()
        return "async"

    @holdfast.job
    def in_this_thread() -> str:
        threads["sync"] = threading.current_thread()
        return "sync"

    async def test() -> None:
        jobs = [await on_a_loop.aenqueue(), await in_this_thread.aenqueue()]
        assert holdfast.run_until_idle() == 2
        assert [job.result() for job in jobs] == ["async", "sync"]

    asyncio.run(test())
    assert threads["sync"] is threading.current_thread()
    assert threads["async"] is not threading.current_thread()


def test_the_async_form_runs_handlers_on_the_tests_own_loop(holdfast: TestHoldfast) -> None:
    @holdfast.job
    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    @holdfast.job
    def blocking() -> str:
        return asyncio.run(asyncio.sleep(0, "a loop of my own"))

    loops: list[asyncio.AbstractEventLoop] = []

    async def test() -> None:
        await look.aenqueue()
        job = await blocking.aenqueue()
        assert await holdfast.arun_until_idle() == 2
        assert loops == [asyncio.get_running_loop()]
        assert await job.aresult() == "a loop of my own"

    asyncio.run(test())


def test_the_async_form_crashes_and_times_out_alike(holdfast: TestHoldfast) -> None:
    @holdfast.job(timeout=10, retry=Retry.fixed(1))
    async def slow() -> None:
        holdfast.advance(seconds=11)

    async def test() -> None:
        job = await slow.aenqueue()
        holdfast.crash_after("slow")
        await holdfast.arun_until_idle()
        assert (await job.arefresh()).state == "running"
        holdfast.advance(seconds=15)
        await holdfast.arun_until_idle()
        assert (await job.arefresh()).failure is not None
        assert job.failure is not None
        assert job.failure.code == "timeout"

    asyncio.run(test())


def test_a_cancelled_test_does_not_go_on_running_jobs(holdfast: TestHoldfast) -> None:
    begun: list[int] = []

    async def test() -> None:
        one_began = asyncio.Event()

        @holdfast.job
        async def wait(n: int) -> None:
            begun.append(n)
            one_began.set()
            await asyncio.Event().wait()

        wait.enqueue(1)
        wait.enqueue(2)
        running = asyncio.create_task(holdfast.arun_until_idle())
        await one_began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(test())
    assert begun == [1]


def test_a_handler_cannot_run_the_others(holdfast: TestHoldfast) -> None:
    @holdfast.job(retry=Retry.fixed(1, retries=0))
    def nested() -> None:
        holdfast.run_until_idle()

    job = nested.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().failure is not None
    assert job.failure is not None
    assert job.failure.code == "bad_input"


def test_a_result_that_cannot_come_is_told_at_once(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def add(a: int) -> int:
        return a

    job = add.using(run_after=3600).enqueue(1)
    with pytest.raises(ResultTimeout, match=r"call run_until_idle\(\) first.*It is not due yet"):
        job.result()


def test_a_handler_that_outlasts_its_timeout_has_timed_out(holdfast: TestHoldfast) -> None:
    @holdfast.job(timeout=120, retry=Retry.fixed(1, retries=0))
    def slow(ctx: Context) -> None:
        holdfast.advance(seconds=119)
        ctx.check()
        holdfast.advance(seconds=1)
        ctx.check()
        pytest.fail("the check must stop it")

    job = slow.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().failure is not None
    assert job.failure is not None
    assert job.failure.code == "timeout"


def test_a_cancelled_job_stops_at_its_next_check(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def long(ctx: Context) -> None:
        ctx.check()
        holdfast.cancel(ctx.job_id)
        assert ctx.stopping
        ctx.check()
        pytest.fail("the check must stop it")

    job = long.enqueue()
    holdfast.run_until_idle()
    assert job.refresh().state == "cancelled"


def test_upkeep_is_part_of_a_run(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def add(a: int) -> int:
        return a

    done = add.enqueue(1)
    late = add.using(expires_after=60, queue="slow").enqueue(2)
    holdfast.pause("slow")
    holdfast.run_until_idle()
    holdfast.resume("slow")
    holdfast.advance(seconds=60)
    assert holdfast.run_until_idle() == 0
    assert (late.refresh().state, late.cause) == ("dead", "expired")
    holdfast.advance(days=7)
    holdfast.run_until_idle()
    with pytest.raises(JobNotFound):
        done.refresh()


def test_a_paused_queue_rests_until_it_is_resumed(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def resume_mail() -> None:
        holdfast.resume("mail")

    @holdfast.job(queue="mail")
    def mail() -> None: ...

    holdfast.pause("mail")
    mail.enqueue()
    assert holdfast.run_until_idle() == 0
    resume_mail.enqueue()
    assert holdfast.run_until_idle() == 2


def test_handlers_of_every_kind_run_here(holdfast: TestHoldfast) -> None:
    @holdfast.job(run_in="process")
    def far() -> str:
        return threading.current_thread().name

    job = far.enqueue()
    holdfast.run_until_idle()
    assert job.result() == threading.current_thread().name


def test_a_kind_nobody_knows_waits_for_a_deployment(holdfast: TestHoldfast, engine: TestHoldfast) -> None:
    @engine.job
    def elsewhere() -> str:
        return "deployed"

    job = holdfast.enqueue_many([elsewhere.prepare()])[0]
    assert holdfast.run_until_idle() == 1
    assert (job.refresh().state, job.attempt) == ("retrying", 0)
    holdfast.registry.add(elsewhere.kind)
    holdfast.advance(seconds=5)
    holdfast.run_until_idle()
    assert job.result() == "deployed"


def test_the_person_at_the_keyboard_can_interrupt_a_handler(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def hangs() -> None:
        raise KeyboardInterrupt

    job = hangs.enqueue()
    with pytest.raises(KeyboardInterrupt):
        holdfast.run_until_idle()
    assert job.refresh().state == "running"
