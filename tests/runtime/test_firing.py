"""Firing: exactly one job for each time of a schedule, whoever dies, races or changes the clock."""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.client.inserter import Inserter
from holdfast.domain import schedule
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND, Micros, instant
from holdfast.domain.schedule import Spec
from holdfast.port.clock import SystemClock
from holdfast.port.store import Inserted, Query, ScheduleRecord, Store
from holdfast.runtime import firing
from holdfast.runtime.firing import fire, store_declared
from holdfast.stores import open_store
from holdfast.testing.clock import ManualClock
from tests.surfaces.processes import until

NOW = instant(datetime(2026, 1, 1, tzinfo=UTC), "now")
JOB = NewJob("tidy", '{"a":1}', tenant="acme")
STORES = ["memory", "sqlite", "postgres"]


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def untold() -> None:
    """What was complained of on one store may be complained of on the next."""
    firing._complain.cache_clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[Store]:
    with closing(open_store(url, clock)) as opened:
        yield opened


def inserter(store: Store) -> Callable[[Sequence[NewJob]], list[Inserted]]:
    return Inserter(store, SystemClock()).insert


def every(seconds: int, catch_up: str = "skip", job: NewJob = JOB) -> Spec:
    return Spec(job, None, seconds * SECOND, catch_up=catch_up, anchor=NOW)


def put(store: Store, name: str, spec: Spec, next_at: Micros = NOW) -> None:
    assert store.save_schedule(ScheduleRecord(name, schedule.encode(spec), next_at), None)


def stored(store: Store, name: str) -> ScheduleRecord:
    return next(record for record in store.schedules() if record.name == name)


def jobs(store: Store) -> list[JobRecord]:
    found: list[JobRecord] = []
    while page := store.find(Query(before=found[-1].id if found else None, limit=1000)):
        found += page
    return found


def fired(store: Store) -> list[Micros]:
    """Give the times that have a job, each as often as it has one."""
    return sorted(job.available_at for job in jobs(store))


def test_a_time_gets_one_job_that_says_what_it_is_for(store: Store) -> None:
    put(store, "nightly", every(60))
    assert fire(store, inserter(store), NOW - 1) == 0
    assert fire(store, inserter(store), NOW) == 1
    assert fire(store, inserter(store), NOW + 1) == 0
    (job,) = jobs(store)
    assert (job.kind, job.payload, job.tenant, job.state) == ("tidy", '{"a":1}', "acme", State.QUEUED)
    assert (job.key, job.trigger) == ("schedule:nightly:2026-01-01T00:00:00+00:00", "schedule")
    assert job.available_at == NOW
    assert stored(store, "nightly") == ScheduleRecord(
        "nightly", schedule.encode(every(60)), NOW + MINUTE, NOW, paused=False, version=2
    )


def test_a_store_without_schedules_is_only_looked_at(store: Store) -> None:
    def never(jobs: Sequence[NewJob]) -> list[Inserted]:
        raise AssertionError(jobs)

    assert fire(store, never, NOW) == 0
    put(store, "later", every(60), NOW + 1)
    before = store.schedules()
    assert fire(store, never, NOW) == 0
    assert store.schedules() == before


def test_a_paused_schedule_is_not_fired(store: Store) -> None:
    put(store, "a", every(60))
    store.save_schedule(stored(store, "a")._replace(paused=True), 1)
    assert fire(store, inserter(store), NOW + DAY) == 0
    assert stored(store, "a").next_at == NOW


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", []), ("once", [5]), ("all", [0, 1, 2, 3, 4, 5])], ids=str)
def test_what_was_missed_is_dealt_with_by_the_policy(store: Store, catch_up: str, expected: list[int]) -> None:
    put(store, "a", every(600, catch_up))
    assert fire(store, inserter(store), NOW + 55 * MINUTE) == len(expected)
    assert fire(store, inserter(store), NOW + 55 * MINUTE) == 0
    assert fired(store) == [NOW + n * 10 * MINUTE for n in expected]
    record = stored(store, "a")
    assert record.next_at == NOW + HOUR
    assert record.last_at == (NOW + expected[-1] * 10 * MINUTE if expected else None)


def test_a_leader_that_dies_before_the_job_is_stored_loses_nothing(store: Store) -> None:
    put(store, "a", every(600))

    def dies(jobs: Sequence[NewJob]) -> list[Inserted]:
        raise Killed

    with pytest.raises(Killed):
        fire(store, dies, NOW)
    assert fire(store, inserter(store), NOW + SECOND) == 1
    assert fired(store) == [NOW]


