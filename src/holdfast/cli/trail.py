"""`holdfast trail`: what was done to a store through a server or the command line."""

import json

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.client.trail import LARGEST_PAGE
from holdfast.domain.moments import to_datetime


@click.group(no_args_is_help=False)
def trail() -> None:
    """Look at who did what."""


@trail.command("list")
@click.option(
    "-n", "--limit", type=click.IntRange(1, LARGEST_PAGE), default=50, show_default=True, help="The most entries."
)
@click.option("--before", metavar="ID", help="Go on after the entry with this id, the last one of the page before.")
@json_option
@url_option
def list_deeds(limit: int, before: str | None, url: str, *, as_json: bool) -> None:
    """List what operators did in the last 90 days, newest first."""
    with opened(url) as app:
        deeds = app.trail.list(limit, before)
    if as_json:
        show_json([views.deed(each) for each in deeds])
        return
    rows = (
        [
            to_datetime(each.at),
            each.who,
            each.what,
            each.target,
            json.dumps(each.detail) if each.detail else "",
            each.id,
        ]
        for each in deeds
    )
    columns = ["at", "who", "what", "target", "detail", "id"]
    show_table(columns, rows, empty="Nothing is on the trail.")
