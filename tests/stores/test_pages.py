"""What pages cost and leave behind on the engines: nothing, once purged, and look-ups along an index."""

import json
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.client.settings import settings
from holdfast.domain.moments import SECOND
from holdfast.port.store import Page, Purged
from holdfast.runtime import upkeep
from holdfast.stores import statements
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore, address, schema
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.connection import APPLICATION_ID, MIGRATIONS
from holdfast.testing.clock import ManualClock


def test_sqlite_keeps_no_row_of_a_purged_page(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)) as store:
        for number in range(5):
            store.write_page(Page("book", str(number), "{}", expires_at=clock.now() + number * SECOND), None)
        clock.advance(seconds=2)
        assert store.purge(2) == Purged(0, [], 2)
        assert store.purge(2) == Purged(0, [], 1)
        assert store.purge(2) == Purged(0, [])
        assert store.file.writer.execute("SELECT name FROM page").fetchall() == [("3",), ("4",)]


def test_sqlite_looks_pages_up(tmp_path: Path) -> None:
    with closing(SqliteStore(f"sqlite:///{tmp_path}/jobs.db")) as store:
        for name in ("pages", "newest_pages", "page", "change_page", "page_over", "purge_pages"):
            text = statements.load("holdfast.stores.sqlite", "pages.sql")[name]
            plan = [row[3] for row in store.file.reader.execute(f"EXPLAIN QUERY PLAN {text}", (1,) * text.count("?"))]
            assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step], (name, plan)


def test_a_file_of_the_version_before_gets_room_for_pages(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with closing(apsw.Connection(str(file))) as old:
        for migration in MIGRATIONS[:3]:
            old.execute(statements.script("holdfast.stores.sqlite.migrations", migration))
        old.pragma("application_id", APPLICATION_ID)
        old.pragma("user_version", 3)
    with closing(SqliteStore(f"sqlite:///{file}")) as store:
        assert store.write_page(Page("book", "page", "{}"), None)
        assert store.pages("book") == [Page("book", "page", "{}")]


def test_postgres_keeps_no_row_of_a_purged_page_and_looks_pages_up(postgres_url: str) -> None:
    clock = ManualClock()
    with (
        closing(PostgresStore(postgres_url, clock)) as store,
        psycopg.connect(store.address.conninfo, autocommit=True) as db,
    ):
        db.execute(f"SET search_path = {store.address.schema}")
        db.execute(
            "INSERT INTO page SELECT 'book ' || n % 3, lpad(n::text, 6, '0'), '{}', 1, CASE WHEN n % 2 = 0 THEN n END "
            "FROM generate_series(1, 20000) AS n"
        )
        db.execute("ANALYZE page")
        assert store.purge(300) == Purged(0, [], 300)
        row = db.execute("SELECT min(expires_at), count(*) FROM page").fetchone()
        assert row == (602, 19_700)
        assert [page.name for page in store.pages("book 1", "000500", 2)] == ["000505", "000511"]
        assert [page.name for page in store.pages("book 1", None, 2, newest=True)] == ["019999", "019993"]
        values = {"book": "book 1", "bound": "000500", "now": 1, "limit": 5, "name": "000505"}
        for name in ("pages", "newest_pages", "page"):
            cursor = psycopg.ClientCursor(db)
            cursor.execute(f"EXPLAIN (FORMAT JSON) {store._sql(name)}", values)
            plan = json.dumps(cursor.fetchone())
            assert "page_pkey" in plan, plan
            assert "Sort" not in plan, plan


def test_a_schema_of_the_version_before_gets_room_for_pages_while_it_is_used(
    postgres_url: str, postgres_server: str
) -> None:
    name = postgres_url.rpartition("schema=")[2]
    with psycopg.connect(postgres_server, autocommit=True) as old:
        old.execute(schema.printed(name, None).partition("-- 0005_pages.sql")[0] + "COMMIT;")
        with psycopg.connect(postgres_server) as worker, closing(Pool(address.parse(postgres_url))) as pool:
            worker.execute(f"SELECT {name}.enqueue('noop')")  # a transaction that stays open meanwhile
            assert schema.migrate(pool) == [*schema.MIGRATIONS[4:]]
    with closing(PostgresStore(postgres_url)) as store:
        assert store.write_page(Page("book", "page", "{}"), None)
        assert sum(store.counts().values()) == 1


@pytest.mark.parametrize("late", [1, upkeep.BATCH, 2 * upkeep.BATCH + 1])
def test_upkeep_goes_on_while_there_are_pages_to_purge(late: int) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(late):
        store.write_page(Page("book", str(number), "{}", expires_at=clock.now()), None)
    rounds = upkeep.Upkeep(store, settings(), "me", lambda _: [])
    rounds.round()
    assert store._pages == {}
