"""Measure every peer and the floor: `python -m bench.peers [--short] [--json] [--peer NAME]…`."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
from rich.console import Console
from rich.table import Table

from bench.peers import floor
from bench.peers.environments import PEERS, Unavailable
from bench.peers.measures import Result, bulk, drain, latency, single
from bench.peers.server import server

FLOOR = "floor"


def main(arguments: list[str]) -> int:
    """Measure and report; exit code 1 if a measure failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer jobs, for a quick look")
    parser.add_argument("--json", action="store_true", help="print the results for a program")
    parser.add_argument("--peer", action="append", choices=[FLOOR, *PEERS], help="only this one; may be repeated")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then, too
    progress = Console(stderr=True)
    results: list[Result] = []
    failed = False
    with server() as conninfo:
        for name in options.peer or [FLOOR, *PEERS]:
            try:
                for measure in _measures(conninfo, name, short=options.short):
                    results.append(measure())
                    progress.print(_line(results[-1]), highlight=False, soft_wrap=True)
            except Unavailable as reason:
                progress.print(f"– {reason}", highlight=False, markup=False, soft_wrap=True)
            except (RuntimeError, AssertionError, psycopg.Error) as error:
                failed = True
                progress.print(f"✗ {name}: {error}", highlight=False, markup=False, soft_wrap=True)
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(_table(results))
    return 1 if failed else 0


def _measures(conninfo: str, name: str, *, short: bool) -> Iterator[Callable[[], Result]]:
    few, many, share = (400, 10_000, 5) if short else (2_000, 50_000, 1)
    if name == FLOOR:
        yield lambda: Result(FLOOR, "single", few, rate=floor.single(conninfo, few))
        yield lambda: Result(FLOOR, "bulk", many, rate=floor.bulk(conninfo, many))
        yield lambda: Result(FLOOR, "drain", many, 1, rate=floor.best(conninfo, many, procs=1).rate)
        yield lambda: Result(FLOOR, "drain", many, 2, rate=floor.best(conninfo, many, procs=2).rate)
        return
    peer = PEERS[name]
    yield partial(single, conninfo, name, jobs=few)
    yield partial(bulk, conninfo, name, jobs=many)
    for tuned in (True, False):
        jobs = (peer.tuned_jobs if tuned else peer.untuned_jobs) // share
        yield partial(drain, conninfo, name, jobs=jobs, procs=1, tuned=tuned)
        yield partial(drain, conninfo, name, jobs=jobs, procs=2, tuned=tuned)
        yield partial(latency, conninfo, name, jobs=300 // share, tuned=tuned)


def _line(result: Result) -> str:
    return " · ".join(cell for cell in _cells(result) if cell)


def _cells(result: Result) -> list[str]:
    drained = result.work == "drain"
    return [
        result.peer,
        result.work,
        f"{result.jobs:,}",
        str(result.procs) if drained else "",
        ("tuned" if result.tuned else "default") if drained or result.work == "latency" else "",
        "" if result.rate is None else f"{result.rate:,.0f} /s",
        "" if result.p50 is None else f"{result.p50:.2f} / {result.p99:.2f} ms",
        "" if result.call_p50 is None else f"{result.call_p50:.2f} / {result.call_p99:.2f} ms",
        "" if result.cpu_us is None else f"{result.cpu_us:,.0f} µs",
        "" if result.commits_per_job is None else f"{result.commits_per_job:.4f}",
        "" if result.wal_per_job is None else f"{result.wal_per_job:,.0f} B",
    ]


def _table(results: list[Result]) -> Table:
    table = Table(title="The peers on one PostgreSQL server; latency is p50 / p99")
    headings = ("peer", "work", "jobs", "procs", "options", "rate", "latency", "with call", "CPU", "commits", "WAL")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number in (0, 1, 4) else "right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    return table


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
