"""What needs a server of our own or a long time: large tables, a transaction left open, a crowd of workers."""

import os
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import sql

from bench.crowd import BATCH
from bench.peers.database import fresh
from bench.peers.environments import ROOT
from bench.rows import generate
from holdfast.bench import floor
from holdfast.bench.lines import Line, typical
from holdfast.bench.measures import drain, drain_filled, opened, percentiles, role, until_done
from holdfast.bench.place import Place, place
from holdfast.bench.processes import Crew, crew
from holdfast.bench.roles import Application, fill, span
from holdfast.bench.server import usage
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.port.store import Claim, Store
from holdfast.stores import open_store
from holdfast.stores.postgres import address

_PROCESSES = 4
"""A crowd lives in so many processes."""
_CLAIMS, _TAKEN, _FIRST = 800, 10, 20
"""Claims that are timed, jobs that each takes, and claims before them that are not."""
_NAME = "holdfast_bench_scale"


class Sizes(NamedTuple):
    """How much is done."""

    jobs: int = 50_000
    backlog: int = 1_000_000
    few: int = 10_000
    many: int = 10_000_000
    rounds: int = 3
    pinned: float = 180.0
    """Seconds for which a transaction is left open."""
    watched: float = 60.0
    """Seconds for which idle workers are watched."""
    crowd: int = 200_000
    """Jobs for a crowd, which has drained as many before: so that how it begins and ends does not decide."""


SHORT = Sizes(10_000, 100_000, 10_000, 100_000, 1, 20.0, 30.0, 50_000)


class Scale:
    """The measures, on one server."""

    def __init__(self, conninfo: str, sizes: Sizes, tell: Callable[[str], None]) -> None:
        self._conninfo = conninfo
        self._sizes = sizes
        self._tell = tell

    def lines(self) -> Iterator[Line]:
        """Measure everything, one after the other."""
        yield from self.backlog()
        yield self.claims()
        yield self.pinned()
        yield self.analyzed()
        yield from self.crowd()
        yield self.idle()

    def backlog(self) -> Iterator[Line]:
        """Drain with a large history, and in front of a large backlog, against small tables."""
        sizes = self._sizes
        small: list[float] = []
        finished: list[float] = []
        waiting: list[float] = []
        with self._place() as where, where.fresh() as old, where.fresh() as long:
            for url, state in ((old, "succeeded"), (long, "queued")):
                self._tell(f"writing {sizes.backlog:,} {state} jobs")
                fill(url, 0)
                generate(url, state, sizes.backlog)
            for number in range(1, sizes.rounds + 1):
                self._tell(f"round {number} of {sizes.rounds}: drains with and without {sizes.backlog:,} rows")
                small.append(drain(where, sizes.jobs, 1).rate)
                fill(old, sizes.jobs)
                where.settle(old)
                finished.append(drain_filled(where, old, sizes.jobs, 1).rate)
                where.settle(long)
                waiting.append(drain_filled(where, long, sizes.jobs, 1).rate)
        base = statistics.median(small)
        for name, rates in (("finished", finished), ("waiting", waiting)):
            what = f"drain with {sizes.backlog:,} {name} jobs, against none"
            yield Line(what, statistics.median(rates), base, "jobs/s", 0.9)

    def claims(self) -> Line:
        """Time single claims in front of a large backlog, against a small one; in turns."""
        sizes = self._sizes
        with self._place() as where, where.fresh() as small, where.fresh() as large:
            for url, jobs in ((small, sizes.few), (large, sizes.many)):
                self._tell(f"writing {jobs:,} waiting jobs")
                fill(url, 0)
                generate(url, "queued", jobs)
            self._tell(f"{_CLAIMS} claims with {sizes.few:,} and with {sizes.many:,} waiting jobs")
            stores = [open_store(small), open_store(large)]
            times = [[_claim(store) for store in stores] for _ in range(_FIRST + _CLAIMS)][_FIRST:]
            for store in stores:
                store.close()
        few, many = (percentiles([pair[n] * 1000 for pair in times])["p99"] for n in (0, 1))
        what = f"claim with {sizes.many:,} waiting jobs, p99, against {sizes.few:,}"
        return Line(what, many, few, "ms", 2, larger_is_better=False)

    def pinned(self) -> Line:
        """Drain while a transaction is left open, which keeps every dead row; in turns with a database without one."""
        sizes = self._sizes
        self._tell(f"drains for {sizes.pinned:.0f} s with a transaction left open")
        held_rates: list[float] = []
        free_rates: list[float] = []
        with (
            fresh(self._conninfo, f"{_NAME}_held") as held_url,
            fresh(self._conninfo, f"{_NAME}_free") as free_url,
            place(held_url) as held_place,
            place(free_url) as free_place,
            _load(held_place) as held,
            _load(free_place) as free,
            psycopg.connect(held_url) as pin,
        ):
            for load in (held, free):
                load.drain(sizes.jobs)
            pin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            pin.execute("SELECT txid_current()")
            end = time.monotonic() + sizes.pinned
            while time.monotonic() < end or not free_rates:
                held_rates += [held.drain(sizes.jobs) for _ in range(3)]
                free_rates.append(free.drain(sizes.jobs))
                for load in (held, free):
                    load.maintain("VACUUM")  # autovacuum comes once a minute: a short run must not end before it
        what = f"drain, a transaction open for {sizes.pinned:.0f} s, against none"
        return Line(what, _lately(held_rates), _lately(free_rates), "jobs/s", 0.9)

    def analyzed(self) -> Line:
        """Drain after the planner has been told that the tables are empty, as autovacuum may tell it at any time."""
        self._tell("drains before and after ANALYZE of the emptied tables")
        with self._place() as where, _load(where) as load:
            before = [load.drain(self._sizes.jobs) for _ in range(3)]
            load.maintain("ANALYZE")
            after = [load.drain(self._sizes.jobs) for _ in range(3)]
        what = "drain after ANALYZE of the emptied tables, against before"
        return Line(what, statistics.median(after), statistics.median(before), "jobs/s")

    def crowd(self) -> Iterator[Line]:
        """Drain with 16 workers, and with 200; in turns with bare statements, for which it is hard as well."""
        ours: list[tuple[float, float]] = []
        bare: list[tuple[float, float]] = []
        with self._place() as where:
            for number in range(1, self._sizes.rounds + 1):
                self._tell(f"round {number} of {self._sizes.rounds}: 200 and 16 workers")
                ours.append((self._crowd(where, 200), self._crowd(where, 16)))
                bare.append((self._bare_crowd(200), self._bare_crowd(16)))
        yield Line("200 workers on one queue, against 16", *typical(ours), "jobs/s", 0.8)
        yield Line(f"200 bare loops on one table, {BATCH} jobs at a time, against 16", *typical(bare), "jobs/s")

    def _crowd(self, where: Place, workers: int) -> float:
        jobs = self._sizes.crowd
        with (
            where.fresh() as url,
            opened(url) as made,
            crew(_crew("services", workers), _environment(url), _PROCESSES) as services,
        ):
            services.go()
            services.answers()
            for drains in (1, 2):
                fill(url, jobs)
                until_done(made.app, services, drains * jobs)
            seen = span(made.app.store, jobs)
        return jobs / (seen.last - seen.first) * SECOND

    def _bare_crowd(self, workers: int) -> float:
        with floor.table(self._conninfo) as made:
            made.fill(BATCH * workers)
            with crew(_crew("bare", workers), _environment(made.url), _PROCESSES) as loops:
                loops.answers()
                made.fill(self._sizes.jobs)
                loops.tell("go")
                loops.answers()
            return made.rate(self._sizes.jobs)

    def idle(self) -> Line:
        """Count what 200 workers ask of the server while there is nothing to do."""
        sizes = self._sizes
        self._tell(f"200 idle workers, for {sizes.watched:.0f} s")
        with fresh(self._conninfo, _NAME) as database, place(database) as where, where.fresh() as url:
            fill(url, 0)
            with crew(_crew("services", 200), _environment(url), _PROCESSES) as services:
                services.go()
                services.answers()
                threading.Event().wait(sizes.watched / 2)  # until all have settled, and said what starting took
                before = usage(self._conninfo, _NAME)
                threading.Event().wait(sizes.watched)
                asked = usage(self._conninfo, _NAME).commits - before.commits
                services.check()
        return Line("200 idle workers", asked / sizes.watched, None, "queries/s", 20, larger_is_better=False)

    @contextmanager
    def _place(self) -> Iterator[Place]:
        with fresh(self._conninfo, _NAME) as url, place(url) as where:
            yield where


