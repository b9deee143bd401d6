"""Each measure gives one line of the report: what, ours, the floor (or limit), their ratio, and the goal."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench import floor
from bench.floor import in_threads
from holdfast import Holdfast, JobFunction
from holdfast.bench.lines import Line, typical
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.sql import SQL

_SLICES = 10
"""Enqueues and their floors take turns this often in a round: the disk's speed drifts within seconds."""
_WARM = 50_000
"""Jobs after which a worker's memory holds all that it will keep."""


class Bench:
    """The measures, in one folder, at one size."""

    def __init__(self, folder: Path, *, jobs: int, backlog: int, rounds: int) -> None:
        self.folder = folder
        self.jobs = jobs
        self.backlog = backlog
        self.rounds = rounds
        self._names = count()

    def lines(self) -> Iterator[Line]:
        """Measure everything, one after the other."""
        yield from self.drain()
        yield from self.enqueue()
        yield from self.scale()
        yield self.latency()
        yield from self.footprint()

    def drain(self) -> Iterator[Line]:
        """Drain no-op jobs with one worker process and default options, interleaved with the floor and with huey."""
        ours, bare, huey = [], [], []
        for _ in range(self.rounds):
            bare.append(floor.drain(self.folder, self.jobs))
            ours.append(self._drain(self._filled(self.jobs)))
            tasks = self.jobs // 10
            command = [
                sys.executable,
                "-m",
                "bench.huey_peer",
                str(self.folder / f"huey-{next(self._names)}.db"),
                str(tasks),
            ]
            huey.append(float(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
        rate = statistics.median(one["rate"] for one in ours)
        yield Line(f"drain {self.jobs:,} no-op jobs", rate, statistics.median(bare), "jobs/s", 0.2)
        yield Line("the same, against huey on SQLite", rate, statistics.median(huey), "jobs/s", 8)
        yield Line(
            "worker CPU per job",
            statistics.median(one["cpu_us"] for one in ours),
            None,
            "µs",
            50,
            larger_is_better=False,
        )

    def enqueue(self) -> Iterator[Line]:
        """Enqueue in bulk, one at a time, and from 16 callers at once."""
        bulk, lone, threads, shared, tasks = [], [], [], [], []
        few = max(self.jobs // 250, 40)
        for _ in range(self.rounds):
            bare = floor.bulk(self.folder, self.jobs)
            with self._app() as (app, add):
                bulk.append(
                    (_rate(self.jobs, lambda: app.enqueue_many([add.prepare(n, n) for n in range(self.jobs)])), bare)
                )
            with self._app() as (_, add), self._bare() as (one, many):
                add.enqueue(0, 0)
                for _ in range(_SLICES):
                    bare = one(few)
                    alone = _rate(few, lambda: [add.enqueue(n, n) for n in range(few)])
                    at_once = _rate(16 * few, lambda: in_threads(16, lambda: [add.enqueue(n, n) for n in range(few)]))
                    lone.append((alone, bare))
                    threads.append((at_once, alone))
                    shared.append((at_once, many(few)))
                    tasks.append((_rate(16 * few, lambda: asyncio.run(_in_tasks(16, few, add))), alone))
        yield Line("bulk enqueue of validated payloads", *typical(bulk), "jobs/s", 0.2)
        yield Line("one-at-a-time enqueue, against the bare row", *typical(lone), "jobs/s", 0.8)
        yield Line("16 tasks enqueue at once, against one", *typical(tasks), "jobs/s", 4)
        yield Line("16 threads enqueue at once, against one", *typical(threads), "jobs/s")
        what = "16 threads enqueue at once, against bare threads that share commits"
        yield Line(what, *typical(shared), "jobs/s", 0.6)

    def scale(self) -> Iterator[Line]:
        """Drain with a large history, and in front of a large backlog, against a small file."""
        finished, waiting = [], []
        old, long = self._filled(0), self._filled(0)
        self._generate(old, "succeeded")
        self._generate(long, "queued")
        for _ in range(self.rounds):
            small = self._drain(self._filled(self.jobs))["rate"]
            self._fill(old, self.jobs)
            finished.append((self._drain(old)["rate"], small))
            waiting.append((self._drain(long)["rate"], small))
        yield Line(f"drain with {self.backlog:,} finished jobs in the file", *typical(finished), "jobs/s", 0.9)
        yield Line(f"drain with {self.backlog:,} jobs waiting", *typical(waiting), "jobs/s", 0.9)

    def latency(self) -> Line:
        """Enqueue from this process, start in another that was idle: the 99th percentile."""
        url = self._filled(0)
        worker = self._start("work", url, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        app, stamp = self._stamping(url)
        waits = []
        for _ in range(max(self.jobs // 100, 100)):
            stamp(time.time())
            waits.append(float(worker.stdout.readline()))
            threading.Event().wait(0.005)
        _end(worker)
        app.close()
        waits = sorted(waits[5:])
        return Line(
            "enqueue to start in another process, p99",
            waits[int(len(waits) * 0.99)],
            None,
            "ms",
            20,
            larger_is_better=False,
        )

    def footprint(self) -> Iterator[Line]:
        """What an idle worker costs, and what importing costs, once it is compiled as an installation is."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "compiled")
        code = "import time; t = time.perf_counter(); import holdfast; print(time.perf_counter() - t)"
        command = [sys.executable, "-c", code]
        imports = [
            float(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)
            for _ in range(6)
        ]
        yield Line("import holdfast", statistics.median(imports[1:]), None, "s", 0.3, larger_is_better=False)
        worker = self._start("work", self._filled(0))
        threading.Event().wait(3)
        before, since = _cpu(worker.pid), time.monotonic()
        threading.Event().wait(10)
        share = (_cpu(worker.pid) - before) / (time.monotonic() - since) * 100
        memory = _rss(worker.pid)
        _end(worker)
        yield Line("idle worker, share of a core", share, None, "%", 1, larger_is_better=False)
        yield Line("idle worker, resident memory", memory, None, "MB", 80, larger_is_better=False)
        url = self._filled(0)
        self._generate(url, "queued")
        worker = self._start("work", url)
        app = Holdfast(url)
        _until(lambda: app.counts()["succeeded"] > min(max(self.backlog // 10, _WARM), self.backlog // 2))
        early = _rss(worker.pid)
        _until(lambda: not app.counts().unfinished)
        growth = _rss(worker.pid) - early
        _end(worker)
        app.close()
        yield Line(f"memory growth over {self.backlog:,} jobs", growth, None, "MB", 10, larger_is_better=False)

    def _drain(self, url: str) -> dict[str, float]:
        command = [sys.executable, "-m", "bench.application", "take", str(self.jobs)]
        done = subprocess.run(command, env={**os.environ, "BENCH_URL": url}, capture_output=True, check=True, text=True)
        return dict(json.loads(done.stdout))

    def _start(self, mode: str, url: str, stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "bench.application", mode]
        worker = subprocess.Popen(command, env={**os.environ, "BENCH_URL": url}, stdout=stdout, text=True)
        app = Holdfast(url)
        _until(app.store.workers)
        app.close()
        return worker

    def _filled(self, jobs: int) -> str:
        url = f"sqlite:///{self.folder}/ours-{next(self._names)}.db"
        self._fill(url, jobs)
        return url

    def _fill(self, url: str, jobs: int) -> None:
        app = Holdfast(url)
        add = app.job(name="add")(_add)
        app.enqueue_many([add.prepare(n, n) for n in range(jobs)])
        assert app.counts() is not None
        app.close()

    def _generate(self, url: str, state: str) -> None:
        """Write a large number of jobs straight into a file, as the store would have left them."""
        app = Holdfast(url)
        db = floor.connect(app.store.path)  # type: ignore[attr-defined]
        now = app.store.now()
        db.execute("BEGIN IMMEDIATE")
        db.execute(GENERATE[state], (self.backlog, now, next(self._names)))
        db.execute(SQL["tally"], ("default", state, self.backlog))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.close()
        app.close()

    @contextmanager
    def _bare(self) -> Iterator[tuple[Callable[[int], float], Callable[[int], float]]]:
        """Write the same row into the same table with bare statements: one commit each, and from threads that share
        commits.
        """
        app = Holdfast(self._filled(0))
        app.counts()
        db = floor.connect(app.store.path)  # type: ignore[attr-defined]
        ids = Ids(
            lambda: time.time_ns() // 1_000_000,
            lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> (8 - bits % 8),
        )
        new = NewJob("add", '{"a":1,"b":1}')

        def stamps(jobs: int) -> Callable[[], object]:
            return iter([rows.fresh(id_, new, app.store.now()) for id_ in ids.take(jobs)]).__next__

        yield (
            lambda jobs: floor.single(db, SQL["insert"], stamps(jobs), jobs),
            lambda each: floor.shared(db, SQL["insert"], stamps(16 * each), 16, each),
        )
        db.close()
        app.close()

    @contextmanager
    def _app(self) -> Iterator[tuple[Holdfast, JobFunction[[int, int], int]]]:
        app = Holdfast(self._filled(0))
        yield app, app.job(name="add")(_add)
        app.close()

    def _stamping(self, url: str) -> tuple[Holdfast, Callable[[float], object]]:
        app = Holdfast(url)

        @app.job(name="stamp")
        def stamp(sent: float) -> None: ...

        return app, stamp.enqueue


GENERATED = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO job (id, kind, queue, tenant, priority, payload, retry, max_attempts, crash_cap, trigger, created_at,
  steps_total, state, version, attempt, token, available_at, updated_at, ready, lease_id, lease_owner, claimed_at,
  started_at, finished_at, purge_at, result)
SELECT format('018f%04x-%04x-7000-8000-%012x', ?3, i >> 16, i), 'add', 'default', '', 0, '{"a":1,"b":1}',
  'exponential:2000000:0.1:31536000000000', 5, 3, 'manual', ?2, 0,"""
GENERATE = {
    "queued": GENERATED + " 'queued', 1, 0, 0, ?2, ?2, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM n",
    "succeeded": GENERATED
    + "'succeeded', 3, 1, 1, ?2, ?2, NULL, 'x', 'w', ?2, ?2, ?2, ?2 + 604800000000 + i, '2' FROM n",
}


def _add(a: int, b: int) -> int:
    return a + b


def _rate(jobs: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - started)


async def _in_tasks(number: int, each: int, add: JobFunction[[int, int], int]) -> None:
    async def one() -> None:
        for n in range(each):
            await add.aenqueue(n, n)

    await asyncio.gather(*(one() for _ in range(number)))


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "the benchmark got stuck"
        threading.Event().wait(0.05)


def _end(worker: "subprocess.Popen[str]") -> None:
    worker.terminate()
    worker.wait(30)
    if worker.stdout is not None:
        worker.stdout.close()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
