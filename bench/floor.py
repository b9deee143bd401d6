"""The floor: what bare apsw does on this machine with the same durability and nothing around it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw

DDL = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, kind TEXT NOT NULL, args TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, run_at REAL NOT NULL DEFAULT 0, claimed_at REAL, done_at REAL);
CREATE INDEX jobs_ready ON jobs (id) WHERE state = 0;
"""
ROW = ("noop", '{"a":1,"b":1}')
INSERT = "INSERT INTO jobs (kind, args) VALUES (?, ?)"


def connect(path: Path) -> apsw.Connection:
    """Open a file with the durable settings that Holdfast uses."""
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def fresh(folder: Path) -> apsw.Connection:
    """Make an empty floor."""
    db = connect(folder / f"floor-{time.monotonic_ns()}.db")
    db.execute(DDL)
    return db


def bulk(folder: Path, jobs: int, batch: int = 100) -> float:
    """Insert in batches; jobs per second."""
    db = fresh(folder)
    started = time.perf_counter()
    for _ in range(jobs // batch):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(INSERT, [ROW] * batch)
        db.execute("COMMIT")
    return jobs / (time.perf_counter() - started)


def drain(folder: Path, jobs: int, batch: int = 100) -> float:
    """Claim and complete in batches, one transaction each; jobs per second."""
    db = fresh(folder)
    db.execute("BEGIN")
    db.executemany(INSERT, [ROW] * jobs)
    db.execute("COMMIT")
    started = time.perf_counter()
    ids: list[int] = []
    done = 0
    while True:
        db.execute("BEGIN IMMEDIATE")
        if ids:
            listed = ",".join(map(str, ids))
            db.execute(f"UPDATE jobs SET state = 2, done_at = ? WHERE state = 1 AND id IN ({listed})", (time.time(),))
        rows = db.execute(
            "UPDATE jobs SET state = 1, attempt = attempt + 1, claimed_at = ? WHERE id IN "
            "(SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, kind, args",
            (time.time(), batch),
        ).fetchall()
        db.execute("COMMIT")
        if not rows:
            break
        ids = [int(row[0]) for row in rows]
        done += len(ids)
    assert done == jobs
    return jobs / (time.perf_counter() - started)


def single(db: apsw.Connection, statement: str, row: object, jobs: int) -> float:
    """Insert and commit one at a time; jobs per second."""
    started = time.perf_counter()
    for _ in range(jobs):
        db.execute("BEGIN IMMEDIATE")
        db.execute(statement, row() if callable(row) else row)
        db.execute("COMMIT")
    return jobs / (time.perf_counter() - started)


class _Waiting:
    """A row whose thread waits until it is committed, or until it may commit for all who wait."""

    def __init__(self, row: object) -> None:
        self.row = row
        self.committed = False
        self.awake = threading.Lock()
        self.awake.acquire()


def shared(db: apsw.Connection, statement: str, row: Callable[[], object], callers: int, each: int) -> float:
    """Insert from threads of which one commits for all who wait, with the least around it; jobs per second."""
    waiting: list[_Waiting] = []
    gate = threading.Lock()
    busy = False

    def insert() -> None:
        nonlocal busy
        mine = _Waiting(row())
        with gate:
            waiting.append(mine)
            first, busy = not busy, True
        if not first:
            mine.awake.acquire()
        if mine.committed:
            return
        with gate:
            batch = waiting.copy()
            waiting.clear()
        db.execute("BEGIN IMMEDIATE")
        db.executemany(statement, [one.row for one in batch])
        db.execute("COMMIT")
        for one in batch:
            one.committed = True
            one.awake.release()
        with gate:
            busy = more = bool(waiting)
        if more:
            waiting[0].awake.release()

    started = time.perf_counter()
    in_threads(callers, lambda: [insert() for _ in range(each)])
    return callers * each / (time.perf_counter() - started)


def in_threads(number: int, work: Callable[[], object]) -> None:
    """Do the same in so many threads at once."""
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
