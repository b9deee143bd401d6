"""Run every measure and print ratios; `--short` for a quick look, `--json` for programs."""

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import apsw
from rich.console import Console
from rich.table import Table

from bench.measures import Bench, Line


def main(arguments: list[str]) -> int:
    """Measure and report; exit code 1 if a goal is missed."""
    short = "--short" in arguments
    console = Console(stderr="--json" in arguments, width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("HOLDFAST_BENCH_DIR", ".")) as folder:
        sizes = (
            {"jobs": 10_000, "backlog": 100_000, "rounds": 1}
            if short
            else {"jobs": 50_000, "backlog": 1_000_000, "rounds": 3}
        )
        bench = Bench(Path(folder).resolve(), **sizes)
        lines: list[Line] = []
        for line in bench.lines():
            lines.append(line)
            console.print(f"{'✓' if line.holds else '✗'} {line.what}: {_shown(line)}", highlight=False)
    if "--json" in arguments:
        print(json.dumps([{**line._asdict(), "score": line.score, "holds": line.holds} for line in lines], indent=1))
        return 0
    table = Table(
        title=f"SQLite {apsw.sqlite_lib_version()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    for heading in ("measure", "ours", "against", "ratio or value", "goal"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for line in lines:
        against = "" if line.floor is None else f"{line.floor:,.0f}"
        sign = "≥" if line.larger_is_better else "≤"
        unit = "" if line.floor else f" {line.unit}"
        mark = "✓" if line.holds else "✗"
        ours = f"{line.ours:,.0f} {line.unit}" if line.floor else ""
        table.add_row(line.what, ours, against, f"{mark} {line.score:.2f}{unit}", f"{sign} {line.goal:g}{unit}")
    console.print(table)
    return 0 if all(line.holds for line in lines) else 1


def _shown(line: Line) -> str:
    if line.floor:
        return f"{line.ours:,.0f} against {line.floor:,.0f} {line.unit}, ratio {line.score:.2f} (goal {line.goal:g})"
    return f"{line.ours:.2f} {line.unit} (goal {line.goal:g})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