def test_a_leader_that_dies_when_the_job_is_stored_doubles_nothing(store: Store) -> None:
    put(store, "a", every(10, "all"))

    def dies(jobs: Sequence[NewJob]) -> list[Inserted]:
        inserter(store)(jobs)
        raise Killed

    with pytest.raises(Killed):
        fire(store, dies, NOW + 5 * MINUTE)
    assert stored(store, "a").version == 1
    assert fire(store, inserter(store), NOW + 5 * MINUTE) == 0
    assert fired(store) == [NOW + n * 10 * SECOND for n in range(31)]
    assert stored(store, "a").next_at == NOW + 5 * MINUTE + 10 * SECOND


def test_a_second_leader_in_the_middle_of_the_first_one_s_round_doubles_nothing(store: Store) -> None:
    put(store, "a", every(600))
    counts: list[int] = []

    def overtaken(jobs: Sequence[NewJob]) -> list[Inserted]:
        if not counts:
            counts.append(fire(store, inserter(store), NOW + 20 * MINUTE))
        return inserter(store)(jobs)

    counts.append(fire(store, overtaken, NOW))
    assert counts == [1, 1], "the first read the time that the second had missed"
    assert fired(store) == [NOW, NOW + 20 * MINUTE]
    assert stored(store, "a").next_at == NOW + 30 * MINUTE, "what the first knew is out of date and is not written"


def test_a_schedule_that_is_changed_while_it_is_fired_stays_changed(store: Store) -> None:
    put(store, "a", every(600))

    def changed(jobs: Sequence[NewJob]) -> list[Inserted]:
        store.save_schedule(stored(store, "a")._replace(paused=True), 1)
        return inserter(store)(jobs)

    assert fire(store, changed, NOW) == 1
    assert (stored(store, "a").paused, stored(store, "a").next_at) == (True, NOW)
    store.save_schedule(stored(store, "a")._replace(paused=False), 2)
    assert fire(store, inserter(store), NOW) == 0
    assert fired(store) == [NOW]


def test_a_clock_that_ran_ahead_for_years_stops_no_schedule_and_doubles_no_time(store: Store) -> None:
    put(store, "skips", every(600))
    put(store, "folds", every(600, "once"))
    assert fire(store, inserter(store), NOW) == 2
    ahead = NOW + 12 * 365 * DAY + 5 * MINUTE
    assert fire(store, inserter(store), ahead) == 1
    assert fire(store, inserter(store), NOW + SECOND) == 0
    assert {record.next_at for record in store.schedules()} == {NOW + 10 * MINUTE}
    assert fire(store, inserter(store), NOW + 10 * MINUTE) == 2
    assert Counter(fired(store)) == {NOW: 2, NOW + 10 * MINUTE: 2, ahead - 5 * MINUTE: 1}
    folds = stored(store, "folds")
    assert store.save_schedule(folds._replace(next_at=ahead - 5 * MINUTE), folds.version)
    assert fire(store, inserter(store), ahead - 3 * MINUTE) == 0, "the time that came too soon does not come again"


def test_a_clock_that_is_set_back_a_little_doubles_no_time_even_if_its_job_is_gone(store: Store) -> None:
    put(store, "a", every(600))
    fire(store, inserter(store), NOW)

    def never(jobs: Sequence[NewJob]) -> list[Inserted]:
        raise AssertionError(jobs)

    for back in (1, SECOND, MINUTE):
        assert fire(store, never, NOW - back) == 0
    assert stored(store, "a").version == 2


def test_a_time_that_was_fired_before_its_schedule_changed_is_done(store: Store) -> None:
    put(store, "a", every(10, "all"))
    fire(store, inserter(store), NOW + 20 * SECOND)
    record = stored(store, "a")
    other = every(10, "all", JOB._replace(payload='{"a":2}'))
    store.save_schedule(record._replace(spec=schedule.encode(other), next_at=NOW + 20 * SECOND), record.version)
    assert fire(store, inserter(store), NOW + 20 * SECOND) == 0
    record = stored(store, "a")
    store.save_schedule(record._replace(next_at=NOW + 10 * SECOND), record.version)
    assert fire(store, inserter(store), NOW + 50 * SECOND) == 3, "three new times among two that are done"
    assert [job.payload for job in sorted(jobs(store), key=lambda job: job.available_at)] == ['{"a":1}'] * 3 + [
        '{"a":2}'
    ] * 3
    assert fired(store) == [NOW + n * 10 * SECOND for n in range(6)]
    assert stored(store, "a").next_at == NOW + 60 * SECOND


