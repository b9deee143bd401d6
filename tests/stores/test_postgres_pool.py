"""The connections of a PostgreSQL store: what the URL asks of them, and what is said of their troubles."""

import logging
from contextlib import closing

import psycopg
import pytest

from holdfast.stores.postgres import PostgresStore


def show(store: PostgresStore, setting: str) -> str:
    return str(store.pool.run(lambda db: db.execute(f"SHOW {setting}").fetchall())[0][0])


def test_options_of_the_url_hold_beside_our_own(postgres_url: str) -> None:
    with closing(PostgresStore(f"{postgres_url}&options=-c%20geqo%3Doff%20-c%20statement_timeout%3D7s")) as store:
        assert (show(store, "geqo"), show(store, "statement_timeout")) == ("off", "7s")
        assert (show(store, "jit"), show(store, "lock_timeout")) == ("off", "10s")
        assert show(store, "application_name") == "holdfast"
    with closing(PostgresStore(f"{postgres_url}&application_name=shop")) as store:
        assert show(store, "application_name") == "shop"


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


def test_it_goes_on_logging_what_befalls_others(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(PostgresStore(postgres_url)), caplog.at_level(logging.WARNING):
        logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "theirs", "no")
    assert [record.args for record in caplog.records] == [("theirs", "no")]
