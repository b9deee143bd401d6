"""A PostgreSQL that fails: killed backends, crashes under load, a server that is away, answers that never come."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import CommitUnknown, Context, Holdfast, JobFunction, Retry, StoreUnavailable
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.address import TIMEOUTS
from tests.servers import Server, link, own, until, working

LEASE = 60_000_000
_NAMES = count(1)
_SOME = "01900000-0000-7000-8000-00000000000"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own() as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with server.database(f"faults_{next(_NAMES)}") as url:
        yield url


def open_app(url: str, **settings: Any) -> tuple[Holdfast, "JobFunction[[int], None]"]:
    app = Holdfast(url, **{"lease": 3, "heartbeat": 0.5, "upkeep": 0.2, "grace": 5, **settings})

    @app.job
    def noop(n: int) -> None: ...

    return app, noop


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    app, _ = open_app(url)
    with closing(app):
        yield app


@contextmanager
def killing(url: str, pause: float) -> Iterator[list[int]]:
    """End a backend of the store, whichever, again and again."""
    ended = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast' "
            "ORDER BY random() LIMIT 1"
        )
        with psycopg.connect(url, autocommit=True) as db:
            while not ended.wait(pause):
                for (pid,) in db.execute(query).fetchall():
                    db.execute("SELECT pg_terminate_backend(%s)", (pid,))
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def hashes(url: str) -> dict[str, str]:
    with psycopg.connect(url) as db:
        return dict(db.execute("SELECT job_id::text, md5(outcome::text) FROM holdfast.outcome AS outcome").fetchall())


def test_backends_killed_one_after_another_are_nobodys_trouble(url: str) -> None:
    """S1, S15: nothing lost, nothing settled twice; and a caller whose backend is ended once sees no error."""
    app, _ = open_app(url)
    with closing(app):
        runs: Counter[int] = Counter()

        @app.job
        def count_me(n: int) -> None:
            runs[n] += 1

        jobs: list[str] = []
        with working(app), killing(url, 0.1) as killed:
            end = time.monotonic() + 60
            while len(killed) < 30 and time.monotonic() < end:
                jobs += [str(count_me.enqueue(len(jobs)).id)]
            seen = hashes(url)
            until(lambda: app.counts().unfinished == 0, "the end")
        assert len(killed) >= 30
        final = hashes(url)
        assert set(final) == set(jobs)
        assert {id_: final[id_] for id_ in seen} == seen, "a terminal record changed"
        assert app.counts()["succeeded"] == len(jobs)
        assert set(runs) == set(range(len(jobs)))
        assert list(app.store.check()) == []


def test_l10_a_crash_of_the_server_under_load_is_survived_without_a_hand(server: Server, url: str) -> None:
    app, noop = open_app(url)
    with closing(app):
        ids = [str(job.id) for job in app.enqueue_many([noop.prepare(n) for n in range(20_000)])]
        with working(app, app):
            for share in (15_000, 10_000, 5_000):
                until(partial(_down_to, app, share), "progress")
                seen = hashes(url)
                server.restart()
                until(lambda: _unfinished(app) < 20_000, "an answer")
                final = hashes(url)
                assert {id_: final.get(id_) for id_ in seen} == seen, "a terminal record changed"
            until(lambda: _unfinished(app) == 0, "the end", 60)
        assert set(hashes(url)) == set(ids)
        assert app.counts()["succeeded"] == len(ids)
        assert list(app.store.check()) == []


def _down_to(app: Holdfast, share: int) -> bool:
    return _unfinished(app) <= share


def _unfinished(app: Holdfast) -> int:
    try:
        return app.counts().unfinished
    except StoreUnavailable:
        return 1_000_000


def test_l9_an_enqueue_while_the_server_is_away_says_so_in_one_sentence_and_soon(server: Server, url: str) -> None:
    app, noop = open_app(url)
    with closing(app):
        noop.enqueue(1)
        with server.down():
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                noop.enqueue(2)
            assert time.monotonic() - began < 12
            sentence = str(caught.value)
            assert sentence.endswith(".")
            assert "\n" not in sentence
            assert "127.0.0.1" in sentence
        until(lambda: _enqueued(noop), "an enqueue after the server's return")
        assert app.counts()["queued"] == 2, "what was refused is not there (S3)"


def _enqueued(noop: "JobFunction[[int], None]") -> bool:
    try:
        noop.enqueue(3)
    except StoreUnavailable:
        return False
    return True


def test_a_store_cannot_be_opened_while_the_server_is_away_and_says_so(server: Server, url: str) -> None:
    with server.down():
        began = time.monotonic()
        with pytest.raises(
            StoreUnavailable, match=r"^PostgreSQL at \S+ cannot be reached: the connection was refused\.$"
        ):
            PostgresStore(url)
        assert time.monotonic() - began < 8


APPLICATION = """
import os, time
from pathlib import Path
from holdfast import Holdfast

