"""What only a SQLite file can get wrong: the file itself, its neighbours, its disk, and hand-written SQL."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import BadInput, Holdfast, JobFunction, KeyConflict, StoreError, StoreUnavailable, StoreUnusable
from holdfast.client.context import AttemptStopped
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from holdfast.port.shelter import SHELTER
from holdfast.port.store import Claim
from holdfast.stores import open_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.connection import SCHEMA_VERSION, filesystem_of, refuse_network

MINUTE = 60_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(file: Path) -> Iterator[Holdfast]:
    app = Holdfast(f"sqlite:///{file}")
    yield app
    app.close()


@pytest.fixture
def add(app: Holdfast) -> JobFunction[[int, int], int]:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    return add


def test_the_file_is_durable_and_private(app: Holdfast, add: JobFunction[[int, int], int], file: Path) -> None:
    add.enqueue(1, 2)
    store = app.store
    assert isinstance(store, SqliteStore)
    assert store.file.writer.pragma("journal_mode") == "wal"
    assert store.file.writer.pragma("synchronous") == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_handler_that_is_stopped_while_it_waits_to_write_leaves_the_file_to_others(
    app: Holdfast, add: JobFunction[[int, int], int]
) -> None:
    assert isinstance(app.store, SqliteStore)
    stopped = threading.Event()

    def handler() -> None:
        SHELTER.expose()
        try:
            add.enqueue(1, 2)
        except AttemptStopped:
            stopped.set()

    thread = threading.Thread(target=handler)
    with app.store.file.write():
        thread.start()
        while not (waits_in := sys._current_frames().get(thread.ident or 0)) or waits_in.f_code.co_name != "__enter__":
            time.sleep(0.001)
        SHELTER.stop(thread.ident or 0, AttemptStopped)
    thread.join()
    assert stopped.is_set()
    later = threading.Thread(target=add.enqueue, args=(3, 4), daemon=True)
    later.start()
    later.join(5)
    assert not later.is_alive(), "nobody can write any more"
    assert app.counts().total == 2, "what was under way comes to its end first"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE job SET state = 'queued'",
        "UPDATE job SET result = '9'",
        "UPDATE job SET updated_at = updated_at + 1",
        "UPDATE job SET state = 'queued', generation = generation + 1, version = version + 1",
        "DELETE FROM job",
    ],
)
def test_a_finished_row_cannot_be_changed_even_by_hand(
    app: Holdfast, add: JobFunction[[int, int], int], statement: str
) -> None:
    job = add.enqueue(1, 2)
    assert app.process(app.envelope(job.id)) == "claimed"
    before = job.refresh().record
    assert isinstance(app.store, SqliteStore)
    with pytest.raises(apsw.ConstraintError):
        app.store.file.writer.execute(statement)
    assert job.refresh().record == before


def test_a_dead_row_changes_only_into_a_new_generation(app: Holdfast) -> None:
    @app.job(permanent=(ValueError,))
    def bad() -> None:
        raise ValueError

    job = bad.enqueue()
    app.process(app.envelope(job.id))
    assert isinstance(app.store, SqliteStore)
    for statement in ("UPDATE job SET attempt = 0", "UPDATE job SET state = 'queued'", "DELETE FROM job"):
        with pytest.raises(apsw.ConstraintError):
            app.store.file.writer.execute(statement)
    assert app.redrive(job.id).generation == 2


def test_what_a_job_was_asked_to_do_cannot_be_changed(app: Holdfast, add: JobFunction[[int, int], int]) -> None:
    add.enqueue(1, 2)
    assert isinstance(app.store, SqliteStore)
    for statement in ("UPDATE job SET payload = '{}'", "UPDATE job SET kind = 'other'", "DELETE FROM job"):
        with pytest.raises(apsw.ConstraintError):
            app.store.file.writer.execute(statement)


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(file: Path) -> None:
    file.write_bytes(b"this is a letter, not a database\n" * 100)
    before = file.read_bytes()
    with pytest.raises(StoreUnusable, match="not a Holdfast database"):
        open_store(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(file: Path) -> None:
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE users (name TEXT)")
    other.commit()
    other.close()
    with pytest.raises(StoreUnusable, match="not a Holdfast one"):
        open_store(f"sqlite:///{file}")
    other = sqlite3.connect(file)
    assert [row[0] for row in other.execute("SELECT name FROM sqlite_master")] == ["users"]
    other.close()


def test_a_database_from_a_newer_version_is_refused(app: Holdfast, file: Path) -> None:
    app.counts()
    app.close()
    newer = sqlite3.connect(file)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    with pytest.raises(StoreUnusable, match="newer Holdfast"):
        open_store(f"sqlite:///{file}")


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///jobs.db?mode=ro", "sqlite:jobs.db"]
)
def test_a_url_that_names_no_file_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput):
        open_store(url)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="does not exist"):
        open_store(f"sqlite:///{tmp_path}/nowhere/jobs.db")
    with pytest.raises(StoreUnusable, match="is a folder"):
        open_store(f"sqlite:///{tmp_path}")


def test_network_filesystems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    assert filesystem_of(tmp_path / "jobs.db", mounts) == "nfs4"
    assert filesystem_of(Path("/etc"), mounts) == "ext4"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
    with pytest.raises(StoreUnusable, match="network filesystem"):
        refuse_network(tmp_path / "jobs.db")


def test_a_full_disk_refuses_writes_keeps_reads_and_recovers(app: Holdfast, add: JobFunction[[int, int], int]) -> None:
    job = add.enqueue(1, 1)
    store = app.store
    assert isinstance(store, SqliteStore)
    pages = store.file.writer.pragma("page_count")
    store.file.writer.pragma("max_page_count", pages)
    with pytest.raises(StoreUnavailable, match="full"):
        app.enqueue_many([add.prepare(n, n) for n in range(5_000)])
    assert app.counts()["queued"] == 1
    assert job.refresh().state == "queued"
    assert list(store.check()) == []
    store.file.writer.pragma("max_page_count", 1_000_000)
    app.enqueue_many([add.prepare(n, n) for n in range(5_000)])
    assert app.counts()["queued"] == 5_001


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_takes_no_jobs_that_would_be_lost_with_it(
    app: Holdfast, add: JobFunction[[int, int], int], tmp_path: Path, *, replaced: bool
) -> None:
    add.enqueue(1, 1)
    assert isinstance(app.store, SqliteStore)
    path = app.store.path
    if replaced:
        app.store.backup(str(tmp_path / "copy.db"))
    path.rename(tmp_path / "away.db")
    if replaced:
        (tmp_path / "copy.db").rename(path)
    for call in (lambda: add.enqueue(2, 2), lambda: app.pause("mail"), app.counts):
        with pytest.raises(StoreUnavailable, match="was removed or replaced while it was open, and nothing"):
            call()
    (tmp_path / "away.db").rename(path)
    assert app.counts()["queued"] == 1
    assert add.enqueue(2, 2).state == "queued"


def test_a_program_that_goes_to_another_folder_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///jobs.db")
    monkeypatch.chdir(tmp_path / "other")
    try:
        assert store.counts() == {}
        store.wait(None, 0)
        assert list(Path.cwd().iterdir()) == []
    finally:
        store.close()


def test_a_file_that_can_only_be_read_says_so(app: Holdfast, add: JobFunction[[int, int], int]) -> None:
    add.enqueue(1, 1)
    assert isinstance(app.store, SqliteStore)
    app.store.file.writer.pragma("query_only", 1)
    with pytest.raises(StoreUnavailable, match="read-only"):
        add.enqueue(2, 2)
    assert app.counts()["queued"] == 1


def test_a_backup_taken_during_work_is_whole(app: Holdfast, add: JobFunction[[int, int], int], tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            app.enqueue_many([add.prepare(1, 1) for _ in range(50)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        app.store.backup(str(tmp_path / "copy.db"))
    finally:
        stop.set()
        writer.join()
    copy = open_store(f"sqlite:///{tmp_path}/copy.db")
    assert list(copy.check()) == []
    assert sum(copy.counts().values()) % 50 == 0
    copy.close()
    with pytest.raises(StoreError, match="there already"):
        app.store.backup(str(tmp_path / "copy.db"))


def test_a_forked_child_opens_the_file_anew(file: Path) -> None:
    script = f"""
