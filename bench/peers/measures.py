"""The measures of one peer: enqueue one by one and in bulk, drain, and latency. Each runs on its own fresh database."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from bench.peers.database import Usage, fresh, settle, usage, wait_for_quiet
from bench.peers.environments import PEERS, Peer, install
from holdfast.bench.processes import Crew, crew


class Result(NamedTuple):
    """One measured figure of one peer; what was not measured is None. Latencies are in milliseconds."""

    peer: str
    work: str
    jobs: int
    procs: int = 1
    tuned: bool = True
    rate: float | None = None
    p50: float | None = None
    """From the return of the enqueue call to the start of the handler."""
    p99: float | None = None
    call_p50: float | None = None
    """From the beginning of the enqueue call: what its caller feels."""
    call_p99: float | None = None
    cpu_us: float | None = None
    """Processor time per job of the worker, or of the producer when enqueueing."""
    commits_per_job: float | None = None
    wal_per_job: float | None = None


def single(conninfo: str, peer: str, *, jobs: int = 2_000) -> Result:
    """Enqueue one call at a time, each durable when it returns."""
    return _enqueue(conninfo, peer, "single", jobs)


def bulk(conninfo: str, peer: str, *, jobs: int = 50_000) -> Result:
    """Enqueue by the peer's best bulk call."""
    return _enqueue(conninfo, peer, "bulk", jobs)


def drain(conninfo: str, peer: str, *, jobs: int | None = None, procs: int = 1, tuned: bool = True) -> Result:
    """Work off preloaded no-op jobs, from the first handler's start until the peer's tables say that all are done.

    Tuned: options for throughput, from the peer's documentation if it names any (graphile-worker's does), else the best
    of a few that were tried. Untuned: a worker started with its defaults.
    """
    known = PEERS[peer]
    jobs = jobs or (known.tuned_jobs if tuned else known.untuned_jobs)
    with _prepared(conninfo, known) as url:
        _told(known, url, "bulk", jobs)
        settle(url)
        wait_for_quiet(conninfo, _database(known))
        before = usage(conninfo, _database(known))
        with crew(known.command("work", _way(tuned=tuned)), known.environment(url), procs) as workers:
            idle = workers.go()
            first = _handled(workers, jobs)
            ended = _recorded(url, known)
            cpu = workers.cpu() - idle
        result = Result(peer, "drain", jobs, procs, tuned, rate=jobs / (ended - first), cpu_us=cpu / jobs * 1e6)
        return _charged(result, conninfo, before, jobs)


def latency(conninfo: str, peer: str, *, jobs: int = 300, tuned: bool = True) -> Result:
    """Enqueue every 20 ms from one process, with an idle worker in another."""
    known = PEERS[peer]
    with _prepared(conninfo, known) as url:
        environment = known.environment(url)
        with (
            crew(known.command("work", _way(tuned=tuned)), environment) as worker,
            crew(known.command("send", str(jobs)), environment) as sender,
        ):
            worker.go()
            threading.Event().wait(2)  # until it has nothing to do but listen
            sender.go()
            sent = {said["seq"]: said for said in _said(sender, jobs)}
            started = {said["seq"]: said["started"] for said in _said(worker, jobs)}
    after = [(started[seq] - said["returned"]) * 1000 for seq, said in sent.items()]
    whole = [(started[seq] - said["called"]) * 1000 for seq, said in sent.items()]
    return Result(
        peer,
        "latency",
        jobs,
        tuned=tuned,
        p50=statistics.median(after),
        p99=statistics.quantiles(after, n=100)[98],
        call_p50=statistics.median(whole),
        call_p99=statistics.quantiles(whole, n=100)[98],
    )


def _enqueue(conninfo: str, peer: str, role: str, jobs: int) -> Result:
    known = PEERS[peer]
    with _prepared(conninfo, known) as url:
        before = usage(conninfo, _database(known))
        said = _told(known, url, role, jobs)
        result = Result(peer, role, jobs, rate=said["rate"], cpu_us=said["cpu_us"])
        return _charged(result, conninfo, before, said["enqueued"])


@contextmanager
def _prepared(conninfo: str, peer: Peer) -> Iterator[str]:
    """Give an own database with the peer's tables, and nothing else in it."""
    install(peer)
    with fresh(conninfo, _database(peer)) as url:
        _told(peer, url, "setup")
        wait_for_quiet(conninfo, _database(peer))
        yield url


def _told(peer: Peer, url: str, role: str, *arguments: object) -> dict[str, float]:
    """Let the peer's script play a role, and give its only answer."""
    with crew(peer.command(role, *map(str, arguments)), peer.environment(url)) as script:
        script.go()
        return script.hear()[1]


def _handled(workers: Crew, jobs: int) -> float:
    """Wait until that many handlers have run; tell when the first one began."""
    handled: dict[int, int] = {}
    first = float("inf")
    while sum(handled.values()) < jobs:
        speaker, said = workers.hear()
        handled[speaker] = said["handled"]
        first = min(first, said["first"])
    return first


def _recorded(url: str, peer: Peer) -> float:
    """Wait until the tables say so too; tell when they did. Its one transaction is rolled back: no commit of ours."""
    end = time.monotonic() + 60
    with psycopg.connect(url) as db:
        while db.execute(peer.left).fetchone() != (0,):
            assert time.monotonic() < end, f"{peer.name} ran all jobs and never recorded them"
            threading.Event().wait(0.005)
        ended = time.time()
        db.rollback()
    return ended


def _said(speakers: Crew, jobs: int) -> Iterator[dict[str, float]]:
    """Give what is said about each numbered job."""
    while jobs:
        said = speakers.hear()[1]
        if "seq" in said:
            jobs -= 1
            yield said


def _charged(result: Result, conninfo: str, before: Usage, jobs: float) -> Result:
    """Add what the server did for so many jobs."""
    name = _database(PEERS[result.peer])
    wait_for_quiet(conninfo, name)
    after = usage(conninfo, name)
    return result._replace(
        commits_per_job=(after.commits - before.commits) / jobs, wal_per_job=(after.wal - before.wal) / jobs
    )


def _database(peer: Peer) -> str:
    return f"holdfast_bench_{peer.name}"


def _way(*, tuned: bool) -> str:
    return "tuned" if tuned else "untuned"
