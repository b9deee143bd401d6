"""The ways of new jobs into PostgreSQL: alone, by statements, by COPY. Whichever is taken, the same is stored."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import StoreError
from holdfast.domain import limits
from holdfast.domain.alike import Alike, Named
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.domain.limits import Kept, Rule
from holdfast.port.store import Claim, Page
from holdfast.stores.postgres import PostgresStore, loading, rows, storing
from holdfast.stores.postgres.pool import Connection
from holdfast.stores.postgres.swift import Swift

NOW = 1_800_000_000_000_000


class StoppedClock:
    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return time.monotonic()


JOBS = (
    NewJob("plain", "{}"),
    NewJob(
        "text", '{"a":"\\\\ \\n \\t \\"ä\\u0000€😀"}', tenant="ünï", user="somebody", trace_id="0af7", trigger="api"
    ),
    NewJob("numbers", '{"n":1}', queue="other", priority=-1_000_000, max_attempts=10_000, crash_cap=7, steps_total=9),
    NewJob("ahead", "{}", priority=1_000_000, delay=5_000_000, expires_after=7, code_version=3),
    NewJob("then", "{}", run_at=NOW + 9_000_000, expires_after=60_000_000),
    NewJob("then", "{}", run_at=NOW - 9_000_000, expires_after=60_000_000),
    NewJob("long", '{"a":"' + "x" * 100_000 + '"}', retry="table:1,2,3:0.5:31536000000000"),
)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url, StoppedClock())) as store:
        yield store


def ids(number: int) -> list[str]:
    return Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8).take(
        number
    )


def read(store: PostgresStore, names: list[str]) -> list[JobRecord]:
    found = store.read(names)
    assert None not in found
    return [job._replace(id="") for job in found if job is not None]


def stored(store: PostgresStore, news: Sequence[NewJob]) -> list[JobRecord]:
    names = ids(len(news))
    group = Named(names, news) if isinstance(news, Alike) else list(zip(names, news, strict=True))
    (answers,) = store.insert([group])
    assert isinstance(answers, list)
    assert [answer.job for answer in answers] == store.read(names)
    return read(store, names)


@pytest.mark.parametrize("new", JOBS, ids=lambda new: new.kind)
def test_a_job_is_the_same_whichever_way_it_was_stored(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, new: NewJob
) -> None:
    (alone,) = stored(store, [new])
    few = stored(store, [new, new])
    monkeypatch.setattr(storing, "_LOADED", 2)
    many, like = stored(store, [new, new]), stored(store, Alike(new, [new.payload] * 2))
    assert [alone] * 2 == few == many == like


def test_lone_jobs_of_one_kind_are_each_stored_with_their_own_options(postgres_url: str) -> None:
    own: tuple[dict[str, Any], ...] = (
        {},
        {"queue": "other"},
        {"tenant": "acme"},
        {"user": "somebody"},
        {"priority": 5},
        {"max_attempts": 9},
        {"trace_id": "0af7"},
        {"delay": 60_000_000},
        {"expires_after": 60_000_000},
        {"code_version": 2},
    )
    news = [NewJob("plain", f'{{"n":{n}}}', **options) for n, options in enumerate((*own, *own, *reversed(own)))]
    with closing(PostgresStore(postgres_url)) as store:
        for new in (*news, *(new for new in news for _ in range(2))):
            (job,) = stored(store, [new])
            assert job.available_at == job.created_at + new.delay
            assert job.expires_at == (None if new.expires_after is None else job.available_at + new.expires_after)
            for name in ("kind", "payload", "queue", "tenant", "user", "priority", "max_attempts", "code_version"):
                assert getattr(job, name) == getattr(new, name)
        assert sum(store.counts().values()) == 3 * len(news)
        assert not list(store.check())


def test_a_lone_job_heeds_a_rule_that_came_after_the_last_one(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        stored(store, [NewJob("plain", "{}", tenant="a")])
        rule = limits.encoded(Kept(Rule("default", order="fair")))
        assert store.write_page(Page(limits.BOOK, limits.page_name("queue", "default"), rule), None)
        stored(store, [NewJob("plain", "{}", tenant="b")] * 120)  # who stores so many asks for the rules
        lone = ids(1)
        store.insert([[(lone[0], NewJob("plain", "{}", tenant="a"))]])
        query = f"SELECT queue FROM {store.address.schema}.waiting WHERE job_id = %s"
        assert store.pool.run(lambda db: db.execute(query, lone).fetchall()) == [("default\x1fta",)]
        assert not list(store.check())


def test_a_load_of_many_slices_is_answered_in_the_order_it_was_given(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    for module in (rows, loading):
        monkeypatch.setattr(module, "LARGEST", 3)
    news = [
        NewJob(f"kind{n % 3}", f'{{"n":{n}}}', queue=f"queue{n % 2}", run_at=None if n % 5 else NOW + n)
        for n in range(50)
    ]
    found = stored(store, news)
    assert [(job.kind, job.payload, job.queue) for job in found] == [(new.kind, new.payload, new.queue) for new in news]
    assert [job.available_at for job in found] == [new.run_at or NOW for new in news]
    assert store.counts() == {("queue0", State.QUEUED): 25, ("queue1", State.QUEUED): 25}
    assert not list(store.check())


def test_a_series_of_many_slices_is_answered_in_the_order_it_was_given(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    for module in (rows, loading):
        monkeypatch.setattr(module, "LARGEST", 3)
    texts = [f'{{"n":{n}}}' for n in range(50)]
    found = stored(store, Alike(NewJob("plain", "", queue="mail", tenant="acme"), texts))
    assert [job.payload for job in found] == texts
    assert {(job.kind, job.queue, job.tenant, job.available_at) for job in found} == {("plain", "mail", "acme", NOW)}
    assert store.counts() == {("mail", State.QUEUED): 50}
    assert not list(store.check())


def test_a_series_of_which_one_is_stored_already_is_answered_as_it_is(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    group = Named(ids(3), Alike(NewJob("plain", ""), ["1", "2", "3"]))
    store.insert([group[1:2]])
    (answers,) = store.insert([group])
    assert isinstance(answers, list)
    assert [answer.job for answer in answers] == store.read(group.ids)
    assert store.counts() == {("default", State.QUEUED): 3}
    assert not list(store.check())


@pytest.mark.parametrize(
    "options", [{"key": None, "group": "g"}, {"credits": 1}, {"steps": (("a", None),), "steps_total": 1}]
)
def test_a_series_that_needs_more_than_rows_is_stored_all_the_same(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    new = NewJob("plain", "{}", **options)
    assert stored(store, Alike(new, ["{}"] * 3)) == stored(store, [new] * 3)
    assert not list(store.check())


def test_jobs_of_every_sort_are_copied_together_and_counted_by_queue(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = [stored(store, [new])[0] for new in JOBS]
    monkeypatch.setattr(storing, "_LOADED", 2)
    assert stored(store, [*JOBS, *reversed(JOBS)]) == [*apart, *reversed(apart)]
    assert store.counts() == {("default", State.QUEUED): 18, ("other", State.QUEUED): 3}
    assert not list(store.check())


def test_a_copied_job_is_claimed_in_its_turn(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    stored(store, [NewJob("late", "{}", priority=-1), NewJob("first", "{}", priority=1), NewJob("next", "{}")])
    claimed = store.claim(Claim("somebody", "lease", 60_000_000, 10))
    assert [job.kind for job in claimed] == ["first", "next", "late"]
    assert not list(store.check())


def test_many_jobs_of_which_one_is_stored_already_are_answered_as_they_are(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    names, new = ids(3), NewJob("plain", "{}")
    group = [(name, new) for name in names]
    store.insert([group[1:2]])
    (answers,) = store.insert([group])
    assert isinstance(answers, list)
    assert [answer.job.id for answer in answers] == names
    assert store.counts() == {("default", State.QUEUED): 3}
    assert not list(store.check())


def test_many_jobs_of_a_fair_queue_stand_in_its_lanes_at_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    rule = limits.encoded(Kept(Rule("default", order="fair")))
    assert store.write_page(Page(limits.BOOK, limits.page_name("queue", "default"), rule), None)
    news = [NewJob("plain", "{}", tenant=f"t{n % 2}") for n in range(120)]
    store.insert([list(zip(ids(120), news, strict=True))])
    store.insert([Named(ids(120), Alike(NewJob("plain", "", tenant="t2"), ["{}"] * 120))])
    found = store.pool.run(
        lambda db: db.execute(f"SELECT DISTINCT queue FROM {store.address.schema}.waiting").fetchall()
    )
    assert sorted(found) == [(f"default\x1ftt{n}",) for n in range(3)]
    assert not list(store.check())


def test_nothing_of_many_jobs_is_stored_if_one_cannot_be(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_LOADED", 2)
    bad = NewJob("bad", "{}", priority=2**31 - 1, user="a\x00b")
    with pytest.raises(StoreError):
        store.insert([[(name, new) for name, new in zip(ids(3), (*JOBS[:2], bad), strict=True)]])
    assert store.counts() == {}
    assert not list(store.check())


def test_a_text_with_a_nul_is_refused_and_not_cut_short(store: PostgresStore) -> None:
    with pytest.raises(StoreError):
        store.insert([[(ids(1)[0], NewJob("bad", "{}", user="a\x00b"))]])
    assert store.counts() == {}


@pytest.fixture
def listening(postgres_url: str, postgres_server: str) -> Iterator[tuple[PostgresStore, psycopg.Connection[Any]]]:
    with closing(PostgresStore(postgres_url)) as store, psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f"LISTEN holdfast_{store.address.schema}")
        yield store, db


def test_a_lone_job_brings_its_notification_and_those_that_wait(
    listening: tuple[PostgresStore, psycopg.Connection[Any]],
) -> None:
    store, db = listening
    called = [ids(1)[0], ids(1)[0], ids(1)[0]]
    for name, queue in zip(called, ("first", "second", "third"), strict=True):
        store.insert([[(name, NewJob("plain", "{}", queue=queue))]])
    names: set[str] = set()
    for note in db.notifies(timeout=10):
        names.update(note.payload.split("\n")[:-1])
        if len(names) == 3:
            break
    assert names == {"first", "second", "third"}


@pytest.mark.parametrize(("new", "at_once"), [(NewJob("plain", "{}"), True), (NewJob("plain", "{}", delay=1), False)])
def test_a_notification_tells_whether_all_may_start_at_once(
    listening: tuple[PostgresStore, psycopg.Connection[Any]], new: NewJob, *, at_once: bool
) -> None:
    store, db = listening
    store.insert([[(ids(1)[0], new)]])
    (note,) = db.notifies(timeout=10, stop_after=1)
    assert note.payload.endswith(".") is at_once


def test_a_statement_prepared_by_hand_is_prepared_again_on_a_new_connection(
    listening: tuple[PostgresStore, psycopg.Connection[Any]],
) -> None:
    store, db = listening
    for _ in range(3):
        store.insert([[(ids(1)[0], NewJob("plain", "{}"))]])
        db.execute(
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND strpos(query, %s) > 0",
            (f"{store.address.schema}.",),
        )
    assert store.counts() == {("default", State.QUEUED): 3}


def test_a_statement_prepared_by_hand_is_prepared_again_once_the_server_has_forgotten_it(
    listening: tuple[PostgresStore, psycopg.Connection[Any]],
) -> None:
    store, _ = listening
    for _ in range(3):
        store.insert([[(ids(1)[0], NewJob("plain", "{}"))]])
        store.insert([[(ids(1)[0], NewJob("plain", "{}"))]])
        store.pool.run(lambda db: db.execute("DEALLOCATE ALL"))
    assert store.counts() == {("default", State.QUEUED): 6}


def test_one_that_the_server_has_forgotten_says_nothing_about_the_others(
    listening: tuple[PostgresStore, psycopg.Connection[Any]],
) -> None:
    store, _ = listening
    one, other = Swift("swift_one", "SELECT %(a)s"), Swift("swift_other", "SELECT %(a)s")

    def in_turns(db: Connection) -> list[int]:
        one.row(db, {"a": "0"})
        db.execute("DEALLOCATE ALL")
        return [
            int(statement.row(db, {"a": str(number)})[0]) for number, statement in enumerate((other, one, other, one))
        ]

    assert store.pool.run(in_turns) == [0, 1, 2, 3]


def test_a_row_that_was_told_before_its_commit_failed_is_not_believed(
    listening: tuple[PostgresStore, psycopg.Connection[Any]],
) -> None:
    """S34: so it is, too, where a backend is ended between the two."""
    store, _ = listening
    enter = Swift("swift_late", "INSERT INTO late VALUES (CAST(%(a)s AS integer)) RETURNING a")

    def twice(db: Connection) -> None:
        db.execute("CREATE TEMPORARY TABLE late (a integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        assert enter.row(db, {"a": "1"}) == [b"1"]
        enter.row(db, {"a": "1"})

    with pytest.raises(psycopg.errors.UniqueViolation):
        store.pool.run(twice)


@pytest.mark.parametrize("unlike", [{"tenant": "a"}, {"group": "a"}, {"key": "a", "user": "ada"}])
def test_jobs_that_are_stored_together_go_in_the_order_in_which_they_were_given(
    unlike: dict[str, Any], postgres_url: str
) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        names = ids(10)
        ones = [NewJob("echo", "{}")._replace(**unlike if place % 3 == 0 else {}) for place in range(len(names))]
        if "key" in unlike:
            ones = [new._replace(key=new.key and name) for name, new in zip(names, ones, strict=True)]
        [stored] = store.insert([list(zip(names, ones, strict=True))])
        assert isinstance(stored, list)
        assert [job.id for job in store.claim(Claim("w", "lease", 60_000_000, 20))] == names
        assert {one.at for one in stored} == {job.created_at for job in read(store, names)}
        assert len({one.at for one in stored}) == 1
