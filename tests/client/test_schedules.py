"""Schedules as an application sees them: declared in code, and stored, paused, run and removed at run time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.client.function import Prepared
from holdfast.client.inserter import Inserter
from holdfast.client.schedules import Schedule, Schedules
from holdfast.domain import schedule
from holdfast.domain.errors import BadInput, ScheduleNotFound, StoreUnavailable
from holdfast.domain.job import NewJob
from holdfast.domain.moments import SECOND
from holdfast.port.store import ScheduleRecord
from holdfast.runtime.firing import fire, store_declared
from holdfast.testing.clock import ManualClock

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
TIDY = Prepared(NewJob("tidy", '{"a":1}', "mail", "acme"))


@pytest.fixture
def known(app: Holdfast) -> Schedules:
    return app.schedules


def fired(app: Holdfast, clock: ManualClock) -> int:
    return fire(app.store, Inserter(app.store, clock).insert, app.store.now())


def test_an_added_schedule_is_listed_as_it_was_asked_for(known: Schedules) -> None:
    nightly = known.add("nightly", TIDY, cron="0  3 * * *", tz="Europe/Prague", catch_up="once")
    often = known.add("often", TIDY, every=timedelta(minutes=5))
    assert known.list() == [nightly, often]
    three = MIDNIGHT + timedelta(hours=2)
    assert nightly == Schedule("nightly", "tidy", "0 3 * * *", None, "Europe/Prague", "once", three, None, paused=False)
    five = timedelta(minutes=5)
    assert often == Schedule("often", "tidy", None, five, "UTC", "skip", MIDNIGHT + five, None, paused=False)


def test_a_fired_schedule_tells_its_last_time_and_its_next(app: Holdfast, known: Schedules, clock: ManualClock) -> None:
    known.add("often", TIDY, every=60)
    clock.advance(seconds=61)
    assert fired(app, clock) == 1
    (often,) = known.list()
    assert (often.last_at, often.next_at) == (MIDNIGHT + timedelta(minutes=1), MIDNIGHT + timedelta(minutes=2))


def test_a_name_is_taken_once(known: Schedules) -> None:
    before = known.add("a", TIDY, every=60)
    with pytest.raises(BadInput, match="There is a schedule 'a' already"):
        known.add("a", TIDY, every=30)
    assert known.list() == [before]
    known.declare("a", TIDY, every=60)
    with pytest.raises(BadInput, match="is declared already"):
        known.declare("a", TIDY, every=60)
    assert list(known.declared) == ["a"]


WRONG: list[tuple[str, Any, dict[str, Any], str]] = [
    ("", TIDY, {"every": 60}, "schedule's name"),
    ("a\nb", TIDY, {"every": 60}, "schedule's name"),
    ("x" * 201, TIDY, {"every": 60}, "at most 200 characters"),
    ("a", TIDY, {}, "neither"),
    ("a", TIDY, {"every": 60, "cron": "* * * * *"}, "both"),
    ("a", TIDY, {"every": 0.5}, "one second or more"),
    ("a", TIDY, {"cron": "0 0 30 2 *"}, "never fires"),
    ("a", TIDY, {"cron": "every day"}, "five fields"),
    ("a", TIDY, {"cron": "0 3 * * *", "tz": "Europe/Prag"}, "is not a time zone"),
    ("a", TIDY, {"every": 60, "catch_up": "some"}, "is not"),
    ("a", Prepared(NewJob("tidy", "{}", key="k")), {"every": 60}, "without key="),
    ("a", Prepared(NewJob("tidy", "{}", delay=5)), {"every": 60}, "without run_after="),
    ("a", Prepared(NewJob("tidy", "{}"), connection=object()), {"every": 60}, "without connection="),
    ("a", "tidy", {"every": 60}, "a prepared job"),
]


@pytest.mark.parametrize(("name", "prepared", "times", "said"), WRONG, ids=lambda value: str(value)[:30])
def test_what_cannot_be_scheduled_is_refused_and_nothing_changes(
    known: Schedules, name: str, prepared: Any, times: dict[str, Any], said: str
) -> None:
    for ask in (known.declare, known.add):
        with pytest.raises(BadInput) as refused:
            ask(name, prepared, **times)
        assert said in str(refused.value)
    assert (known.list(), dict(known.declared)) == ([], {})


def test_the_longest_name_makes_a_key_that_can_be_asked_for(
    app: Holdfast, known: Schedules, clock: ManualClock
) -> None:
    known.add("x" * 200, TIDY, every=1.5)
    clock.advance(seconds=1.5)
    assert fired(app, clock) == 1
    (job,) = app.find()
    assert len(job.record.key or "") <= 255
    assert [each.id for each in app.find(key=job.record.key)] == [job.id]


def test_a_paused_schedule_does_not_make_up_for_what_came_meanwhile(
    app: Holdfast, known: Schedules, clock: ManualClock
) -> None:
    known.add("often", TIDY, every=60, catch_up="all")
    assert known.pause("often").paused
    assert known.pause("often") == known.list()[0]
    clock.advance(seconds=150)
    assert fired(app, clock) == 0
    resumed = known.resume("often")
    assert (resumed.paused, resumed.next_at) == (False, MIDNIGHT + timedelta(seconds=180))
    assert known.resume("often") == resumed
    clock.advance(seconds=30)
    assert fired(app, clock) == 1


def test_resuming_what_is_not_paused_drops_nothing(app: Holdfast, known: Schedules, clock: ManualClock) -> None:
    known.add("often", TIDY, every=60, catch_up="all")
    clock.advance(seconds=150)
    assert known.resume("often").next_at == MIDNIGHT + timedelta(seconds=60)
    assert fired(app, clock) == 2


def test_a_schedule_is_run_now_beside_its_times(app: Holdfast, known: Schedules) -> None:
    known.add("nightly", TIDY, cron="0 3 * * *")
    known.pause("nightly")
    before = known.list()
    first, second = known.run("nightly"), known.run("nightly")
    assert first.id != second.id
    record = first.record
    assert (record.kind, record.payload, record.queue, record.tenant) == TIDY.new[:4]
    assert (record.trigger, record.key, record.state.value) == ("manual", None, "queued")
    assert known.list() == before


def test_a_removed_schedule_is_gone_and_its_jobs_are_not(app: Holdfast, known: Schedules, clock: ManualClock) -> None:
    known.add("often", TIDY, every=60)
    clock.advance(seconds=60)
    fired(app, clock)
    known.remove("often")
    assert known.list() == []
    assert app.counts().total == 1
    clock.advance(seconds=60)
    assert fired(app, clock) == 0


@pytest.mark.parametrize("call", ["pause", "resume", "run", "remove"])
def test_a_schedule_that_is_not_there_is_missed_by_name(known: Schedules, call: str) -> None:
    with pytest.raises(ScheduleNotFound, match=r"^There is no schedule 'gone'\.$"):
        getattr(known, call)("gone")


def test_declaring_touches_no_store(clock: ManualClock) -> None:
    def unopened(*_: object) -> Any:
        raise AssertionError

    known = Schedules(unopened, unopened, clock.now)
    known.declare("nightly", TIDY, cron="0 3 * * *", tz="Europe/Prague", catch_up="all")
    assert known.declared["nightly"] == schedule.Spec(TIDY.new, "0 3 * * *", None, "Europe/Prague", "all")


def test_what_a_worker_stores_is_what_was_declared(app: Holdfast, known: Schedules) -> None:
    known.declare("nightly", TIDY, cron="0 3 * * *", tz="Europe/Prague")
    assert known.list() == []
    assert store_declared(app.store, known.declared) == 1
    (nightly,) = known.list()
    known.remove("nightly")
    assert known.add("nightly", TIDY, cron="0 3 * * *", tz="Europe/Prague") == nightly


def test_a_pause_in_the_middle_of_a_firing_is_kept(app: Holdfast, known: Schedules, clock: ManualClock) -> None:
    known.add("often", TIDY, every=60)
    clock.advance(seconds=60)
    insert = Inserter(app.store, clock).insert

    def pausing(jobs: Any) -> Any:
        known.pause("often")
        return insert(jobs)

    assert fire(app.store, pausing, app.store.now()) == 1
    assert known.list()[0].paused


def test_a_change_is_made_again_if_the_schedule_was_fired_in_between(app: Holdfast, clock: ManualClock) -> None:
    racing = Racing(app.store, times=3)
    known = Schedules(lambda: racing, lambda prepared: app.enqueue_many([prepared])[0], clock.now)
    known.add("often", TIDY, every=60)
    assert known.pause("often").paused
    assert (racing.times, known.list()[0].paused) == (0, True)
    racing.times = 1000
    with pytest.raises(StoreUnavailable, match="kept changing"):
        known.resume("often")


class Racing:
    """A store in which somebody else is quicker, so many times."""

    def __init__(self, store: Any, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def save_schedule(self, record: ScheduleRecord, seen: int | None) -> bool:
        if seen is not None and self.times:
            self.times -= 1
            (found,) = self._store.schedules()
            assert self._store.save_schedule(found._replace(next_at=found.next_at + SECOND), found.version)
        return bool(self._store.save_schedule(record, seen))


def test_every_call_has_an_asynchronous_twin(app: Holdfast, known: Schedules) -> None:
    async def live() -> list[object]:
        added = await known.aadd("a", TIDY, every=60)
        seen: list[object] = [added == (await known.alist())[0], (await known.apause("a")).paused]
        seen += [(await known.aresume("a")).paused, (await known.arun("a")).state]
        await known.aremove("a")
        return [*seen, await known.alist()]

    assert asyncio.run(live()) == [True, True, False, "queued", []]
