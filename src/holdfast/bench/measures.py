"""What is measured, one figure at a time: each works on a store of its own, and callers let them take turns."""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.bench.place import Place
from holdfast.bench.processes import Crew, Stuck, crew
from holdfast.bench.roles import WARM_UP, Application, Span, application, fill, span
from holdfast.domain.moments import SECOND, Micros

AT_ONCE = 16
_LOOK = 0.1
"""Seconds between two looks at how far a drain has come: each is a commit on the server, and must not weigh."""
_PATIENCE = 120.0


class Drained(NamedTuple):
    """How a drain went."""

    jobs: int
    rate: float
    """Jobs a second, from the first claim until the last outcome is recorded, as the records say."""
    from_start: float
    """The same from the moment when the workers are told to begin."""
    cpu_us: float
    """Processor time of the workers per job, in microseconds."""
    commits_per_job: float | None = None
    wal_per_job: float | None = None


class Latency(NamedTuple):
    """Milliseconds until the handler starts: from the return of the enqueue call, and from its beginning."""

    after: dict[str, float]
    whole: dict[str, float]


def role(name: str, number: int) -> list[str]:
    """Write the command that plays a role."""
    return [sys.executable, "-m", "holdfast.bench.roles", name, str(number)]


def bulk(place: Place, jobs: int) -> float:
    """Prepare and enqueue many jobs in one call; jobs per second."""
    with place.fresh() as url, opened(url) as made:
        made.app.enqueue_many([made.add.prepare(n, n) for n in range(WARM_UP)])
        return rate(jobs, lambda: made.app.enqueue_many([made.add.prepare(n, n) for n in range(jobs)]))


@contextmanager
def enqueuing(place: Place) -> Iterator[Callable[[str, int], float]]:
    """Give a function that enqueues jobs one at a time (`single`), or 16 at once from `threads` or `tasks`."""
    with place.fresh() as url, opened(url) as made:
        for n in range(WARM_UP):
            made.add.enqueue(n, n)

        def enqueue(how: str, jobs: int) -> float:
            match how:
                case "threads":
                    return rate(jobs, lambda: _in_threads(made, jobs // AT_ONCE))
                case "tasks":
                    return rate(jobs, lambda: asyncio.run(_in_tasks(made, jobs // AT_ONCE)))
                case _:
                    return rate(jobs, lambda: [made.add.enqueue(n, n) for n in range(jobs)])

        yield enqueue


def drain(place: Place, jobs: int, processes: int) -> Drained:
    """Work off preloaded jobs with worker processes of default options."""
    if not place.shared:
        with place.fresh() as url, crew(role("work", jobs), {"BENCH_URL": url}) as workers:
            workers.go()
            said = workers.hear()[1]
            return _drained(Span(said["jobs"], said["first"], said["last"]), said["began"], said["cpu"])
    with place.fresh() as url:
        fill(url, jobs)
        place.settle(url)
        return drain_filled(place, url, jobs, processes)


def drain_filled(place: Place, url: str, jobs: int, processes: int) -> Drained:
    """Work off that many jobs of a store in which at least so many wait."""
    before = place.usage()
    with crew(role("work", 0), {"BENCH_URL": url}, processes) as workers, opened(url) as made:
        goal = made.app.counts()["succeeded"] + jobs
        workers.go()
        until_done(made.app, workers, goal)
        said = workers.last_words()
        done = made.app.counts()["succeeded"] - goal + jobs
        seen = span(made.app.store, done)
    drained = _drained(seen, min(one["began"] for one in said), sum(one["cpu"] for one in said))
    after = place.usage()
    if before is None or after is None:
        return drained
    return drained._replace(
        commits_per_job=(after.commits - before.commits) / seen.jobs, wal_per_job=(after.wal - before.wal) / seen.jobs
    )


def loop(place: Place, jobs: int, processes: int, batch: int) -> float:
    """Drain by the store's own exchange in a bare loop: the most a worker could do on it; jobs per second."""
    if not place.shared:
        with place.fresh() as url, crew(role("loop", batch), {"BENCH_URL": url, "BENCH_FILL": str(jobs)}) as loops:
            loops.go()
            said = loops.hear()[1]
            return _drained(Span(said["jobs"], said["first"], said["last"]), said["began"], 0).rate
    with place.fresh() as url:
        fill(url, jobs)
        place.settle(url)
        with crew(role("loop", batch), {"BENCH_URL": url}, processes) as loops:
            loops.go()
            began = min(one["began"] for one in loops.answers())
        with opened(url) as made:
            return _drained(span(made.app.store, jobs), began, 0).rate


def latency(place: Place, jobs: int, settle: float) -> Latency:
    """Enqueue from one process, with an idle worker in another."""
    with place.fresh() as url:
        fill(url, 0)
        environment = {"BENCH_URL": url}
        with crew(role("work", 0), environment) as worker, crew(role("send", jobs), environment) as sender:
            worker.go()
            threading.Event().wait(settle)  # until it has nothing to do but wait
            sender.go()
            sent = {said["seq"]: said for said in _said(sender, jobs)}
            started = {said["seq"]: said["started"] for said in _said(worker, jobs)}
    return Latency(
        percentiles([(started[seq] - said["returned"]) * 1000 for seq, said in sent.items()]),
        percentiles([(started[seq] - said["called"]) * 1000 for seq, said in sent.items()]),
    )


def percentiles(values: list[float]) -> dict[str, float]:
    """Give the median, the 95th and the 99th percentile."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


@contextmanager
def opened(url: str) -> Iterator[Application]:
    """Open the application under test from here."""
    made = application(url)
    try:
        made.app.store.now()
        yield made
    finally:
        made.app.close()


def until_done(app: Holdfast, workers: Crew, goal: int) -> None:
    """Wait until so many jobs have succeeded."""
    pause = threading.Event()
    seen, moved = -1, time.monotonic()
    while (done := app.counts()["succeeded"]) < goal:
        workers.check()
        if done != seen:
            seen, moved = done, time.monotonic()
        elif time.monotonic() - moved > _PATIENCE:
            raise Stuck(f"No job has finished for {_PATIENCE:.0f} s; {goal - done:,} are left.")
        pause.wait(_LOOK)


def rate(jobs: int, work: Callable[[], object]) -> float:
    """Do a piece of work; give jobs per second."""
    started = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - started)


def _drained(seen: Span, began: Micros, cpu: float) -> Drained:
    if not seen.jobs:
        raise Stuck("The drain left no finished jobs.")
    return Drained(
        seen.jobs, _per_second(seen.jobs, seen.first, seen.last), _per_second(seen.jobs, began, seen.last),
        cpu / seen.jobs * 1e6,
    )  # fmt: skip


def _per_second(jobs: int, since: Micros, until: Micros) -> float:
    return jobs / max(until - since, 1) * SECOND


def _said(speakers: Crew, jobs: int) -> Iterator[dict[str, float]]:
    """Give what is said about each numbered job."""
    while jobs:
        said = speakers.hear()[1]
        if said.get("seq", -1) >= 0:
            jobs -= 1
            yield said


def _in_threads(made: Application, each: int) -> None:
    def work() -> None:
        for n in range(each):
            made.add.enqueue(n, n)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _in_tasks(made: Application, each: int) -> None:
    async def one() -> None:
        for n in range(each):
            await made.add.aenqueue(n, n)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
