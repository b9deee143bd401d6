"""A worker holds what it will get to in a moment, and no more."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim, Store
from holdfast.runtime.pace import HORIZON, MOST, Pace
from holdfast.stores.sqlite import SqliteStore
from tests.workers import LONG, Working


def test_a_burst_is_not_taken_for_a_rate() -> None:
    pace = Pace(4, 0.0, prefetch=True)
    pace.finished(3, 0.1)
    pace.finished(1, 0.1003)
    assert pace.hold <= 4 + 3


def test_quick_jobs_are_taken_ahead_and_slow_ones_are_not() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    assert pace.hold == 10
    for n in range(1, 100):
        pace.finished(200, n * 0.02)
    assert 10 + 10_000 * HORIZON * 0.9 <= pace.hold <= 10 + MOST
    for n in range(100, 110):
        pace.finished(1, n * 0.5)
    assert pace.hold == 10


def test_the_first_rate_is_believed_at_once() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    pace.finished(300, 0.02)
    assert pace.hold == 10 + int(300 / 0.02 * HORIZON)


def test_how_long_the_store_took_says_nothing_about_the_jobs() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    pace.fed(0.02)
    pace.ran_dry(0.045)
    pace.finished(100, 0.05)
    assert pace.hold == 10 + int(100 / 0.025 * HORIZON)
    pace.fed(0.065)
    pace.ran_dry(0.075)
    pace.ran_dry(0.078)
    pace.finished(100, 0.08)
    assert pace.hold in range(10 + int(7_000 * HORIZON) - 1, 10 + int(7_000 * HORIZON) + 1)


def test_how_long_there_was_nothing_to_do_says_nothing_about_the_jobs() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    pace.fed(3600.0)
    pace.finished(100, 3600.02)
    assert pace.hold == 10 + int(100 / 0.02 * HORIZON)
    pace.rested()
    pace.fed(7200.0)
    pace.finished(140, 7200.02)
    assert pace.hold in range(10 + int(6_000 * HORIZON) - 1, 10 + int(6_000 * HORIZON) + 1)


def test_a_store_that_takes_long_is_not_left_with_much_in_hand() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    pace.ran_dry(0.0)
    pace.finished(100, 0.1)
    assert pace.hold == 10 + int(4 * 1_000 * HORIZON)


def test_two_trips_hold_twice_as_much_and_no_more() -> None:
    pace = Pace(10, 0.0, prefetch=True, trips=2)
    for n in range(1, 50):
        pace.finished(20_000, n * 0.02)
    assert pace.hold == 10 + 2 * MOST


def test_before_a_long_trip_it_pays_to_wait_a_little_and_before_a_short_one_it_does_not() -> None:
    pace = Pace(10, 0.0, prefetch=True)
    assert pace.patience == 0
    pace.travelled(0.1)
    assert 0.005 < pace.patience < 0.05
    pace.travelled(0.002)
    assert pace.patience == 0
    pace.travelled(0.1, jobs=500)  # which is not far for so many
    assert pace.patience == 0


def test_jobs_that_were_brought_together_are_handed_in_together_where_trips_are_long(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def step(n: int) -> None:
        await asyncio.sleep(n % 10 * 0.0005)

    handed, exchange = list[int](), type(app.store).exchange

    def far(store: Store, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        handed.append(len(moves))
        time.sleep(0.1)
        return exchange(store, moves, want)

    monkeypatch.setattr(type(app.store), "exchange", far)
    app.enqueue_many([step.prepare(n) for n in range(100)])
    app.run_worker(concurrency=10, until_idle=True)
    assert sum(handed) == 100
    assert max(handed) >= 10
    assert len([jobs for jobs in handed if jobs]) < 20  # one and then nine each time would be


def test_what_was_taken_ahead_is_given_back_when_quick_jobs_turn_slow(app: Holdfast, working: Working) -> None:
    free = threading.Event()

    @app.job
    def step(n: int) -> None:
        if n > 3_000:
            free.wait(LONG)

    app.enqueue_many([step.prepare(n) for n in range(6_000)])
    with working(app, concurrency=4):
        end = time.monotonic() + LONG
        while (counts := app.counts())["running"] != 4 or counts["succeeded"] != 3_001:
            assert time.monotonic() < end, counts
        free.set()
        while app.counts().unfinished:
            assert time.monotonic() < end + LONG, app.counts()


def test_a_queue_never_runs_more_than_its_share(app: Holdfast, working: Working) -> None:
    running, most, lock = 0, 0, threading.Lock()

    @app.job(queue="narrow")
    def narrow() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1

    @app.job(queue="wide")
    def wide() -> None: ...

    jobs = app.enqueue_many([*(narrow.prepare() for _ in range(60)), *(wide.prepare() for _ in range(60))])
    with working(app, queues={"narrow": 2, "wide": None}, concurrency=10):
        for job in jobs:
            job.result(LONG)
    assert most == 2


def test_who_has_its_share_of_a_queue_does_not_look_for_more_all_the_time(
    app: Holdfast, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.job(queue="narrow")
    def narrow() -> None:
        begun.set()
        go.wait(LONG)

    @app.job(queue="wide")
    def wide() -> None: ...

    looks: list[object] = []
    monkeypatch.setattr(SqliteStore, "next_due", _noted(SqliteStore.next_due, looks))
    monkeypatch.setattr(SqliteStore, "exchange", _noted(SqliteStore.exchange, looks))
    jobs = app.enqueue_many([narrow.prepare() for _ in range(5)])
    with working(app, queues={"narrow": 1, "wide": 5}):
        assert begun.wait(LONG)
        threading.Event().wait(0.2)
        before = len(looks)
        threading.Event().wait(1)
        assert len(looks) - before <= 10
        assert wide.enqueue().result(LONG) is None
        go.set()
        for job in jobs:
            job.result(LONG)


def _noted(method: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        calls.append(given)
        return method(*given)

    return noted


def test_mixed_lanes_share_one_limit(app: Holdfast, working: Working) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    @app.job
    def threaded() -> None:
        enter()
        threading.Event().wait(0.003)
        leave()

    @app.job
    async def looped() -> None:
        enter()
        await asyncio.sleep(0.003)
        leave()

    jobs = app.enqueue_many([kind.prepare() for _ in range(60) for kind in (threaded, looped)])
    with working(app, concurrency=3):
        for job in jobs:
            job.result(LONG)
    assert most == 3


def test_only_the_queues_asked_for_are_served(app: Holdfast) -> None:
    @app.job
    def anything() -> None: ...

    mine, other = anything.using(queue="mine").enqueue(), anything.using(queue="other").enqueue()
    app.run_worker(queues=["mine"], until_idle=True)
    assert (mine.refresh().state, other.refresh().state) == ("succeeded", "queued")


def test_who_is_turned_away_again_and_again_stays_away_for_longer() -> None:
    pace = Pace(20, 0.0, prefetch=True)
    assert pace.away == 0.0
    stays = list[float]()
    for _ in range(9):
        pace.asked(admitted=False)
        stays.append(pace.away)
    assert stays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    pace.asked(admitted=True)
    assert pace.away == 0.0
