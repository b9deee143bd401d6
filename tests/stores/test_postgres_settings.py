"""A PostgreSQL that is set otherwise than ours: its encoding, its isolation, and what it does by default."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from holdfast import BadInput, Context, Holdfast, StoreUnusable
from holdfast.stores.postgres import PostgresStore

_NAMES = count(1)
_ODD = {
    "TimeZone": "Pacific/Chatham",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "search_path": "",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "bytea_output": "escape",
    "transform_null_equals": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1",
    "lock_timeout": "1",
}
"""What no application should be run with, and each of which somebody has set for a database."""


@pytest.fixture
def database(postgres_server: str) -> Iterator["Database"]:
    """Make a database that a test may set as it likes."""
    made = Database(postgres_server, f"holdfast_set_{next(_NAMES)}")
    yield made
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(made.name)))


class Database:
    def __init__(self, server: str, name: str) -> None:
        self._server = server
        self.name = name
        self.url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))

    def make(self, encoding: str = "UTF8", **settings: str) -> str:
        with psycopg.connect(self._server, autocommit=True) as db:
            text = "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'"
            db.execute(sql.SQL(text).format(sql.Identifier(self.name), sql.Literal(encoding)))
            for name, value in settings.items():
                change = sql.SQL("ALTER DATABASE {} SET {} = {}")
                db.execute(change.format(sql.Identifier(self.name), sql.Identifier(name), sql.Literal(value)))
        return self.url


def drained(url: str, text: str) -> None:
    """Enqueue, with all that is kept beside a payload, and run."""
    with closing(Holdfast(url)) as app:

        @app.job
        def echo(text: str, ctx: Context) -> str:
            with ctx.transaction() as db:
                assert db.execute("SELECT %s::text", (text,)).fetchone() == (text,)
            return text

        job = echo.using(key=text, tenant=text, queue=text).enqueue(text)
        assert echo.using(key=text, tenant=text, queue=text).enqueue(text).duplicate
        app.run_worker(until_idle=True)
        assert (job.refresh().attempt, job.result(timeout=1)) == (1, text)
        assert [found.id for found in app.find(tenant=text)] == [job.id]
        assert list(app.store.check()) == []


def test_where_the_server_names_no_encoding_every_text_is_kept(database: Database) -> None:
    drained(database.make("SQL_ASCII"), "Žluťoučký kůň: 5 €, 日本")


def test_the_clients_encoding_is_not_the_environments(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    drained(postgres_url, "Žluťoučký kůň: 5 €, 日本")


def test_a_database_that_cannot_keep_every_text_is_refused(database: Database) -> None:
    """What could not be written is a result or a traceback as well, and then a job runs until it is dead."""
    with pytest.raises(StoreUnusable, match="cannot keep every text: its encoding is LATIN1; use one with UTF8"):
        PostgresStore(database.make("LATIN1"))


def test_a_callers_connection_that_reads_texts_as_bytes_is_refused(database: Database) -> None:
    url = database.make("SQL_ASCII")

    async def awaited() -> None:
        async with await psycopg.AsyncConnection.connect(url) as db:
            await noop.using(connection=db).aenqueue()

    with closing(Holdfast(url)) as app:

        @app.job
        def noop() -> None: ...

        said = "its client_encoding is SQL_ASCII; connect with client_encoding=utf8"
        with psycopg.connect(url) as db, pytest.raises(BadInput, match=said):
            noop.using(connection=db).enqueue()
        with pytest.raises(BadInput, match=said):
            asyncio.run(awaited())
        with psycopg.connect(url, client_encoding="utf8") as db:
            noop.using(connection=db, key="ž").enqueue()
        assert app.counts()["queued"] == 1


def test_what_a_database_sets_for_others_does_not_matter(database: Database) -> None:
    url = database.make(**_ODD)
    drained(url, "it's 5 \\ ' €")
    with psycopg.connect(url, options="-c statement_timeout=0", autocommit=True) as db:
        arguments = "kind => 'echo', run_at => '2020-01-02 03:04:05+00', key => 'k', key_ttl => '1 day'"
        (made,) = db.execute(f"SELECT holdfast.enqueue({arguments})").fetchone() or ()
    with closing(Holdfast(url)) as app:
        job = app.get(made)
        assert (job.state, job.record.available_at) == ("queued", 1_577_934_245_000_000)


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_stricter_isolation_by_default_is_no_hindrance(database: Database, level: str) -> None:
    """Workers and enqueuers meet each other all the time; at that level each meeting would be refused."""
    url = database.make(default_transaction_isolation=level)
    with closing(PostgresStore(url)) as store:
        assert store.pool.run(lambda db: db.execute("SHOW transaction_isolation").fetchone()) == ("read committed",)
        store.pool.pooled = True
        assert store.pool.run(lambda db: db.execute("SHOW transaction_isolation").fetchone()) == ("read committed",)


def test_a_handlers_transaction_has_the_options_of_the_url(postgres_url: str) -> None:
    seen: list[object] = []
    with closing(Holdfast(f"{postgres_url}&options=-c%20geqo%3Doff%20-c%20lock_timeout%3D7s")) as app:

        @app.job
        def look(ctx: Context) -> None:
            with ctx.transaction() as db:
                shown = ("geqo", "lock_timeout", "statement_timeout", "enable_seqscan")
                seen.extend(db.execute(f"SHOW {name}").fetchone()[0] for name in shown)

        look.enqueue()
        app.run_worker(until_idle=True)
    assert seen == ["off", "7s", "10min", "on"]