app = Holdfast(os.environ["FAULTS_URL"], lease=3, heartbeat=0.5, grace=1, upkeep=0.2)

@app.job
def hold(marker: str) -> None:
    Path(marker).touch()
    time.sleep(60)
"""


def test_l6_a_worker_ends_on_sigterm_within_its_grace_though_the_server_is_away(
    server: Server, url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APPLICATION)
    app, _ = open_app(url)
    with closing(app):

        @app.job
        def hold(marker: str) -> None: ...

        hold.enqueue(str(tmp_path / "begun"))
        words = [sys.executable, "-m", "holdfast", "worker", f"{tmp_path}/shop.py:app", "-c", "2"]
        with (tmp_path / "err").open("w") as err:
            worker = subprocess.Popen(words, env={**os.environ, "FAULTS_URL": url}, stderr=err)
        try:
            until((tmp_path / "begun").exists, "the handler")
            with server.down():
                threading.Event().wait(1.5)  # until every part of the worker has met the trouble
                began = time.monotonic()
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(20) == 0
                lasted = time.monotonic() - began
        finally:
            worker.kill()
            worker.wait()
        assert lasted < 1 + 1 + 1, "grace, a second, and a second for a busy machine"
        assert "Traceback" not in (tmp_path / "err").read_text()


def test_every_connection_has_its_timeouts(url: str) -> None:
    with closing(PostgresStore(url)) as store:

        def limits(db: psycopg.Connection[Any]) -> dict[str, str]:
            assert db.info.get_parameters()["connect_timeout"] == "5"
            assert db.info.get_parameters()["tcp_user_timeout"] == "20000"
            shown = {name: db.execute(f"SHOW {name}").fetchone() for name in TIMEOUTS}
            return {name: value[0].replace("1min", "60s") for name, value in shown.items() if value}

        assert store.pool.run(limits) == TIMEOUTS
        with closing(store.pool.connect()) as one:
            assert limits(one) == TIMEOUTS, "a connection of one's own"
        ears = store._bell._listen()
        assert ears is not None
        assert limits(ears) == TIMEOUTS, "the connection that listens"


def test_options_in_the_url_are_kept_beside_our_own(url: str) -> None:
    with closing(PostgresStore(f"{url}?options=-c%20work_mem%3D7MB")) as store:
        shown = store.pool.run(lambda db: db.execute("SELECT current_setting('work_mem')").fetchone())
        assert shown == ("7MB",)
        assert store.pool.run(lambda db: db.execute("SHOW lock_timeout").fetchone()) == ("10s",)


def fresh(store: PostgresStore, number: int) -> list[str]:
    ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(16)) % 2**bits).take(number)
    store.insert([[(id_, NewJob("noop", "{}")) for id_ in ids]])
    return ids


def wish(lease_id: str, limit: int = 10) -> Claim:
    return Claim("somebody", lease_id, LEASE, limit)


def done(jobs: list[JobRecord]) -> list[Move]:
    return [lifecycle.complete(job, None, Retention()) for job in jobs]


def test_s34_a_claim_whose_answer_is_lost_leaves_no_job_to_its_lease(server: Server, url: str) -> None:
    with link(server.port) as line, closing(PostgresStore(url.replace(f":{server.port}", f":{line.port}"))) as store:
        fresh(store, 30)
        first = store.claim(wish("first-lease"))
        line.lose_answer_to(b"second-lease")
        answers, second = store.exchange(done(first), wish("second-lease"))
        assert line.lost == 1
        assert answers == [Answer.OK] * 10
        assert len(second) == 10
        line.lose_answer_to(b"third-lease")
        third = store.claim(wish("third-lease"))
        assert line.lost == 2
        assert len(third) == 10
        assert not {job.id for job in second} & {job.id for job in third}
        with psycopg.connect(url) as db:
            running = {id_ for (id_,) in db.execute("SELECT job_id::text FROM holdfast.running").fetchall()}
        assert running == {job.id for job in second} | {job.id for job in third}, "a job is held that nobody knows of"
        assert store.commit(done(second + third)) == [Answer.OK] * 20
        assert list(store.check()) == []


def test_s3_an_enqueue_whose_answer_is_lost_is_stored_once(server: Server, url: str) -> None:
    with link(server.port) as line, closing(PostgresStore(url.replace(f":{server.port}", f":{line.port}"))) as store:
        fresh(store, 1)
        for id_, key in ((f"{_SOME}1", None), (f"{_SOME}2", "a key")):
            line.lose_answer_to(id_.encode())
            ((stored,),) = store.insert([[(id_, NewJob("noop", "{}", key=key))]])  # type: ignore[misc]
            assert (stored.id, stored.job.id, stored.duplicate) == (id_, id_, False)
        assert line.lost == 2
        assert sum(store.counts().values()) == 3
        assert list(store.check()) == []


def test_s3_an_enqueue_that_may_have_been_stored_is_not_called_refused(server: Server, url: str) -> None:
    """The answer is lost, and the server with it: whether the job is there is not known, and the error says so."""
    with link(server.port) as line, closing(PostgresStore(url.replace(f":{server.port}", f":{line.port}"))) as store:
        fresh(store, 1)
        line.lose_answer_to(f"{_SOME}3".encode(), for_good=True)
        with pytest.raises(CommitUnknown):
            store.insert([[(f"{_SOME}3", NewJob("noop", "{}"))]])
    with closing(PostgresStore(url)) as store:
        assert store.read([f"{_SOME}3"]) != [None]


def test_s9_a_settlement_whose_answer_is_lost_is_written_once(server: Server, url: str) -> None:
    with link(server.port) as line, closing(PostgresStore(url.replace(f":{server.port}", f":{line.port}"))) as store:
        fresh(store, 2)
        jobs = store.claim(wish("only-lease"))
        line.lose_answer_to(b"code-of-failure")
        failure = Failure("code-of-failure", "no", retryable=True)
        move = lifecycle.fail(jobs[0], failure, draw=0, retention=Retention())
        assert store.commit([move]) == [Answer.OK]
        line.lose_answer_to(b"result-of-job")
        assert store.commit([lifecycle.complete(jobs[1], '"result-of-job"', Retention())]) == [Answer.OK]
        assert line.lost == 2
        assert len(store.attempts(jobs[0].id)) == 1
        assert list(store.check()) == []


def test_s13_a_worker_whose_line_is_silent_stops_its_handlers_before_their_lease_ends(server: Server, url: str) -> None:
    """Nothing is refused and nothing hangs up: the worker must not wait for an answer for longer than it may work."""
    with link(server.port) as line:
        app, _ = open_app(url.replace(f":{server.port}", f":{line.port}"), grace=1)
        begun, stopped = threading.Event(), threading.Event()

        @app.job
        def hold() -> None:
            begun.set()
            try:
                while True:
                    time.sleep(0.01)
            finally:
                stopped.set()

        with closing(app):
            hold.enqueue()
            with working(app):
                assert begun.wait(20)
                with line.stalled():
                    assert stopped.wait(3 + 0.5), "the lease is over and the handler still runs"


FORKING = """
import os, sys
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.job
def noop(n: int) -> None: ...