import os
from holdfast import Holdfast
app = Holdfast("sqlite:///{file}")
@app.job
def add(a: int, b: int) -> int: ...
add.enqueue(1, 1)
child = os.fork()
if child == 0:
    for n in range(50):
        add.enqueue(n, n)
    os._exit(0)
for n in range(50):
    add.enqueue(n, n)
_, status = os.waitpid(child, 0)
assert status == 0
assert app.counts()["queued"] == 101, app.counts()
assert list(app.store.check()) == []
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_several_processes_share_one_file(file: Path) -> None:
    script = f"""
from holdfast import Holdfast
app = Holdfast("sqlite:///{file}")
@app.job
def add(a: int, b: int) -> int: ...
for n in range(100):
    add.enqueue(n, n)
"""
    writers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    store = open_store(f"sqlite:///{file}")
    assert sum(store.counts().values()) == 400
    assert list(store.check()) == []
    store.close()


def test_several_processes_may_make_the_file_at_the_same_moment(tmp_path: Path) -> None:
    script = """
import sys, time
from holdfast.stores import open_store
while time.time() < float(sys.argv[2]):
    pass
open_store(sys.argv[1]).counts()
"""
    for number in range(4):
        url, moment = f"sqlite:///{tmp_path}/{number}.db", str(time.time() + 0.7)
        makers = [subprocess.Popen([sys.executable, "-c", script, url, moment]) for _ in range(5)]
        assert [maker.wait(60) for maker in makers] == [0] * 5


