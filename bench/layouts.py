"""Three ways to lay jobs out in PostgreSQL, side by side: `python -m bench.layouts [--jobs N] [--rounds N] [--pin]`.

classic  one wide row per job and a partial index: claim by UPDATE, finish by UPDATE
split    an immutable job and a narrow row that says where it stands: ready, running, outcome; claims from the front
ours     Holdfast's own tables and statements: `PostgresStore.exchange` in a bare loop, no worker around it

All three finish one batch and claim the next in one trip and one transaction, by one thread, with the same settings,
payloads and kind of ids. Each has a database of its own on one server. In each round each layout is given more jobs and
drains them, so that a slow minute of the machine hits all three; what was finished before stays where it is. `--pin`
keeps a transaction open in each database over all rounds, so that vacuum can remove nothing of what they leave behind.
"""

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

from bench.peers.database import fresh, settle
from bench.peers.server import server
from holdfast.domain import lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer
from holdfast.port.store import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.address import PLANS

BATCH = 500
PAYLOAD = json.dumps({"user_id": 1, "day": "2026-11-16", "note": "x" * 60})
CLASSIC = """
CREATE TABLE job (
  id uuid PRIMARY KEY, queue text NOT NULL, kind text NOT NULL, tenant text, priority integer NOT NULL DEFAULT 0,
  available_at timestamptz NOT NULL DEFAULT now(), state text NOT NULL DEFAULT 'queued',
  attempt integer NOT NULL DEFAULT 0, max_attempts integer NOT NULL DEFAULT 5, version integer NOT NULL DEFAULT 0,
  token uuid, owner text,
  lease_until timestamptz, payload text NOT NULL, result text, created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz, purge_at timestamptz
) WITH (fillfactor = 80);
CREATE INDEX ON job (queue, priority DESC, available_at, id) WHERE state IN ('queued', 'retrying');
CREATE INDEX ON job (lease_until) WHERE state = 'running';
"""
CLASSIC_CLAIM = """
UPDATE job SET state = 'running', attempt = attempt + 1, version = version + 1, token = %(token)s, owner = 'w',
  lease_until = now() + interval '30 s'
WHERE id = ANY (ARRAY(
    SELECT id FROM job WHERE state IN ('queued', 'retrying') AND queue = 'q' AND available_at <= now()
    ORDER BY priority DESC, available_at, id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
  )) AND state IN ('queued', 'retrying')
RETURNING id, kind, attempt, payload
"""
CLASSIC_FINISH = """
UPDATE job SET state = 'succeeded', version = version + 1, token = NULL, owner = NULL, lease_until = NULL,
  finished_at = now(), purge_at = now() + interval '7 d'
WHERE id = ANY (%(ids)s) AND token = %(token)s AND state = 'running'
"""
SPLIT = """
CREATE TABLE job (
  id uuid PRIMARY KEY, queue text NOT NULL, kind text NOT NULL, tenant text, priority integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL DEFAULT 5, payload text NOT NULL, created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ready (
  queue text, priority integer, seq bigint GENERATED ALWAYS AS IDENTITY, job_id uuid, attempt integer,
  PRIMARY KEY (queue, priority, seq)
);
CREATE TABLE running (
  job_id uuid PRIMARY KEY, token uuid, owner text, attempt integer, claimed_at timestamptz, lease_until timestamptz
);
CREATE TABLE outcome (
  job_id uuid PRIMARY KEY, state text, attempt integer, started_at timestamptz, finished_at timestamptz, result text,
  purge_at timestamptz
);
"""
SPLIT_CLAIM = """
WITH picked AS MATERIALIZED (
  SELECT ctid AS place, job_id FROM ready WHERE queue = 'q'
  ORDER BY priority, seq LIMIT %(batch)s FOR UPDATE SKIP LOCKED
),
taken AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT place FROM picked)) RETURNING job_id, attempt),
held AS (
  INSERT INTO running SELECT job_id, %(token)s, 'w', attempt + 1, now(), now() + interval '30 s' FROM taken
  RETURNING job_id, attempt
)
SELECT job.id, job.kind, held.attempt, job.payload FROM job JOIN held ON held.job_id = job.id
WHERE job.id = ANY (ARRAY(SELECT job_id FROM picked))
"""
SPLIT_FINISH = """
WITH done AS (
  DELETE FROM running WHERE job_id = ANY (%(ids)s) AND token = %(token)s RETURNING job_id, attempt, claimed_at
)
INSERT INTO outcome SELECT job_id, 'succeeded', attempt, claimed_at, now(), NULL, now() + interval '7 d' FROM done
"""


class Layout(Protocol):
    """A way to lay jobs out."""

    def load(self, ids: Sequence[str]) -> None:
        """Store jobs."""

    def drain(self) -> int:
        """Take and finish all there are, a batch at a time; give their number."""
        ...