class Load:
    """A worker that stays, and work for it."""

    def __init__(self, url: str, made: Application, workers: Crew) -> None:
        self._where = address.parse(url)
        self._made = made
        self._workers = workers

    def drain(self, jobs: int) -> float:
        """Enqueue so many and wait for them; jobs per second by the records."""
        app, add = self._made.app, self._made.add
        goal = app.counts()["succeeded"] + jobs
        app.enqueue_many([add.prepare(n, n) for n in range(jobs)])
        until_done(app, self._workers, goal)
        seen = span(app.store, jobs)
        return seen.jobs / (seen.last - seen.first) * SECOND

    def maintain(self, how: LiteralString) -> None:
        """Do what autovacuum does, to the tables through which jobs pass."""
        with psycopg.connect(self._where.conninfo, autocommit=True) as db:
            for table in ("waiting", "running"):
                db.execute(sql.SQL(how + " {}").format(sql.Identifier(self._where.schema, table)))


@contextmanager
def _load(where: Place) -> Iterator[Load]:
    with (
        where.fresh() as url,
        opened(url) as made,
        crew(role("work", 0), {"BENCH_URL": url}) as workers,
    ):
        workers.go()
        yield Load(url, made, workers)


def _claim(store: Store) -> float:
    started = time.perf_counter()
    taken = store.claim(Claim("bench", secrets.token_hex(8), 10 * MINUTE, _TAKEN))
    seconds = time.perf_counter() - started
    assert len(taken) == _TAKEN
    return seconds


def _lately(rates: list[float]) -> float:
    """Give the median of the last third: what it has come to."""
    return statistics.median(rates[-max(1, len(rates) // 3) :])


def _crew(role: str, workers: int) -> list[str]:
    return [sys.executable, "-m", "bench.crowd", role, str(workers // _PROCESSES)]


def _environment(url: str) -> dict[str, str]:
    found = os.environ.get("PYTHONPATH")
    return {"BENCH_URL": url, "PYTHONPATH": f"{ROOT}{os.pathsep}{found}" if found else str(ROOT)}