class TestTheCallersOwnTransaction:
    @pytest.fixture
    def orders(self, app: Holdfast, file: Path) -> Path:
        app.counts()
        db = apsw.Connection(str(file))
        db.execute("CREATE TABLE orders (id INTEGER)")
        db.close()
        return file

    def test_a_job_is_there_if_and_only_if_the_caller_commits_with_apsw(
        self, app: Holdfast, add: JobFunction[[int, int], int], orders: Path
    ) -> None:
        db = apsw.Connection(str(orders))
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders VALUES (1)")
        job = add.using(connection=db).enqueue(1, 2)
        assert app.counts().total == 0
        db.execute("ROLLBACK")
        assert app.counts().total == 0
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders VALUES (1)")
        job = add.using(connection=db).enqueue(1, 2)
        db.execute("COMMIT")
        assert job.refresh().state == "queued"
        assert app.counts()["queued"] == 1
        assert list(app.store.check()) == []
        db.close()

    def test_a_key_conflict_leaves_the_callers_transaction_as_it_was(
        self, app: Holdfast, add: JobFunction[[int, int], int], orders: Path
    ) -> None:
        add.using(key="k").enqueue(1, 2)
        db = apsw.Connection(str(orders))
        with db:
            db.execute("INSERT INTO orders VALUES (7)")
            with pytest.raises(KeyConflict):
                add.using(connection=db, key="k").enqueue(3, 4)
            assert add.using(connection=db, key="k").enqueue(1, 2).duplicate
        assert db.execute("SELECT count(*) FROM orders").get == 1
        db.close()
        assert app.counts().total == 1

    def test_without_a_transaction_the_job_is_stored_at_once(
        self, app: Holdfast, add: JobFunction[[int, int], int], orders: Path
    ) -> None:
        db = apsw.Connection(str(orders))
        assert add.using(connection=db).enqueue(1, 2).refresh().state == "queued"
        db.close()
        assert list(app.store.check()) == []

    def test_a_connection_to_another_file_is_bad_input(
        self, app: Holdfast, add: JobFunction[[int, int], int], tmp_path: Path
    ) -> None:
        app.counts()
        other, foreign = apsw.Connection(str(tmp_path / "other.db")), sqlite3.connect(":memory:")
        with pytest.raises(BadInput, match="same file"):
            add.using(connection=other).enqueue(1, 2)
        with pytest.raises(BadInput, match="two copies of SQLite"):
            add.using(connection=foreign).enqueue(1, 2)
        foreign.close()
        with pytest.raises(BadInput, match="connection"):
            add.using(connection="nonsense").enqueue(1, 2)
        other.close()


def test_a_waiting_store_is_woken_by_another_store_object(file: Path, add: JobFunction[[int, int], int]) -> None:
    waiter = open_store(f"sqlite:///{file}")
    waiter.wait(["default"], 0)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(waiter.wait(["default"], 20)))
    thread.start()
    add.enqueue(1, 2)
    thread.join(20)
    assert woken == [True]
    waiter.close()


def test_a_wake_up_for_another_queue_is_not_heeded(file: Path, add: JobFunction[[int, int], int]) -> None:
    waiter = open_store(f"sqlite:///{file}")
    waiter.wait(["mail"], 0)
    add.enqueue(1, 2)
    assert waiter.wait(["mail"], 0.05) is False
    waiter.close()


def test_wake_ups_work_in_a_folder_with_a_very_long_name(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    waiter, other = open_store(f"sqlite:///{deep}/jobs.db"), open_store(f"sqlite:///{deep}/jobs.db")
    waiter.wait(None, 0)
    other.resume("default")
    assert waiter.wait(["default"], 20) is True
    waiter.close()
    other.close()


def test_sockets_of_dead_processes_are_cleared_away(
    file: Path, add: JobFunction[[int, int], int], app: Holdfast
) -> None:
    app.counts()
    script = f"""
import os
from holdfast.stores import open_store
open_store("sqlite:///{file}").wait(None, 0)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    folder = file.with_name("jobs.db-wake")
    assert len(list(folder.iterdir())) == 1
    add.enqueue(1, 2)
    assert list(folder.iterdir()) == []


def test_a_crowd_falling_due_at_once_cannot_stall_a_claim(app: Holdfast, add: JobFunction[[int, int], int]) -> None:
    late = add.using(run_after=0.01)
    app.enqueue_many([late.prepare(n, n) for n in range(5_000)])
    threading.Event().wait(0.02)
    claimed = []
    while page := app.store.claim(Claim("me", os.urandom(4).hex(), MINUTE, 500)):
        claimed += page
    assert len({job.id for job in claimed}) == 5_000
    answers = app.store.commit([lifecycle.complete(job, None, Retention()) for job in claimed])
    assert set(answers) == {"ok"}
