"""Copying from store to store: nothing is lost, nothing runs twice, whatever the copier dies of."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.durable import CHILDREN
from holdfast.client.settings import Settings
from holdfast.domain import audit, lifecycle, moving
from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.ids import Ids
from holdfast.domain.job import Account, JobRecord, State
from holdfast.domain.moments import DAY, HOUR
from holdfast.domain.schedule import NEVER
from holdfast.port.parcel import Parcel
from holdfast.port.store import Query, ScheduleRecord, Store
from holdfast.runtime import copying
from holdfast.runtime.copying import Place
from holdfast.stores import open_store
from holdfast.stores.dynamodb import DynamoStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.lab import LEASE, RETENTION, Lab

SETTINGS = Settings()
SPEC = '{"cron": "0 8 * * *"}'
MOVED = 10
"""The jobs of `fill` that are moved; one of them is dead."""
Open = Callable[[str], Lab]


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Give a way to open a store of some kind, each its own and all under one clock."""
    clock = ManualClock()
    ids = Ids(lambda: clock.now() // 1000, random.Random(7).getrandbits)
    with ExitStack() as opened:

        def make(kind: str) -> Store:
            if kind == "memory":
                return MemoryStore(clock=clock)
            if kind == "sqlite":
                return SqliteStore(f"sqlite:///{tmp_path}/{len(list(tmp_path.glob('*.db')))}.db", clock)
            if kind in ("dynamodb", "contract"):
                return open_store(request.getfixturevalue(f"{kind}_url"), clock)
            return PostgresStore(request.getfixturevalue("postgres_url"), clock)

        def opener(kind: str) -> Lab:
            store = opened.enter_context(closing(make(kind)))
            return Lab(store, store, clock, lambda: store, ids)

        yield opener


def fill(lab: Lab) -> None:
    """Store jobs of every sort that is moved, and some that are not."""
    lab.store.grant("acme", 100, "first")
    lab.job(delay=DAY, priority=5, queue="mail", expires_after=HOUR)
    lab.job(key="mine", key_ttl=HOUR, tenant="acme", user="u-1", trace_id="t-1", credits=30)
    lab.job(state=State.CREATED)
    lab.in_state(State.RETRYING)
    lab.in_state(State.DEAD, key="theirs")
    lab.done(lifecycle.redrive(lab.in_state(State.DEAD, queue="mail")))
    for state in (State.SUCCEEDED, State.CANCELLED):
        lab.in_state(state)
    waits = lab.done(lifecycle.checkpoint(lab.running(), "first", "1", undoable=True))
    lab.done(lifecycle.suspend(waits, "~wait", None, awaits="go", delay=HOUR))
    undone = lab.done(lifecycle.checkpoint(lab.running(), "first", "1", undoable=True))
    undone = lab.done(lifecycle.snooze(undone, HOUR))
    undone = lab.done(lifecycle.signal(undone, "s-1", "early", '"ö"'))
    lab.done(lifecycle.cancel(undone, RETENTION))
    parent = lab.running()
    children = [(id_, lab.new(parent=parent.id)) for id_ in lab.ids.take(2)]
    lab.done(lifecycle.suspend(parent, "~gather", "2", awaits=CHILDREN, children=tuple(children)))
    [ended] = lab.claim(id=children[0][0])
    lab.done(lifecycle.complete(ended, "7", RETENTION))
    lab.store.save_schedule(ScheduleRecord("daily", SPEC, 5, 1), None)
    lab.store.save_schedule(ScheduleRecord("off", SPEC, NEVER, None, paused=True), None)


def all_of(store: Store) -> list[Parcel]:
    return store.parcels([job.id for job in reversed(store.find(Query(limit=1_000)))])


def essence(parcel: Parcel) -> Parcel:
    """Leave out what a move changes: the version, when it was, the notes; and what it does for those who wait."""
    job = parcel.job._replace(version=0, updated_at=0)
    if job.state is State.CREATED:
        job = job._replace(state=State.QUEUED)
    if job.flow is not None and job.flow.awaits == CHILDREN:
        job = job._replace(available_at=0)
    return parcel._replace(job=job, steps=[step for step in parcel.steps if not step.name.startswith("~moving")])


def movable(parcels: list[Parcel]) -> list[Parcel]:
    ended = (State.SUCCEEDED, State.CANCELLED)
    return [essence(parcel) for parcel in parcels if parcel.job.state not in ended]


def copy(source: Lab, target: Lab, **more: Any) -> copying.Report:
    return copying.copy(Place(source.store, "a"), Place(target.store, "b"), SETTINGS, **more)


def require_sound(store: Store) -> None:
    for job in store.find(Query(limit=1_000)):
        found = audit.violations(job, store.attempts(job.id), store.now(), watched_since=None)
        assert found == [], job
    assert list(store.check()) == []


def require_moved(source: Store, target: Store, before: list[Parcel]) -> None:
    """Look whether all that was to move is in the target as it was, and nowhere else."""
    assert movable(all_of(target)) == movable(before)
    assert movable(all_of(source)) == []
    assert all(moving.left(job) for [job] in [source.read([parcel.job.id]) for parcel in movable(before)] if job)
    for store in (source, target):
        require_sound(store)
    assert source.account("acme") == Account("acme", 0, 0, 0)
    assert target.account("acme") == Account("acme", 100, 30, 0)
    assert source.schedules() == []
    assert target.schedules() == [
        ScheduleRecord("daily", SPEC, 5, 1),
        ScheduleRecord("off", SPEC, NEVER, None, paused=True),
    ]


PAIRS = [
    *[("memory", "sqlite"), ("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite")],
    pytest.param("sqlite", "dynamodb", marks=pytest.mark.aws),
    pytest.param("dynamodb", "sqlite", marks=pytest.mark.aws),
    pytest.param("sqlite", "contract", marks=pytest.mark.aws),
    pytest.param("dynamodb", "contract", marks=pytest.mark.aws),
]


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_all_that_waits_or_is_dead_moves_as_it_was(bench: Open, kind: str, other: str) -> None:
    source, target = bench(kind), bench(other)
    fill(source)
    before = all_of(source.store)
    report = copy(source, target)
    assert (report.waiting, report.dead, report.finished) == (MOVED - 1, 1, 1)
    assert (report.refused, report.schedules, report.credits) == ([], ["daily", "off"], {"acme": 70})
    require_moved(source.store, target.store, before)
    again = copy(source, target)
    assert (again.waiting, again.dead, again.finished, again.credits) == (0, 0, 0, {})
    require_moved(source.store, target.store, before)


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_what_was_moved_can_be_moved_back(bench: Open, kind: str, other: str) -> None:
    here, there = bench(kind), bench(other)
    fill(here)
    before = all_of(here.store)
    copy(here, there)
    back = copying.copy(Place(there.store, "b"), Place(here.store, "a"), SETTINGS)
    assert back.waiting + back.dead == MOVED
    require_moved(there.store, here.store, before)


def test_a_moved_job_runs_in_the_target_and_never_again_in_the_source(bench: Open) -> None:
    source, target = bench("memory"), bench("sqlite")
    fill(source)
    copy(source, target)
    for queue in source.store.paused():
        source.store.resume(queue)
    source.clock.advance(days=2)
    assert source.claim(100) == []
    assert len(target.claim(100)) == MOVED - 2, "the dead one is not run, and one came too late"


def test_finished_jobs_are_copied_if_asked_for(bench: Open) -> None:
    source, target = bench("memory"), bench("sqlite")
    fill(source)
    ended = [p for p in all_of(source.store) if p.job.state in (State.SUCCEEDED, State.CANCELLED)]
    report = copy(source, target, finished=True)
    assert report.finished == len(ended)
    assert target.store.parcels([parcel.job.id for parcel in ended]) == ended
    assert source.store.parcels([parcel.job.id for parcel in ended]) == ended


def test_running_jobs_are_waited_for_and_nothing_moves_before(bench: Open) -> None:
    source, target = bench("memory"), bench("memory")
    waits = source.job()
    source.running()
    with pytest.raises(StoreError, match="1 job is still running"):
        copy(source, target)
    assert source.read(waits) == waits
    assert source.store.paused() == {"default"}
    source.clock.advance(microseconds=LEASE)
    assert copy(source, target).waiting == 2, "the lease is over, so it was taken back"


def test_a_store_is_not_copied_to_itself(bench: Open) -> None:
    lab = bench("sqlite")
    lab.job()
    with closing(SqliteStore(lab.store.url, lab.clock)) as same, pytest.raises(BadInput, match="the same store"):
        copying.copy(Place(lab.store, "a"), Place(same, "b"), SETTINGS)
    assert lab.store.paused() == frozenset()


def test_a_job_whose_key_is_taken_stays_where_it_is(bench: Open) -> None:
    source, target = bench("memory"), bench("sqlite")
    job, free = source.job(key="k"), source.job()
    owner = target.job(key="k")
    report = copy(source, target)
    [(id_, reason)] = report.refused
    assert (id_, report.waiting) == (job.id, 1)
    assert owner.id in reason
    assert source.read(job) == job._replace(version=3)
    assert moving.left(source.read(free))


def test_a_schedule_that_the_target_has_stays_as_it_is_there(bench: Open) -> None:
    source, target = bench("memory"), bench("memory")
    source.store.save_schedule(ScheduleRecord("daily", SPEC, 5), None)
    target.store.save_schedule(ScheduleRecord("daily", SPEC, 9), None)
    copy(source, target)
    assert source.store.schedules() == []
    assert target.store.schedules() == [ScheduleRecord("daily", SPEC, 9)]


class Killed(BaseException):
    """The copier is gone."""


class Dying:
    """A store whose user dies at one of its writes: just before it, or when it is done and the answer is lost."""

    writes = frozenset({"commit", "adopt", "grant", "save_schedule", "remove_schedule", "pause", "resume", "reach"})

    def __init__(self, store: Store, count: Callable[[str], None]) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in self.writes:
            return method

        def written(*given: Any) -> Any:
            self._count("before")
            done = method(*given)
            self._count("after")
            return done

        return written


def died(source: Lab, target: Lab, moment: int) -> bool:
    """Copy until the copier dies at a moment; tell whether it lived to see it."""
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == moment:
            raise Killed

    ends = Place(Dying(source.store, count), "a"), Place(Dying(target.store, count), "b")
    try:
        copying.copy(*ends, SETTINGS)
    except Killed:
        return True
    return False


@pytest.mark.parametrize("page", [200, 3])
def test_whenever_the_copier_dies_the_next_one_finishes(
    bench: Open, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(copying, "PAGE", page)
    moment = 0
    while True:
        moment += 1
        source, target = bench("memory"), bench("memory")
        fill(source)
        before = all_of(source.store)
        if not died(source, target, moment):
            break
        live = [parcel.job.id for lab in (source, target) for parcel in all_of(lab.store) if not _at_rest(parcel.job)]
        assert len(live) == len(set(live)), f"a job can run in both stores when the copier dies at {moment}"
        copy(source, target)
        require_moved(source.store, target.store, before)
    assert moment > 40


def _at_rest(job: JobRecord) -> bool:
    return moving.held(job) or job.state in (State.SUCCEEDED, State.CANCELLED)


def test_whenever_the_copier_dies_it_can_be_undone(bench: Open) -> None:
    moment = 0
    while True:
        moment += 1
        source, target = bench("memory"), bench("memory")
        fill(source)
        before = all_of(source.store)
        if not died(source, target, moment):
            break
        copying.undo(Place(source.store, "a"), Place(target.store, "b"), SETTINGS)
        kept = {parcel.job.id: parcel for parcel in movable(all_of(source.store))}
        gone = {parcel.job.id for parcel in all_of(source.store) if moving.left(parcel.job)}
        assert kept.keys() | gone == {parcel.job.id for parcel in movable(before)}
        assert not any(moving.held(parcel.job) for parcel in all_of(source.store))
        copy(source, target)
        require_moved(source.store, target.store, before)


def test_a_copy_to_elsewhere_waits_for_the_unfinished_one(bench: Open) -> None:
    source, target, third = bench("memory"), bench("memory"), bench("memory")
    job = source.job()
    assert next(moment for moment in range(1, 40) if died(source, target, moment) and moving.held(source.read(job)))
    with pytest.raises(StoreError, match="--from a --to b"):
        copying.copy(Place(source.store, "a"), Place(third.store, "c"), SETTINGS)
    assert third.store.find(Query()) == []


@pytest.mark.aws
def test_a_count_that_drifted_does_not_hold_up_a_copy(bench: Open) -> None:
    source, target = bench("dynamodb"), bench("memory")
    source.job()
    store = source.store
    assert isinstance(store, DynamoStore)
    store._crew.count({("default", State.RUNNING): 1})  # as a process leaves it that dies in between
    assert copy(source, target).waiting == 1
