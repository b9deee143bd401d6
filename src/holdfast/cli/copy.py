"""`holdfast copy`: all that waits or is dead, from one store to another."""

from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.errors import FAILURE
from holdfast.cli.output import plural, progress, show_json
from holdfast.cli.store import json_option, masked, opened
from holdfast.runtime.copying import Place, Report, undo
from holdfast.runtime.copying import copy as copied

SHOWN = 20


@click.command("copy")
@click.option("--from", "source", metavar="URL", required=True, help="The store that jobs go away from.")
@click.option("--to", "target", metavar="URL", required=True, help="The store that they go to; it must be there.")
@click.option("--finished", is_flag=True, help="Copy succeeded and cancelled jobs as well; they stay in the source.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for running jobs to end.",
)
@click.option("--undo", "back", is_flag=True, help="Give back what an unfinished copy holds in the source.")
@json_option
def copy(source: str, target: str, *, finished: bool, wait: float, back: bool, as_json: bool) -> None:
    """Move waiting and dead jobs, schedules and credits to another store.

    The queues of the source are paused first and stay so. No job is lost and none runs twice; whatever interrupts a
    copy, asking for the same again finishes it.
    """
    with opened(source) as here, opened(target) as there:
        if back:
            report = undo(_place(here), _place(there), here.settings)
        else:
            with progress("moving") as advance:
                report = copied(
                    _place(here), _place(there), here.settings, finished=finished, wait=wait, advance=advance
                )
    if as_json:
        show_json(_as_json(source, target, report))
    else:
        _show(masked(source if back else target), report, back=back)
    if report.refused:
        raise click.exceptions.Exit(FAILURE)


def _place(app: Holdfast) -> Place:
    return Place(app.store, masked(app.url))


def _as_json(source: str, target: str, report: Report) -> dict[str, Any]:
    return {
        "from": masked(source),
        "to": masked(target),
        "waiting": report.waiting,
        "dead": report.dead,
        "finished": report.finished,
        "schedules": report.schedules,
        "credits": report.credits,
        "refused": [{"id": id_, "reason": reason} for id_, reason in report.refused],
        "paused_before": report.paused,
        "paused_tenants": report.tenants,
        "paused_kinds": report.kinds,
        "limited_queues": report.ruled,
    }


def _show(where: str, report: Report, *, back: bool) -> None:
    jobs = f"{plural(report.waiting, 'waiting job')} and {plural(report.dead, 'dead job')}"
    if back:
        click.echo(f"{jobs} are given back to {where}. Its queues are still paused; see: holdfast queues.")
    else:
        click.echo(f"{jobs} are moved to {where}; the queues of the source stay paused.")
    if report.finished:
        click.echo(f"{plural(report.finished, 'finished job')} are copied.")
    if report.schedules:
        click.echo(f"Schedules: {', '.join(report.schedules)}.")
    for tenant, amount in report.credits.items():
        click.echo(f"The account of tenant {tenant!r} has {amount:,} credits more.")
    if report.paused and not back:
        before = f"Paused in the source before this, by hand or by an earlier copy: {', '.join(report.paused)}."
        click.echo(f"{before} If it was by hand, pause them in the target, too.")
    _show_left_behind(report)
    for id_, reason in report.refused[:SHOWN]:
        click.echo(f"{id_} was not moved: {reason}")
    if len(report.refused) > SHOWN:
        click.echo(f"... and {len(report.refused) - SHOWN:,} more.")


def _show_left_behind(report: Report) -> None:
    for what, names in (("Tenants", report.tenants), ("Kinds", report.kinds)):
        if names:
            click.echo(f"{what} that are paused in the source and not in the target: {', '.join(names)}.")
    if report.ruled:
        limited = f"Queues whose limits or order are others in the target: {', '.join(report.ruled)}."
        click.echo(f"{limited} What code declares comes with its workers; set the rest there: holdfast limits.")
