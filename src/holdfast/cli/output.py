"""What the command line prints: tables for people, plain columns for pipes, JSON for programs, progress while it lasts.

Text from the store is made printable before it is shown, so that nothing stored can steer a terminal. rich is imported
only where it is used.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

_STYLES = {"running": "cyan", "retrying": "yellow", "succeeded": "green", "dead": "red", "paused": "yellow"}
_ID = 36


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under headings; `empty` is said if there are none."""
    cells = [[printable(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
    elif sys.stdout.isatty():
        _show_rich(columns, cells)
    else:
        _show_plain([[column.upper() for column in columns], *cells])


def _show_plain(lines: list[list[str]]) -> None:
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _show_rich(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n, column in enumerate(columns):
        whole = max(len(line[n]) for line in cells) <= _ID
        table.add_column(column, no_wrap=whole and n == 0, overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in line))
    Console().print(table)


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair to a line; what has no value is left out."""
    told = [(name, printable(value)) for name, value in fields]
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        if value:
            click.echo(f"{name.ljust(width)}  {value}")


def show_json(value: Any) -> None:
    """Print a value for programs: this and nothing else."""
    click.echo(json.dumps(value, indent=2))


def printable(value: object) -> str:
    """Make one line of text of a value, with nothing in it that a terminal would obey."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}Z"
        case _:
            return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def plural(number: int, what: str) -> str:
    """Count things: `1 job`, `2 jobs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show on standard error, if that is a terminal, how far long work has come; give the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)
