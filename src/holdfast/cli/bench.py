"""`holdfast bench`: how fast the store at hand is, started from here."""

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, masked, url_option


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    words = value.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= 64 for word in words):  # noqa: PLR2004 - a sane limit
        msg = f"{value!r} is not a list of numbers from 1 to 64, such as 1,2."
        raise click.BadParameter(msg, ctx, param)
    return sorted({int(word) for word in words})


@click.command("bench")
@click.option("--short", is_flag=True, help="A quick look: fewer jobs, one round.")
@click.option("--jobs", type=click.IntRange(min=100), help="How many jobs to drain.  [default: 50000; short: 10000]")
@click.option(
    "--processes",
    default="1,2",
    show_default=True,
    metavar="N[,N…]",
    callback=_numbers,
    help="The numbers of worker processes to drain with.",
)
@json_option
@url_option
def bench(url: str, *, as_json: bool, short: bool, jobs: int | None, processes: list[int]) -> None:
    """Measure how fast a store is on this machine.

    Works in a file, or in schemas, of its own beside the store, and removes them; the store's own jobs are not touched.
    The server and the disk are kept busy for minutes meanwhile.
    """
    from rich.console import Console

    from holdfast.bench.lines import HEADINGS
    from holdfast.bench.suite import Sizes, run

    console = Console(stderr=True, highlight=False)
    report = run(
        url,
        Sizes.chosen(jobs, short=short),
        processes,
        lambda text: console.print(f"[dim]{text} …[/]", soft_wrap=True),
    )
    if as_json:
        show_json({"url": masked(url), **report.as_json()})
        return
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    click.echo(f"{masked(url)} ({settings})")
    show_table(HEADINGS, (line.cells for line in report.lines()), empty="")
