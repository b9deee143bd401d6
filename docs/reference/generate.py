"""Writes what the program can say of itself: the command-line reference, `cli.md`, and the table of what each store can
give, in `concepts/stores.md`. Run as `python docs/reference/generate.py`.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click

from holdfast.cli.main import program
from holdfast.port.store import Capabilities
from holdfast.stores.dynamodb import ContractStore, DynamoStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

PAGE = Path(__file__).with_name("cli.md")
STORES = Path(__file__).parents[1] / "concepts" / "stores.md"
_ENGINES = {
    "memory": MemoryStore.capabilities,
    "SQLite": SqliteStore.capabilities,
    "PostgreSQL": PostgresStore.capabilities,
    "DynamoDB": DynamoStore.capabilities,
    "DynamoDB with SQS": ContractStore.capabilities,
}
_TABLE = re.compile(r"^\| capability \|.*?\n(?=\n)", re.MULTILINE | re.DOTALL)
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


def stores(text: str) -> str:
    """Give the page on stores with its table of capabilities as the code has them."""
    return _TABLE.sub(lambda _: _capabilities(), text, count=1)


def _capabilities() -> str:
    said = _docstrings(Capabilities)
    lines = [f"| capability | meaning | {' | '.join(_ENGINES)} |", f"|---|---|{'---|' * len(_ENGINES)}"]
    for field in dataclasses.fields(Capabilities):
        has = ("yes" if getattr(engine, field.name) else "no" for engine in _ENGINES.values())
        lines.append(f"| `{field.name}` | {said[field.name]} | {' | '.join(has)} |")
    return "\n".join(lines) + "\n"


def _docstrings(kind: type) -> dict[str, str]:
    """Give the sentence under each field of a class: Python itself does not keep them."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(tree.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _cell(text).removesuffix(".")
            case _:
                pass
    return found


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
    STORES.write_text(stores(STORES.read_text(encoding="utf-8")), encoding="utf-8")
