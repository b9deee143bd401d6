"""The connections of a PostgreSQL store: what the URL asks of them, and what is said of their troubles."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from holdfast.domain.job import NewJob
from holdfast.domain.move import Answer
from holdfast.port.store import Beat, Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.address import parse
from tests.servers import LONG


def show(store: PostgresStore, setting: str) -> str:
    return str(store.pool.run(lambda db: db.execute(f"SHOW {setting}").fetchall())[0][0])


def test_options_of_the_url_hold_beside_our_own(postgres_url: str) -> None:
    with closing(PostgresStore(f"{postgres_url}&options=-c%20geqo%3Doff%20-c%20statement_timeout%3D7s")) as store:
        assert (show(store, "geqo"), show(store, "statement_timeout")) == ("off", "7s")
        assert (show(store, "jit"), show(store, "lock_timeout")) == ("off", "10s")
        assert show(store, "application_name") == "holdfast"
    with closing(PostgresStore(f"{postgres_url}&application_name=shop")) as store:
        assert show(store, "application_name") == "shop"


def test_one_call_after_the_other_takes_one_connection(postgres_url: str, postgres_server: str) -> None:
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'modest'"
    with closing(PostgresStore(f"{postgres_url}&application_name=modest")) as store:
        for _ in range(5):
            assert store.counts() == {}
        with psycopg.connect(postgres_server) as db:
            assert db.execute(ours).fetchone() == (1,)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:secret@db1:5433,db2:5434/shop", "postgresql://db1:5433,db2:5434/shop"),
        ("postgresql://db1,db2/shop?port=5433&password=secret", "postgresql://db1:5433,db2:5433/shop"),
        ("postgresql://[::1]:5433,db2/shop", "postgresql://[::1]:5433,db2/shop"),
        ("postgresql:///shop", "postgresql://localhost/shop"),
    ],
)
def test_an_address_is_shown_as_it_may_be_written(url: str, shown: str) -> None:
    assert parse(url).shown == shown


def test_psycopg_does_not_log_what_befalls_our_connections(
    postgres_url: str, postgres_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{postgres_url}&application_name=doomed"
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'"
    with caplog.at_level(logging.WARNING), closing(PostgresStore(url)) as store:
        for _ in range(3):
            with psycopg.connect(postgres_server, autocommit=True) as db:
                db.execute(kill)
            assert store.counts() == {}
    assert caplog.records == []


def test_nor_does_it_log_that_a_pipeline_of_ours_was_cut_short(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(db: psycopg.Connection[Any]) -> None:
        with db.pipeline():
            first = db.execute("SELECT 1 / 0")
            with suppress(psycopg.Error):
                first.fetchone()
            db.execute("SELECT 1")
            raise KeyError

    with caplog.at_level(logging.WARNING), closing(PostgresStore(postgres_url)) as store, pytest.raises(KeyError):
        store.pool.run(work)
    assert caplog.records == []


def test_it_goes_on_logging_what_befalls_others(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(PostgresStore(postgres_url)), caplog.at_level(logging.WARNING):
        logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "theirs", "no")
    assert [record.args for record in caplog.records] == [("theirs", "no")]


@contextmanager
def crowd(store: PostgresStore, callers: int, seconds: float) -> Iterator[list[int]]:
    """Let callers ask again and again, each for a little while; gives how often each was answered."""
    answered = [0] * callers
    ended = threading.Event()

    def ask(me: int) -> None:
        while not ended.is_set():
            store.pool.run(lambda db: db.execute("SELECT pg_sleep(%s)", (seconds,)), writes=False)
            answered[me] += 1

    threads = [threading.Thread(target=ask, args=(me,)) for me in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_nobody_who_waits_for_a_connection_is_passed_over_by_those_who_come_later(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, crowd(store, 20, 0.005) as answered:
        end = time.monotonic() + LONG
        while min(answered) < 5:  # in turns, nobody is answered five times before another once
            assert time.monotonic() < end
            threading.Event().wait(0.01)
        assert max(answered) < 10 * min(answered)


def test_a_heartbeat_does_not_wait_for_a_connection_that_others_use(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        job = NewJob(kind="k", payload="{}", queue="q")
        store.insert([[("018f0000-0000-7000-8000-000000000001", job)]])
        (held,) = store.claim(Claim("me", "lease", 60_000_000, 1))
        with crowd(store, 12, 1.0) as answered:
            threading.Event().wait(0.3)
            beat = Beat(held.id, held.token, held.lease_id or "", begun=False)
            assert store.heartbeat([beat], 60_000_000) == [Answer.OK]
            assert answered == [0] * 12, "every connection of the pool is in use meanwhile"
