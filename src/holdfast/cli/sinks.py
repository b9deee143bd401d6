"""`holdfast sinks`: where events go, and how far they have got."""

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client.sinks.shape import INTERNAL
from holdfast.domain.errors import BadInput

_PAGE = 1_000


@click.group(no_args_is_help=False)
def sinks() -> None:
    """Look at the sinks that events are kept for."""


@sinks.command("list")
@json_option
@url_option
def list_sinks(url: str, *, as_json: bool) -> None:
    """List the sinks and how many events each has yet to be given (counted up to 1,000)."""
    with opened(url) as app:
        found = [
            {"name": name, "position": position, "behind": len(app.store.events(position, _PAGE))}
            for name, position in sorted(app.store.sinks().items())
            if not name.startswith(INTERNAL)
        ]
    if as_json:
        show_json(found)
        return
    rows = ([one["name"], one["position"], one["behind"]] for one in found)
    show_table(["name", "position", "behind"], rows, empty="No sink is known, so no events are kept.")


@sinks.command("remove")
@click.argument("name")
@url_option
def remove(name: str, url: str) -> None:
    """Forget a sink that no worker declares any more, so that events are no longer kept for it."""
    with opened(url) as app:
        if name not in app.store.sinks() or name.startswith(INTERNAL):
            msg = f"There is no sink {name!r}; see: holdfast sinks list."
            raise BadInput(msg)
        app.store.remove_sink(name)
    click.echo(f"The sink {name!r} is forgotten; a worker that declares it again starts it anew.")
