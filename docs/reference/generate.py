"""Writes the command-line reference, `cli.md`, from the program itself: `python docs/reference/generate.py`."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.main import program

PAGE = Path(__file__).with_name("cli.md")
_OPENING = """\
# Command line

Written by `docs/reference/generate.py` from the program itself; not edited by hand.

`MODULE:APP` names an application: `shop.tasks:app`, or `path/to/file.py:app`. The other commands work on a store:
`--url`, else `HOLDFAST_URL`, else `sqlite:///holdfast.db`. They never make a store that is not there, except `migrate`.

Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. An error is one sentence; `HOLDFAST_DEBUG=1` adds the
traceback.

Listings are tables on a terminal, plain columns in a pipe, and JSON with `--json`. Payloads are shown only with
`--payload`, tracebacks only with `--traceback`.
"""


def page() -> str:
    """Give the whole page."""
    return "\n".join([_OPENING, *_sections(program, click.Context(program, info_name="holdfast"))])


def _sections(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = click.Context(command, info_name=name, parent=ctx)
        if isinstance(command, click.Group):
            yield from _sections(command, inner)
        else:
            yield _section(command, inner)


def _section(command: click.Command, ctx: click.Context) -> str:
    usage = " ".join(command.get_usage(ctx).removeprefix("Usage: ").split())
    parts = [f"## {ctx.command_path}", f"```text\n{usage}\n```", _prose(command.help or "")]
    options = (param for param in command.params if isinstance(param, click.Option))
    rows = [record for option in options if (record := option.get_help_record(ctx))]
    if rows:
        table = ["| option | |", "|---|---|", *(f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows)]
        parts.append("\n".join(table))
    return "\n\n".join(parts) + "\n"


def _prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
