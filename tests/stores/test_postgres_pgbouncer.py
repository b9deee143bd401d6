"""Behind PgBouncer in transaction mode no session lasts: nothing is prepared, nothing listened for, nothing set."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, JobFunction, KeyConflict, Permanent, Retry
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from holdfast.domain.move import Answer
from holdfast.port.store import Claim, Page, Query
from holdfast.stores.postgres import PostgresStore
from tests.servers import Server, free_port, own, until, working

_BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
_NAMES = count(1)
pytestmark = pytest.mark.skipif(_BINARY is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
server_round_robin = 1
server_idle_timeout = 1
"""
"""Few servers, taken in turn: no two transactions of a client are likely to meet the same session."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own() as server:
        yield server


@pytest.fixture(scope="module")
def port(server: Server) -> Iterator[int]:
    """Run PgBouncer, as another user where we are root: it insists."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="holdfast-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "pgbouncer.ini"
        file.write_text(SETTINGS.format(server=server.port, user=server.user, port=port))
        user = "nobody" if os.geteuid() == 0 else None
        assert _BINARY is not None
        running = subprocess.Popen([_BINARY, "-q", str(file)], user=user, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _answers(f"postgresql://{server.user}@127.0.0.1:{port}/postgres"), "PgBouncer")
            yield port
        finally:
            running.terminate()
            running.wait(20)


def _answers(address: str) -> bool:
    with suppress(psycopg.Error), psycopg.connect(address, connect_timeout=2):
        return True
    return False


@pytest.fixture
def direct(server: Server, port: int) -> Iterator[str]:
    """The database's address past PgBouncer."""
    with server.database(f"pooled_{next(_NAMES)}") as url:
        yield url


@pytest.fixture
def url(server: Server, port: int, direct: str) -> str:
    return direct.replace(f":{server.port}", f":{port}")


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(url, lease=3, heartbeat=0.3, upkeep=0.2, grace=5)) as app:
        yield app


@pytest.fixture
def add(app: Holdfast) -> "JobFunction[[int, int], int]":
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    return add


def test_the_pooler_is_noticed_and_nothing_is_prepared_or_listened_for(
    app: Holdfast, add: "JobFunction[[int, int], int]", direct: str
) -> None:
    assert isinstance(app.store, PostgresStore)
    assert app.store.pool.pooled
    jobs = [add.enqueue(n, n) for n in range(20)]
    with working(app):
        assert [job.result(20) for job in jobs] == [2 * n for n in range(20)]
        with psycopg.connect(direct) as db:
            asked = db.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
    assert not [query for (query,) in asked if query.startswith("LISTEN")]
    for _ in range(10):
        prepared = app.store.pool.run(lambda db: db.execute("SELECT count(*) FROM pg_prepared_statements").fetchone())
        assert prepared == (0,)


def test_timeouts_hold_in_every_transaction_and_for_no_longer(app: Holdfast, url: str) -> None:
    assert isinstance(app.store, PostgresStore)
    shown = app.store.pool.run(lambda db: db.execute("SELECT current_setting('statement_timeout')").fetchone())
    assert shown == ("30s",)
    with psycopg.connect(url, autocommit=True) as stranger:
        for _ in range(20):
            assert stranger.execute("SELECT current_setting('statement_timeout')").fetchone() == ("0",)


def test_a_worker_drains_until_idle(app: Holdfast, add: "JobFunction[[int, int], int]") -> None:
    jobs = app.enqueue_many([add.prepare(n, 1) for n in range(2_000)])
    app.run_worker(until_idle=True)
    assert app.counts()["succeeded"] == 2_000
    assert jobs[7].result(1) == 8
    assert list(app.store.check()) == []


def test_a_worker_goes_by_rules(app: Holdfast, add: "JobFunction[[int, int], int]") -> None:
    """Nothing is kept in a session: the lock of a turn ends with the claim, and what is in use lies in tables."""
    app.limits.set("default", concurrency=3, per="tenant")
    app.enqueue_many([add.using(tenant=f"t{n % 5}").prepare(n, 1) for n in range(200)])
    app.run_worker(until_idle=True)
    assert app.counts()["succeeded"] == 200
    assert list(app.store.check()) == []


def test_pages_are_written_over_what_was_seen_listed_and_purged(app: Holdfast) -> None:
    store = app.store
    for round_ in range(10):
        assert store.write_page(Page("book", "page", str(round_)), round_ or None)
        assert not store.write_page(Page("book", "page", "late"), round_ or None)
        assert store.write_page(Page("over", str(round_), "{}", expires_at=1), None)
    assert store.page("book", "page") == Page("book", "page", "9", 10)
    assert store.pages("over") == []
    assert store.purge(100).pages == 10
    secret, record = app.tokens.create("ci", ["read"])
    assert app.tokens.check(secret)
    app.tokens.revoke(record.id)
    assert app.tokens.check(secret) is None


