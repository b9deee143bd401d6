"""`holdfast chaos`: workers are killed and frozen at work and the promises proved, started from here."""

import os

import click

from holdfast.chaos import FREEZES, JOBS, KILLS, MOST_FAULTS, MOST_JOBS, MOST_WORKERS, WORKERS, orders, refuse_unable
from holdfast.cli.errors import FAILURE
from holdfast.cli.output import show_json
from holdfast.cli.store import json_option, masked


@click.command("chaos")
@click.option("--url", help="Work in a file, or a schema, of its own beside this store.  [default: a temporary folder]")
@click.option(
    "--jobs", type=click.IntRange(1, MOST_JOBS), default=JOBS, show_default=True, help="How many jobs to run."
)
@click.option(
    "--workers",
    type=click.IntRange(2, MOST_WORKERS),
    default=WORKERS,
    show_default=True,
    help="How many worker processes to keep at work.",
)
@click.option(
    "--kills",
    type=click.IntRange(0, MOST_FAULTS),
    default=KILLS,
    show_default=True,
    help="How many busy workers to kill with -9.",
)
@click.option(
    "--freezes",
    type=click.IntRange(0, MOST_FAULTS),
    default=FREEZES,
    show_default=True,
    help="How many busy workers to freeze until others have taken over.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Decides on the jobs and the faults.  [default: drawn]")
@json_option
def chaos(
    url: str | None, *, as_json: bool, jobs: int, workers: int, kills: int, freezes: int, seed: int | None
) -> None:
    """Kill and freeze workers at work, and prove the promises on what is left.

    Starts worker processes on a store of its own, strikes them while they are busy, and checks the recorded history.
    The jobs of the store that `--url` names are not touched; what is made beside it is removed at the end. Ends with
    exit code 1 if a promise is broken, or if a fault that was asked for did not happen at work.
    """
    from rich.console import Console

    from holdfast.chaos.show import Line, played, report
    from holdfast.chaos.show import as_json as told

    if url is not None:
        refuse_unable(url)
    asked = orders(jobs, workers, kills, freezes, int.from_bytes(os.urandom(2)) if seed is None else seed)
    console = Console(highlight=False, stderr=as_json)
    where = "a SQLite file of its own" if url is None else f"a store of its own beside {masked(url)}"
    if not as_json:
        console.print(
            f"[bold]Holdfast[/]: {jobs} jobs, {workers} workers, {kills} kills, {freezes} freezes, in {where}"
            f" [dim](seed {asked.seed})[/]\n",
            soft_wrap=True,
        )
    history, seconds = played(url, asked, Line(console, asked, events=not as_json))
    if as_json:
        found = told(history, seconds)
        show_json({"url": None if url is None else masked(url), **found})
        holds = found["verdict"] == "holds"
    else:
        again = (
            f"holdfast chaos --seed {asked.seed} --jobs {jobs} --workers {workers} --kills {kills} --freezes {freezes}"
        )
        holds = report(console, history, seconds, again) == "holds"
    if not holds:
        raise click.exceptions.Exit(FAILURE)