class Bare:
    """Tables and statements written out above, driven by bare psycopg."""

    def __init__(self, url: str, ddl: str, claim: str, finish: str) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in PLANS.items())
        self._db: psycopg.Connection[Any] = psycopg.connect(
            make_conninfo(url, options=options), autocommit=True, prepare_threshold=0
        )
        self._db.execute(ddl.encode(), prepare=False)
        self._claim, self._finish = claim.encode(), finish.encode()
        self._split = ddl is SPLIT

    def load(self, ids: Sequence[str]) -> None:
        """Store jobs by COPY."""
        with self._db.transaction(), self._db.cursor() as cursor:
            with cursor.copy("COPY job (id, queue, kind, payload) FROM STDIN") as copy:
                for id_ in ids:
                    copy.write_row((id_, "q", "k", PAYLOAD))
            if self._split:
                with cursor.copy("COPY ready (queue, priority, job_id, attempt) FROM STDIN") as copy:
                    for id_ in ids:
                        copy.write_row(("q", 0, id_, 0))

    def drain(self) -> int:
        """Finish the last batch and claim the next, until there is none."""
        done, before = 0, ""
        held: list[UUID] = []
        while True:
            token = secrets.token_hex(16)
            with self._db.pipeline():
                settled = self._db.execute(self._finish, {"ids": held, "token": before}) if held else None
                claimed = self._db.execute(self._claim, {"token": token, "batch": BATCH})
            assert settled is None or settled.rowcount == len(held)
            done += len(held)
            held, before = [row[0] for row in claimed.fetchall()], token
            if not held:
                return done


class Ours:
    """Holdfast's own tables and statements."""

    def __init__(self, url: str) -> None:
        self._store = PostgresStore(url)

    def load(self, ids: Sequence[str]) -> None:
        """Store jobs as `enqueue_many` does."""
        self._store.insert([[(id_, NewJob("k", PAYLOAD, queue="q")) for id_ in ids]])

    def drain(self) -> int:
        """Hand in the last batch and claim the next, until there is none."""
        done, retention = 0, Retention()
        held: list[JobRecord] = []
        while True:
            moves = [lifecycle.complete(job, None, retention) for job in held]
            answers, held = self._store.exchange(
                moves, Claim("w", secrets.token_hex(8), 30 * SECOND, BATCH, {"q": BATCH})
            )
            assert set(answers) <= {Answer.OK}
            done += len(answers)
            if not held:
                return done


class Round(NamedTuple):
    """One drain."""

    rate: float
    wal: float
    """Bytes of write-ahead log per job, from the first claim to the last finish."""


def measure(layout: Layout, url: str, ids: Sequence[str], *, pin: bool) -> Round:
    """Load and drain."""
    layout.load(ids)
    if not pin:
        settle(url)
    with psycopg.connect(url, autocommit=True) as db:
        before = db.execute("SELECT pg_current_wal_lsn()").fetchone()
        started = time.perf_counter()
        done = layout.drain()
        seconds = time.perf_counter() - started
        wal = db.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", before).fetchone()
    assert done == len(ids)
    assert wal is not None
    return Round(done / seconds, float(wal[0]) / done)


def main(arguments: list[str]) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.layouts", description="Which layout drains fastest?")
    parser.add_argument("--jobs", type=int, default=50_000, help="how many jobs each round adds (50,000)")
    parser.add_argument("--rounds", type=int, default=4, help="how many rounds (4)")
    parser.add_argument("--pin", action="store_true", help="keep a transaction open that pins xmin")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then, too
    ids = Ids(lambda: time.time_ns() // 1_000_000, secrets.randbits)
    found: dict[str, list[Round]] = {"classic": [], "split": [], "ours": []}
    with server() as conninfo, ExitStack() as stack:
        urls = {name: stack.enter_context(fresh(conninfo, f"holdfast_bench_{name}")) for name in found}
        layouts: dict[str, Layout] = {
            "classic": Bare(urls["classic"], CLASSIC, CLASSIC_CLAIM, CLASSIC_FINISH),
            "split": Bare(urls["split"], SPLIT, SPLIT_CLAIM, SPLIT_FINISH),
            "ours": Ours(urls["ours"]),
        }
        for url in urls.values() if options.pin else ():
            pin = stack.enter_context(psycopg.connect(url))
            pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            pin.execute("SELECT pg_current_xact_id()")
        for _ in range(options.rounds):
            for name, layout in layouts.items():
                found[name].append(measure(layout, urls[name], ids.take(options.jobs), pin=options.pin))
    Console(width=None if sys.stdout.isatty() else 140).print(table(found, jobs=options.jobs, pin=options.pin))


def table(found: dict[str, list[Round]], *, jobs: int, pin: bool) -> Table:
    """Show each round, and each layout's last round and median against classic's."""
    rows = Table(title=f"Jobs per second; each round adds {jobs:,} jobs{', xmin pinned' if pin else ''}")
    rows.add_column("layout")
    for number in range(len(found["classic"])):
        rows.add_column(f"round {number + 1}", justify="right")
    for heading in ("last / first", "median / classic's", "last / classic's", "WAL per job"):
        rows.add_column(heading, justify="right")
    middle = median(one.rate for one in found["classic"])
    for name, rounds in found.items():
        rows.add_row(
            name,
            *(f"{one.rate:,.0f}" for one in rounds),
            f"{rounds[-1].rate / rounds[0].rate:.2f}",
            f"{median(one.rate for one in rounds) / middle:.2f}",
            f"{rounds[-1].rate / found['classic'][-1].rate:.2f}",
            f"{median(one.wal for one in rounds):,.0f} B",
        )
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
