"""The floor on PostgreSQL: what bare psycopg does with a minimal table, the same durability, and nothing around it.

Each function takes a database's address and gives jobs per second, in a schema of its own, so that a caller can let the
floor and another program take turns. `python -m holdfast.bench.floor BATCH [folded]` is one draining process.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from holdfast.bench.processes import crew, say
from holdfast.bench.server import schema, settle

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
DRAINED = """
SELECT count(*), extract(epoch FROM max(done_at) - min(claimed_at))::float FROM jobs WHERE state = 2
"""
ROW = ("noop", '{"a": 1, "b": 1}')
BATCHES = (100, 500, 1_000)
WARM_UP = 20


class Best(NamedTuple):
    """The fastest way found to drain."""

    rate: float
    batch: int
    folded: bool


class Table(NamedTuple):
    """The minimal table."""

    url: str

    def fill(self, jobs: int) -> None:
        """Write jobs in place of those that are there."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("DELETE FROM jobs")
            _copy(db, jobs)
        settle(self.url)

    def rate(self, jobs: int) -> float:
        """Tell how many were done a second, once all are."""
        with psycopg.connect(self.url) as db:
            done, seconds = db.execute(DRAINED).fetchone() or (0, 0.0)
        assert done == jobs
        return float(jobs / max(seconds, 1e-6))


@contextmanager
def table(conninfo: str) -> Iterator[Table]:
    """Make one, for as long as this lasts."""
    with schema(conninfo) as url:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(DDL)
        yield Table(url)


def single(conninfo: str, jobs: int = 2_000) -> float:
    """Insert and commit one at a time."""
    with singles(conninfo) as insert:
        return insert(jobs)


@contextmanager
def singles(conninfo: str) -> Iterator[Callable[[int], float]]:
    """Give a function that inserts so many one at a time, for a caller who takes turns with it."""
    with schema(conninfo) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(DDL)
        for _ in range(WARM_UP):
            db.execute(INSERT, ROW, prepare=True).fetchone()

        def insert(jobs: int) -> float:
            started = time.perf_counter()
            for _ in range(jobs):
                db.execute(INSERT, ROW, prepare=True).fetchone()
            return jobs / (time.perf_counter() - started)

        yield insert


def bulk(conninfo: str, jobs: int = 50_000) -> float:
    """Insert with one COPY."""
    with schema(conninfo) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute(DDL)
        return _copy(db, jobs)


def drain(conninfo: str, jobs: int = 50_000, *, procs: int = 1, batch: int = 500, folded: bool = False) -> float:
    """Claim and complete in batches, with history kept; folded: complete one batch and claim the next at once.

    The clock is the table's own, as it is for ours: from the first claim until the last completion.
    """
    with table(conninfo) as made:
        made.fill(jobs)
        command = [sys.executable, "-m", "holdfast.bench.floor", str(batch), *(["folded"] if folded else [])]
        with crew(command, {"BENCH_URL": made.url}, procs) as workers:
            workers.go()
            said = workers.answers()
        assert sum(one["jobs"] for one in said) == jobs
        return made.rate(jobs)


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
        say(ready=True)
        sys.stdin.readline()
        jobs = 0
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
        say(jobs=jobs)


if __name__ == "__main__":
    _take(os.environ["BENCH_URL"], int(sys.argv[1]), folded="folded" in sys.argv)
