"""`holdfast dead`: the dead letters, and running them again."""

import sys

import click

from holdfast.app import Holdfast
from holdfast.cli.errors import FAILURE
from holdfast.cli.jobs import Filters, filter_options, found, limit_option, payload_option
from holdfast.cli.output import plural, progress, show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.client.operator import LARGEST_PAGE
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import to_datetime


@click.group(no_args_is_help=False)
def dead() -> None:
    """Look at dead jobs and run them again."""


@dead.command("list")
@filter_options
@limit_option
@payload_option
@json_option
@url_option
def list_dead(url: str, *, as_json: bool, payload: bool, limit: int, **filters: str | None) -> None:
    """List dead jobs with what they died of, newest first."""
    with opened(url) as app:
        listed = [job.record for job in found(app, limit, state=State.DEAD.value, **filters)]
    if as_json:
        show_json([views.job(record, payload=payload) for record in listed])
        return
    columns = ["id", "kind", "queue", "cause", "code", "attempt", "died", "message", *(["payload"] if payload else [])]
    rows = ([*_row(record), *([record.payload] if payload else [])] for record in listed)
    show_table(columns, rows, empty="There are no such dead jobs.")


def _row(record: JobRecord) -> list[object]:
    attempt = f"{record.attempt}/{record.max_attempts}"
    died = to_datetime(record.finished_at or record.updated_at)
    code, message = record.failure_code, record.failure_message
    return [record.id, record.kind, record.queue, record.cause, code, attempt, died, message]


@dead.command("redrive")
@filter_options
@click.option("--all", "everything", is_flag=True, help="Redrive every dead job; needed if nothing else is chosen.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
def redrive_dead(url: str, *, everything: bool, yes: bool, as_json: bool, **filters: str | None) -> None:
    """Run the dead jobs that a filter chooses again, each as a new generation."""
    chosen = any(value is not None for value in filters.values())
    if chosen == everything:
        said = "Choose either --all or a filter, not both." if chosen else "Choose jobs by a filter, or all with --all."
        raise click.UsageError(said, click.get_current_context())
    with opened(url) as app:
        number = _count(app, filters)
        if number and not yes:
            _confirm(number)
        done = _redrive(app, filters, number)
    if as_json:
        show_json({"redriven": done})
    else:
        click.echo(f"{plural(done, 'job')} redriven." if number else "There are no such dead jobs.")


def _count(app: Holdfast, filters: Filters) -> int:
    if all(value is None for value in filters.values()):
        return app.counts()[State.DEAD]
    return sum(1 for _ in found(app, sys.maxsize, state=State.DEAD.value, **filters))


def _confirm(number: int) -> None:
    """Ask whoever sits at the terminal; a script that says nothing has chosen already."""
    try:
        agreed = click.confirm(f"Redrive {plural(number, 'dead job')}?", err=True)
    except click.Abort as abort:
        if sys.stdin.isatty() or isinstance(abort.__context__, KeyboardInterrupt):
            raise
        click.echo(err=True)
        return
    if not agreed:
        click.echo("Nothing was redriven.", err=True)
        raise click.exceptions.Exit(FAILURE)


def _redrive(app: Holdfast, filters: Filters, number: int) -> int:
    """Redrive page by page, never more than were counted: a job may die again while we are at it."""
    done = 0
    with progress("redriving", number) as advance:
        while done < number:
            page = app.redrive(**filters, limit=min(LARGEST_PAGE, number - done))
            if not page:
                break
            done += page
            advance(page)
    return done
