"""`holdfast schedules`: what fires when, and the switches for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, require_existing, url_option
from holdfast.cli.target import load, parse
from holdfast.client import views
from holdfast.client.schedules import Schedule, Schedules
from holdfast.domain.schedule import CatchUp


@click.group(no_args_is_help=False)
def schedules() -> None:
    """Look at schedules, add, pause, run and remove them."""


@schedules.command("list")
@json_option
@url_option
def list_schedules(url: str, *, as_json: bool) -> None:
    """List the stored schedules with the times they last fired for and fire next."""
    with _stored(url) as known:
        listed = known.list()
    if as_json:
        show_json([views.schedule(each) for each in listed])
        return
    rows = (
        [each.name, "paused" if each.paused else "", each.kind, _when(each), each.catch_up, each.next_at, each.last_at]
        for each in listed
    )
    columns = ["schedule", "", "kind", "fires", "catch-up", "next", "last"]
    show_table(columns, rows, empty="There are no schedules: none was added, and no worker has stored one.")


@schedules.command("add")
@click.argument("target", metavar="MODULE:APP")
@click.argument("name")
@click.argument("kind")
@click.option("--payload", default="{}", show_default=True, help="The payload of its jobs, as JSON.")
@click.option("--cron", metavar="LINE", help="Fire by a cron line of five fields, as in '0 3 * * *'.")
@click.option("--every", type=float, metavar="SECONDS", help="Fire every so many seconds, from now on.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone that the cron line is read in.")
@click.option(
    "--catch-up",
    type=click.Choice([each.value for each in CatchUp]),
    default=CatchUp.SKIP.value,
    show_default=True,
    help="What is done about times that no worker was there for.",
)
@click.option("--queue", help="The queue of its jobs.")
@click.option("--priority", type=int, help="The priority of its jobs.")
@click.option("--tenant", help="The tenant of its jobs.")
@json_option
def add_schedule(
    target: str,
    name: str,
    kind: str,
    *,
    payload: str,
    cron: str | None,
    every: float | None,
    tz: str,
    catch_up: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Store a schedule NAME that fires jobs of a KIND which the application MODULE:APP knows."""
    app = load(parse(target))
    prepared = app.prepare(kind, payload, **options)
    require_existing(app.url)
    try:
        added = app.schedules.add(name, prepared, cron=cron, every=every, tz=tz, catch_up=catch_up)
    finally:
        app.close()
    _tell(added, f"is added and fires {_next(added)}", as_json=as_json)


@schedules.command("pause")
@click.argument("name")
@json_option
@url_option
def pause_schedule(name: str, url: str, *, as_json: bool) -> None:
    """Fire a schedule no more until it is resumed."""
    with _stored(url) as known:
        paused = known.pause(name)
    _tell(paused, "is paused", as_json=as_json)


@schedules.command("resume")
@click.argument("name")
@json_option
@url_option
def resume_schedule(name: str, url: str, *, as_json: bool) -> None:
    """Fire a paused schedule again, from its next time on."""
    with _stored(url) as known:
        resumed = known.resume(name)
    _tell(resumed, f"fires {_next(resumed)}", as_json=as_json)


@schedules.command("run")
@click.argument("name")
@json_option
@url_option
def run_schedule(name: str, url: str, *, as_json: bool) -> None:
    """Enqueue a schedule's job now; its times stay as they are."""
    with _stored(url) as known:
        job = known.run(name)
        told = {"id": str(job.id), "kind": job.kind, "queue": job.queue, "state": job.state}
    if as_json:
        show_json(told)
    else:
        click.echo(f"{told['id']} is {told['state']} in the queue {told['queue']!r}.")


@schedules.command("remove")
@click.argument("name")
@json_option
@url_option
def remove_schedule(name: str, url: str, *, as_json: bool) -> None:
    """Forget a schedule; the jobs it has fired stay.

    One that is declared in code is back when a worker of that code next starts.
    """
    with _stored(url) as known:
        known.remove(name)
    if as_json:
        show_json({"name": name, "removed": True})
    else:
        click.echo(f"The schedule {name!r} is removed.")


@contextmanager
def _stored(url: str) -> Iterator[Schedules]:
    with opened(url) as app:
        yield app.schedules


def _tell(schedule: Schedule, said: str, *, as_json: bool) -> None:
    if as_json:
        show_json(views.schedule(schedule))
    else:
        click.echo(f"The schedule {schedule.name!r} {said}.")


def _when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {schedule.every.total_seconds():,g} s"
    return f"{schedule.cron} ({schedule.tz})"


def _next(schedule: Schedule) -> str:
    return "never again" if schedule.next_at is None else f"next at {schedule.next_at:%Y-%m-%d %H:%M:%S}Z"
