"""Workflows: steps a second against bare updates in the same batches, and what sleeping workflows cost others.

`python -m bench.workflows ROLE` is a process under test, on the store that BENCH_URL names.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench import floor
from bench.peers.database import fresh
from holdfast import Context, Holdfast, JobFunction, Step
from holdfast.app import DEFAULT_CONCURRENCY
from holdfast.bench import measures
from holdfast.bench import server as postgresql
from holdfast.bench.lines import Line
from holdfast.bench.place import Place, place
from holdfast.bench.processes import crew, say
from holdfast.bench.roles import span
from holdfast.domain.moments import SECOND

STEPS = 10
UPDATE = "UPDATE runs SET cursor = cursor + 1, result = %s, updated_at = now() WHERE id = %s"
TABLE = """
CREATE TABLE runs (
  id bigint PRIMARY KEY, cursor integer NOT NULL DEFAULT 0, result text, updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO runs (id) SELECT generate_series(1, 1000);
"""


class Sizes(NamedTuple):
    """How much is done."""

    runs: int = 2_000
    sleeping: int = 100_000
    jobs: int = 50_000
    rounds: int = 3


def lines(folder: Path, conninfo: str, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Measure both stores, each against its own floor in turn."""
    sizes = Sizes(300, 10_000, 10_000, 1) if short else Sizes()
    with place(f"sqlite:///{folder}/bench.db") as where:
        yield from _store(where, "SQLite", lambda steps: bare_sqlite(folder, steps), sizes, tell)
    with fresh(conninfo, "holdfast_bench_flow") as url, place(url) as where:
        yield from _store(where, "PostgreSQL", lambda steps: bare_postgresql(url, steps), sizes, tell)


def _store(
    where: Place, name: str, bare: Callable[[int], float], sizes: Sizes, tell: Callable[[str], None]
) -> Iterator[Line]:
    ours, floors, alone, beside = [], [], [], []
    for number in range(1, sizes.rounds + 1):
        tell(f"{name}, round {number} of {sizes.rounds}: {sizes.runs:,} runs of {STEPS} steps")
        floors.append(bare(sizes.runs * STEPS))
        ours.append(steps(where, sizes.runs))
        tell(f"{name}, round {number} of {sizes.rounds}: a drain beside {sizes.sleeping:,} sleeping workflows")
        alone.append(measures.drain(where, sizes.jobs, 1).rate)
        beside.append(drain_beside(where, sizes.jobs, sizes.sleeping))
    what = f"{name}: steps of {STEPS}-step pipelines, against bare updates in batches of {DEFAULT_CONCURRENCY}"
    yield Line(what, statistics.median(ours), statistics.median(floors), "steps/s", 0.4)
    what = f"{name}: drain beside {sizes.sleeping:,} sleeping workflows, against none"
    yield Line(what, statistics.median(beside), statistics.median(alone), "jobs/s", 0.95)


def bare_sqlite(folder: Path, steps: int) -> float:
    """Update one row per step, in transactions of as many as a worker has slots; steps per second."""
    db = floor.connect(folder / f"bare-{time.monotonic_ns()}.db")
    db.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY, cursor INTEGER NOT NULL, result TEXT, updated_at REAL)")
    db.execute("BEGIN")
    db.executemany("INSERT INTO runs VALUES (?, 0, NULL, 0)", [(n,) for n in range(1, 1001)])
    db.execute("COMMIT")
    started = time.perf_counter()
    for batch in _batches(steps):
        db.execute("BEGIN IMMEDIATE")
        for n in batch:
            db.execute("UPDATE runs SET cursor = cursor + 1, result = ?, updated_at = ? WHERE id = ?", ("1", 0.0, n))
        db.execute("COMMIT")
    return steps / (time.perf_counter() - started)


def bare_postgresql(url: str, steps: int) -> float:
    """Do the same on a server: the updates of a transaction travel together."""
    with postgresql.schema(url) as own, psycopg.connect(own, autocommit=True) as db:
        db.execute(TABLE)
        started = time.perf_counter()
        for batch in _batches(steps):
            with db.transaction(), db.pipeline():
                for n in batch:
                    db.execute(UPDATE, ("1", n), prepare=True)
        return steps / (time.perf_counter() - started)


def _batches(steps: int) -> Iterator[list[int]]:
    for start in range(0, steps, DEFAULT_CONCURRENCY):
        yield [(start + n) % 1000 + 1 for n in range(DEFAULT_CONCURRENCY)]


def steps(where: Place, runs: int) -> float:
    """Run pipelines with one worker process of default options; steps per second, as the records say."""
    with where.fresh() as url:
        app, pipeline, _ = application(url)
        try:
            app.enqueue_many([pipeline.prepare(n) for n in range(runs)])
            where.settle(url)
            with crew([sys.executable, "-m", "bench.workflows"], {"BENCH_URL": url}) as workers:
                workers.go()
                workers.answers()
            seen = span(app.store, runs)
            assert seen.jobs == runs
            return runs * STEPS / (seen.last - seen.first) * SECOND
        finally:
            app.close()


def drain_beside(where: Place, jobs: int, sleeping: int) -> float:
    """Drain plain jobs from the queue that the sleepers are in."""
    with where.fresh() as url:
        app, _, nap = application(url)
        try:
            app.enqueue_many([nap.prepare() for _ in range(sleeping)])
            with crew([sys.executable, "-m", "bench.workflows"], {"BENCH_URL": url}) as workers:
                workers.go()
                workers.answers()
            assert app.counts()["retrying"] == sleeping
        finally:
            app.close()
        measures.fill(url, jobs)
        where.settle(url)
        return measures.drain_filled(where, url, jobs, 1).rate


def application(url: str) -> tuple[Holdfast, JobFunction[..., int], JobFunction[[], None]]:
    """Make the application under test, as a user would write it."""
    app = Holdfast(url)

    def step(payload: int, results: dict[str, int]) -> int:
        return payload + len(results)

    pipeline = app.pipeline("ten", [Step(step, name=f"step {n}") for n in range(STEPS)])

    @app.workflow(name="nap")
    async def nap(ctx: Context) -> None:
        await ctx.sleep("long", 86_400)

    return app, pipeline, nap


def main() -> None:
    """Work until there is nothing left to do."""
    app, _, _ = application(os.environ["BENCH_URL"])
    app.store.now()
    say(ready=True)
    sys.stdin.readline()
    app.run_worker(until_idle=True)
    say(done=True)
    app.close()


if __name__ == "__main__":
    main()