def test_two_schedules_fire_each_for_itself(store: Store) -> None:
    put(store, "a", every(60))
    put(store, "b", every(60))
    assert fire(store, inserter(store), NOW) == 2
    assert sorted(str(job.key) for job in jobs(store)) == [
        "schedule:a:2026-01-01T00:00:00+00:00",
        "schedule:b:2026-01-01T00:00:00+00:00",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        '{"job":{"kind":"k","payload":"{}"},"from":"the future"}',
        schedule.encode(every(60)._replace(every=None)),
        schedule.encode(every(0)),
        schedule.encode(every(60)._replace(catch_up="some")),
        schedule.encode(Spec(JOB, "0 3 * * *", None, "Mars/Olympus")),
        schedule.encode(Spec(JOB, "0 0 3 * * *")),
    ],
)
def test_a_bad_schedule_holds_up_no_other_and_is_told_once(
    store: Store, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.save_schedule(ScheduleRecord("a", bad, NOW), None)
    put(store, "b", every(60))
    with caplog.at_level(logging.WARNING, "holdfast.firing"):
        assert fire(store, inserter(store), NOW) == 1
        assert fire(store, inserter(store), NOW) == 0
    assert [record.getMessage().split(" waits:")[0] for record in caplog.records] == ["schedule 'a' (version 1)"]


def test_a_store_in_trouble_is_told_to_whoever_asked(store: Store) -> None:
    put(store, "a", every(60))

    def unavailable(jobs: Sequence[NewJob]) -> list[Inserted]:
        msg = "The disk is full."
        raise StoreUnavailable(msg)

    with pytest.raises(StoreUnavailable):
        fire(store, unavailable, NOW)
    assert fire(store, inserter(store), NOW) == 1


COSTLY = JOB._replace(credits=10)


def test_a_time_that_cannot_be_paid_for_waits_and_is_then_missed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.grant("acme", 5, "first")
    put(store, "dear", every(600, "skip", COSTLY))
    put(store, "free", every(600, "skip"))
    with caplog.at_level(logging.WARNING, "holdfast.firing"):
        assert fire(store, inserter(store), NOW) == 1
        assert fire(store, inserter(store), NOW + SECOND) == 0
    assert len(caplog.records) == 1
    assert stored(store, "dear").next_at == NOW
    store.grant("acme", 5, "second")
    assert fire(store, inserter(store), NOW + 30 * SECOND) == 1
    assert fire(store, inserter(store), NOW + 10 * MINUTE) == 1
    assert fire(store, inserter(store), NOW + 12 * MINUTE) == 0
    assert stored(store, "dear").next_at == NOW + 20 * MINUTE


def test_all_that_can_be_paid_for_is_fired_and_the_rest_when_it_can(store: Store) -> None:
    store.grant("acme", 25, "first")
    put(store, "a", every(600, "all", COSTLY))
    assert fire(store, inserter(store), NOW + 35 * MINUTE) == 2
    record = stored(store, "a")
    assert (record.next_at, record.last_at) == (NOW + 20 * MINUTE, NOW + 10 * MINUTE)
    store.grant("acme", 100, "second")
    assert fire(store, inserter(store), NOW + 36 * MINUTE) == 2
    assert fired(store) == [NOW + n * 10 * MINUTE for n in range(4)]


def test_leaders_on_many_threads_fire_each_time_once(url: str, store: Store) -> None:
    for n in range(5):
        put(store, f"s{n}", every(1, "all"))
    barrier = threading.Barrier(4)

    def lead(number: int) -> int:
        own = open_store(url, ManualClock()) if store.capabilities.shared else store
        draw, total = random.Random(number), 0
        try:
            for second in range(0, 300, 20):
                barrier.wait(20)
                total += fire(own, inserter(own), NOW + second * SECOND + draw.randrange(20 * SECOND))
            barrier.wait(20)
            return total + fire(own, inserter(own), NOW + 300 * SECOND)
        finally:
            if own is not store:
                own.close()

    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lead, range(4)))
    assert Counter(fired(store)) == {NOW + n * SECOND: 5 for n in range(301)}
    assert sum(totals) == 5 * 301
    assert {record.next_at for record in store.schedules()} == {NOW + 301 * SECOND}