noop.enqueue(1)
child = os.fork()
for n in range(20):
    noop.enqueue(n)
if child == 0:
    app.run_worker(until_idle=True)
    app.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
noop.enqueue(9)
app.run_worker(until_idle=True)
counts = app.counts()
app.close()
sys.exit(status or (counts["succeeded"] != 42))
"""


@pytest.mark.parametrize("awaited", [False, True])
def test_a_handler_whose_transaction_breaks_as_it_begins_is_tried_again(
    server: Server, url: str, awaited: bool
) -> None:
    """An attempt that nobody settles would be renewed for as long as its worker lives."""
    with link(server.port) as line:
        app, _ = open_app(url.replace(f":{server.port}/", f":{line.port}/"))

        def first(ctx: Context) -> None:
            if ctx.attempt == 1:
                line.lose_answer_to(b"BEGIN")

        @app.job(retry=Retry.fixed(0.01, retries=1))
        def note(ctx: Context) -> None:
            first(ctx)
            with ctx.transaction() as db:
                db.execute("SELECT 1")

        @app.job(retry=Retry.fixed(0.01, retries=1))
        async def anote(ctx: Context) -> None:
            first(ctx)
            async with ctx.transaction() as db:
                await db.execute("SELECT 1")

        with closing(app):
            job = (anote if awaited else note).enqueue()
            with working(app):
                until(lambda: job.refresh().state == "succeeded", "the second attempt")
            assert (line.lost, job.attempt) == (1, 2)
            assert [attempt.code for attempt in app.attempts(job.id)][:1] == ["store_unreachable"]


def test_a_store_used_across_a_fork_works_in_both_processes(url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
