"""The floor on PostgreSQL: what bare psycopg does with a minimal table, the same durability, and nothing around it.

Each function takes a server's address and gives jobs per second, on a fresh database, so that a caller can let the
floor and another program take turns. `python -m bench.peers.floor BATCH [folded]` is one draining process.
"""

import os
import sys
import time
from typing import NamedTuple

import psycopg

from bench.peers.database import fresh, settle
from bench.peers.processes import crew

DDL = """
CREATE TABLE jobs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  state smallint NOT NULL DEFAULT 0,
  kind text NOT NULL,
  args jsonb NOT NULL,
  attempt smallint NOT NULL DEFAULT 0,
  run_at timestamptz NOT NULL DEFAULT now(),
  claimed_at timestamptz,
  done_at timestamptz
);
CREATE INDEX jobs_ready ON jobs (id) WHERE state = 0;
"""
INSERT = "INSERT INTO jobs (kind, args) VALUES (%s, %s) RETURNING id"
COPY = "COPY jobs (kind, args) FROM STDIN"
COMPLETE = "UPDATE jobs SET state = 2, done_at = now() WHERE id = ANY(%(ids)s::bigint[])"
CLAIM = """
UPDATE jobs SET state = 1, attempt = attempt + 1, claimed_at = now()
WHERE id = ANY(ARRAY(SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
RETURNING id, kind, args
"""
FOLDED = f"WITH done AS ({COMPLETE}) {CLAIM}"
ROW = ("noop", '{"a": 1, "b": 1}')
BATCHES = (100, 500, 1_000)
NAME = "holdfast_bench_floor"


class Best(NamedTuple):
    """The fastest way found to drain."""

    rate: float
    batch: int
    folded: bool


def single(conninfo: str, jobs: int = 2_000) -> float:
    """Insert and commit one at a time."""
    with fresh(conninfo, NAME) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(DDL)
        for _ in range(20):
            db.execute(INSERT, ROW, prepare=True).fetchone()
        started = time.perf_counter()
        for _ in range(jobs):
            db.execute(INSERT, ROW, prepare=True).fetchone()
        return jobs / (time.perf_counter() - started)


def bulk(conninfo: str, jobs: int = 50_000) -> float:
    """Insert with one COPY."""
    with fresh(conninfo, NAME) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(DDL)
        return _copy(db, jobs)


def drain(conninfo: str, jobs: int = 50_000, *, procs: int = 1, batch: int = 500, folded: bool = False) -> float:
    """Claim and complete in batches, with history kept; folded: complete one batch and claim the next at once."""
    with fresh(conninfo, NAME) as url:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(DDL)
            _copy(db, jobs)
        settle(url)
        command = [sys.executable, "-m", "bench.peers.floor", str(batch), *(["folded"] if folded else [])]
        with crew(command, {"BENCH_URL": url}, procs) as workers:
            workers.go()
            said = [workers.hear()[1] for _ in range(procs)]
        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*) FROM jobs WHERE state = 2").fetchone() == (jobs,)
    assert sum(one["jobs"] for one in said) == jobs
    ended, started = max(one["ended"] for one in said), min(one["started"] for one in said)
    return float(jobs / (ended - started))


def best(conninfo: str, jobs: int = 50_000, *, procs: int = 1) -> Best:
    """Drain at each batch size, folded and not; give the fastest."""
    ways = [(batch, folded) for batch in BATCHES for folded in (False, True)]
    return max(
        Best(drain(conninfo, jobs, procs=procs, batch=batch, folded=folded), batch, folded) for batch, folded in ways
    )


def _copy(db: psycopg.Connection, jobs: int) -> float:
    started = time.perf_counter()
    with db.cursor().copy(COPY) as copy:
        for _ in range(jobs):
            copy.write_row(ROW)
    return jobs / (time.perf_counter() - started)


def _take(url: str, batch: int, *, folded: bool) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        print('{"ready": true}', flush=True)
        sys.stdin.readline()
        started, jobs = time.time(), 0
        ids: list[int] = []
        while True:
            statement = FOLDED if folded else CLAIM
            rows = db.execute(statement, {"ids": ids, "batch": batch} if folded else {"batch": batch}, prepare=True)
            ids = [row[0] for row in rows.fetchall()]
            jobs += len(ids)
            if not ids:
                break
            if not folded:
                db.execute(COMPLETE, {"ids": ids}, prepare=True)
        print(f'{{"jobs": {jobs}, "started": {started}, "ended": {time.time()}}}', flush=True)


if __name__ == "__main__":
    _take(os.environ["BENCH_URL"], int(sys.argv[1]), folded="folded" in sys.argv)