LEADER = """
import os, random, signal, sys
from holdfast.client.inserter import Inserter
from holdfast.port.clock import SystemClock
from holdfast.runtime import firing
from holdfast.runtime.firing import fire
from holdfast.stores import open_store

url, seed, start, end = sys.argv[1], *map(int, sys.argv[2:])
draw, store = random.Random(seed), open_store(url)
insert = Inserter(store, SystemClock()).insert

def fatal(jobs):
    died = draw.random()
    if died < 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    inserted = insert(jobs)
    if died > 0.8:
        os.kill(os.getpid(), signal.SIGKILL)
    return inserted

now = start
while now < end:
    now = min(now + draw.randrange(30_000_000), end)
    fire(store, fatal, now)
"""


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_leaders_in_processes_that_are_killed_fire_each_time_once(url: str, store: Store) -> None:
    put(store, "a", every(1, "all"))
    end = NOW + 600 * SECOND
    killed = 0
    for seed in range(0, 12, 2):
        arguments = (str(stored(store, "a").next_at - SECOND), str(end))
        leaders = [
            subprocess.Popen([sys.executable, "-c", LEADER, url, str(seed + n), *arguments], env=dict(os.environ))
            for n in range(2)
        ]
        killed += sum(leader.wait(60) == -signal.SIGKILL for leader in leaders)
    assert killed >= 3
    fire(store, inserter(store), end)
    assert fired(store) == [NOW + n * SECOND for n in range(601)]


def test_several_workers_fire_what_code_declares_once(app: Holdfast, working: Callable[..., Any]) -> None:
    ran: list[str | None] = []

    @app.job
    def tick(ctx: Context) -> None:
        ran.append(ctx.key)

    app.schedule("ticks", tick.prepare(), every=1, catch_up="all")
    with working(app), working(app):
        until(lambda: len(ran) >= 3, within=20)
    (ticks,) = app.schedules.list()
    assert ticks.last_at is not None
    first = ticks.last_at - timedelta(seconds=len(app.find()) - 1)
    assert sorted(str(job.record.key) for job in app.find()) == [
        f"schedule:ticks:{(first + timedelta(seconds=n)).isoformat()}" for n in range(len(app.find()))
    ]
    assert len(set(ran)) == len(ran)


def test_declared_schedules_are_stored_once(store: Store) -> None:
    declared = {"a": Spec(JOB, "0 3 * * *", None, "Europe/Prague", "once"), "b": Spec(JOB, None, 600 * SECOND)}
    assert store_declared(store, declared) == 2
    before = store.schedules()
    now = store.now()
    assert [record.next_at for record in before] == [
        schedule.next_after(declared["a"], now),
        now - now % SECOND + 600 * SECOND,
    ]
    assert store_declared(store, declared) == 0
    assert store_declared(store, {}) == 0
    assert store.schedules() == before


def test_a_declared_schedule_with_other_times_is_counted_anew_and_stays_paused(
    store: Store, clock: ManualClock
) -> None:
    store_declared(store, {"a": Spec(JOB, None, 600 * SECOND)})
    record = stored(store, "a")
    store.save_schedule(record._replace(paused=True), record.version)
    assert store_declared(store, {"a": Spec(JOB, "0 3 * * *")}) == 1
    changed = stored(store, "a")
    assert schedule.decode(changed.spec) == Spec(JOB, "0 3 * * *")
    assert changed.next_at == schedule.next_after(Spec(JOB, "0 3 * * *"), store.now())
    assert (changed.paused, changed.version) == (True, 3)


def test_a_declared_schedule_with_another_job_still_makes_up_for_what_was_missed(store: Store) -> None:
    put(store, "a", every(600, "all"))
    other = JOB._replace(payload='{"a":2}')
    assert store_declared(store, {"a": every(600, "all", other)._replace(anchor=0)}) == 1
    assert stored(store, "a").next_at == NOW
    assert fire(store, inserter(store), NOW + 25 * MINUTE) == 3
    assert {job.payload for job in jobs(store)} == {'{"a":2}'}


def test_a_declared_schedule_takes_the_place_of_one_that_cannot_be_read(store: Store) -> None:
    store.save_schedule(ScheduleRecord("a", '{"from":"the future"}', NOW), None)
    assert store_declared(store, {"a": Spec(JOB, "0 3 * * *")}) == 1
    assert schedule.decode(stored(store, "a").spec) == Spec(JOB, "0 3 * * *")


def test_a_schedule_that_code_declares_no_more_stays(store: Store) -> None:
    store_declared(store, {"a": Spec(JOB, None, 600 * SECOND)})
    store_declared(store, {"b": Spec(JOB, None, 600 * SECOND)})
    assert [record.name for record in store.schedules()] == ["a", "b"]


def test_workers_that_start_together_store_a_declared_schedule_once(url: str, store: Store) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> int:
        own = open_store(url, ManualClock()) if store.capabilities.shared else store
        barrier.wait(20)
        try:
            return store_declared(own, {"a": Spec(JOB, None, 600 * SECOND), "b": Spec(JOB, "0 3 * * *")})
        finally:
            if own is not store:
                own.close()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(start, range(4))) == 2
    assert [record.version for record in store.schedules()] == [1, 1]