def test_jobs_fail_are_retried_cancelled_and_redriven(app: Holdfast, add: "JobFunction[[int, int], int]") -> None:
    @app.job(retry=Retry.fixed(0, retries=2))
    def flaky(ctx: Any) -> int:
        if ctx.attempt < 3:
            raise OSError
        return int(ctx.attempt)

    @app.job
    def reject() -> None:
        raise Permanent("no", code="no")

    flaked, rejected, cancelled = flaky.enqueue(), reject.enqueue(), add.using(run_after=60).enqueue(1, 2)
    assert cancelled.cancel().state == "cancelled"
    app.run_worker(until_idle=True)
    assert (flaked.result(1), len(app.attempts(flaked.id))) == (3, 3)
    assert (rejected.refresh().state, rejected.redrive().state) == ("dead", "queued")
    assert [job.state for job in app.find(state="cancelled")] == ["cancelled"]
    assert app.redrive(kind="reject") == 0
    keyed = add.using(key="k").enqueue(1, 2)
    assert add.using(key="k").enqueue(1, 2).id == keyed.id
    with pytest.raises(KeyConflict):
        add.using(key="k").enqueue(3, 4)
    assert list(app.store.check()) == []


def test_a_running_job_is_cancelled_at_its_next_heartbeat(app: Holdfast) -> None:
    begun = threading.Event()

    @app.job
    def hold() -> None:
        begun.set()
        while True:
            time.sleep(0.01)

    job = hold.enqueue()
    with working(app):
        assert begun.wait(20)
        job.cancel()
        until(lambda: job.refresh().state == "cancelled", "the cancellation")


def test_an_idle_worker_is_not_called_and_looks_by_itself(app: Holdfast, add: "JobFunction[[int, int], int]") -> None:
    with working(app):
        add.enqueue(1, 1).result(20)
        threading.Event().wait(2.0)
        began = time.monotonic()
        assert add.enqueue(1, 2).result(20) == 3
        assert time.monotonic() - began < 4
        assert add.using(run_after=0.2).enqueue(1, 3).result(20) == 4


def test_one_bad_row_never_blocks_its_batch_here_either(
    app: Holdfast, add: "JobFunction[[int, int], int]", direct: str
) -> None:
    """Every call is one transaction here, which an error would end; so halves are tried inside savepoints."""
    app.enqueue_many([add.prepare(n, 1) for n in range(60)])
    jobs = app.store.claim(Claim("somebody", "lease", 60_000_000, 50))
    with psycopg.connect(direct) as db:
        db.execute(f"ALTER TABLE holdfast.outcome ADD CHECK (job_id <> '{jobs[17].id}')")
    moves = [lifecycle.complete(job, None, Retention()) for job in jobs]
    answers, _ = app.store.exchange(moves, Claim("somebody", "other", 60_000_000, 5))
    assert Counter(answers) == {Answer.OK: 49, Answer.UNWRITABLE: 1}
    assert app.store.commit(moves)[17] is Answer.UNWRITABLE
    assert list(app.store.check()) == []


def test_sixteen_threads_enqueue_at_once(app: Holdfast, url: str) -> None:
    apps = [Holdfast(url) for _ in range(16)]

    def enqueue(own: Holdfast) -> list[str]:
        @own.job
        def add(a: int, b: int) -> int:
            return a + b

        with closing(own):
            return [str(add.enqueue(n, n).id) for n in range(50)]

    with ThreadPoolExecutor(16) as crew:
        ids = [id_ for part in crew.map(enqueue, apps) for id_ in part]
    assert len(set(ids)) == 800
    assert {job.id for job in app.store.find(Query(limit=1000))} == set(ids)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    with working(app, app):
        until(lambda: app.counts().unfinished == 0, "the end")
    assert app.counts()["succeeded"] == 800
    assert list(app.store.check()) == []


def test_the_command_line_works_through_it(app: Holdfast, add: "JobFunction[[int, int], int]", url: str) -> None:
    add.enqueue(1, 2)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "check", "--url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_handlers_own_transaction_works_through_it(app: Holdfast, direct: str) -> None:
    """S24: the same statement many times over, so that a prepared one would be missed in another session."""
    with psycopg.connect(direct, autocommit=True) as db:
        db.execute("CREATE TABLE effect (n integer)")

        @app.job
        def note(n: int, ctx: Context) -> int:
            with ctx.transaction() as own:
                own.execute("INSERT INTO effect VALUES (%(n)s)", {"n": n})
            return n

        jobs = app.enqueue_many([note.prepare(n) for n in range(100)])
        app.run_worker(until_idle=True)
        assert [job.refresh().attempt for job in jobs] == [1] * 100
        assert db.execute("SELECT count(DISTINCT n), count(*) FROM effect").fetchone() == (100, 100)
