"""Run every measure and print ratios: `python -m bench [--short] [--json] [--part NAME]… [--peers]`."""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import apsw
from rich.console import Console
from rich.table import Table

from bench import aws, dashboard, flow, http, postgres, recovery, scale, workflows
from bench.comparison import Comparison
from bench.measures import Bench
from bench.peers.server import server
from holdfast.bench import server as postgresql
from holdfast.bench.lines import HEADINGS, Line

PARTS = {
    "sqlite": "SQLite",
    "flow": "Flow control on SQLite and PostgreSQL",
    "postgres": "PostgreSQL",
    "http": "The server on SQLite",
    "dashboard": "The dashboard on SQLite",
    "workflows": "Workflows on SQLite and PostgreSQL",
    "scale": "PostgreSQL, large tables and many workers",
    "recovery": "PostgreSQL, when the server crashes",
    "peers": "PostgreSQL, beside the peers",
    "latency": "PostgreSQL, how soon a job starts, beside the peers",
    "aws": "DynamoDB and SQS, on an emulator",
}
USUAL = ["sqlite", "flow", "http", "dashboard", "postgres", "workflows", "scale", "recovery"]


def main(arguments: list[str]) -> int:
    """Measure and report; exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="smaller numbers and one round, for a quick look")
    parser.add_argument("--json", action="store_true", help="print the lines for a program")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--peers", action="store_true", help="only the comparison with the peers")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a server is stopped then, too
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120, highlight=False)
    watching = Console(stderr=True, highlight=False)
    found: dict[str, list[Line]] = {}
    with ExitStack() as stack:
        conninfo, about = "", _machine()
        for part in options.part or (["peers"] if options.peers else USUAL):
            if part not in ("sqlite", "http", "dashboard", "aws") and not conninfo:
                conninfo = stack.enter_context(server())
                about = ", ".join(f"{name} {value}" for name, value in postgresql.settings(conninfo).items())
            found[part] = []
            for line in _lines(part, conninfo, _teller(watching), short=options.short):
                found[part].append(line)
                console.print(line.sentence, soft_wrap=True, markup=False)
            if not options.json:
                console.print(_table(f"{PARTS[part]}: {about}", found[part]))
    lines = [line for some in found.values() for line in some]
    if options.json:
        print(
            json.dumps(
                [
                    {"part": part, **line._asdict(), "score": line.score, "holds": line.holds}
                    for part, some in found.items()
                    for line in some
                ],
                indent=1,
            )
        )
        return 0
    return 0 if all(line.holds for line in lines) else 1


def _lines(part: str, conninfo: str, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:  # noqa: C901 - one case per part
    match part:
        case "sqlite":
            yield from _sqlite(short=short)
        case "http":
            yield from _in_folder(lambda folder: http.lines(folder, tell, short=short))
        case "dashboard":
            yield from _in_folder(lambda folder: dashboard.lines(folder, tell, short=short))
        case "postgres":
            yield from postgres.lines(conninfo, tell, short=short)
        case "workflows":
            yield from _in_folder(lambda folder: workflows.lines(folder, conninfo, tell, short=short))
        case "aws":
            yield from aws.lines(tell, short=short)
        case "flow":
            yield from _in_folder(lambda folder: flow.lines(folder, conninfo, tell, short=short))
        case "scale":
            yield from scale.Scale(conninfo, scale.SHORT if short else scale.Sizes(), tell).lines()
        case "recovery":
            yield from recovery.lines(tell, recovery.SHORT if short else recovery.Sizes())
        case "latency":
            yield from Comparison(conninfo, tell, short=short).latency()
        case _:
            yield from Comparison(conninfo, tell, short=short).lines()


def _sqlite(*, short: bool) -> Iterator[Line]:
    sizes = (
        {"jobs": 10_000, "backlog": 100_000, "rounds": 1}
        if short
        else {"jobs": 50_000, "backlog": 1_000_000, "rounds": 3}
    )
    yield from _in_folder(lambda folder: Bench(folder, **sizes).lines())


def _in_folder(measure: Callable[[Path], Iterator[Line]]) -> Iterator[Line]:
    """Measure in a folder on this disk that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("HOLDFAST_BENCH_DIR", ".")) as folder:
        yield from measure(Path(folder).resolve())


def _teller(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(f"[dim]{text} …[/]", soft_wrap=True)


def _machine() -> str:
    return f"SQLite {apsw.sqlite_lib_version()}, Python {platform.python_version()}, {os.cpu_count()} cores"


def _table(title: str, lines: list[Line]) -> Table:
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for line in lines:
        table.add_row(*line.cells)
    return table


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
