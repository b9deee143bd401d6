"""`holdfast queues`: what waits where, and the switch that holds a queue back."""

from collections.abc import Callable

import click

from holdfast.app import Holdfast
from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.domain.job import State


@click.group(no_args_is_help=False)
def queues() -> None:
    """Look at queues, pause and resume them."""


@queues.command("list")
@json_option
@url_option
def list_queues(url: str, *, as_json: bool) -> None:
    """List queues with the number of their jobs in each state."""
    with opened(url) as app:
        counted = app.counts().queues
        paused = app.paused()
        workers = app.store.workers()
    names = sorted({*counted, *paused, *(name for worker in workers for name in worker.queues or ())})
    serving = {name: sum(worker.queues is None or name in worker.queues for worker in workers) for name in names}
    none = {state.value: 0 for state in State}
    if as_json:
        show_json(
            [
                {"queue": name, "paused": name in paused, "workers": serving[name], "jobs": counted.get(name, none)}
                for name in names
            ]
        )
        return
    rows = (
        [name, "paused" if name in paused else "", serving[name], *counted.get(name, none).values()] for name in names
    )
    show_table(["queue", "", "workers", *none], rows, empty="There are no queues yet: no job was ever stored here.")


@queues.command("pause")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@json_option
@url_option
def pause_queues(names: tuple[str, ...], url: str, *, as_json: bool) -> None:
    """Let no worker claim from these queues; what is running goes on."""
    _switch(names, url, lambda app, name: app.pause(name), paused=True, as_json=as_json)


@queues.command("resume")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@json_option
@url_option
def resume_queues(names: tuple[str, ...], url: str, *, as_json: bool) -> None:
    """Let workers claim from these queues again."""
    _switch(names, url, lambda app, name: app.resume(name), paused=False, as_json=as_json)


def _switch(
    names: tuple[str, ...], url: str, switch: Callable[[Holdfast, str], None], *, paused: bool, as_json: bool
) -> None:
    with opened(url) as app:
        for name in names:
            switch(app, name)
        known = app.counts().queues
    if as_json:
        show_json([{"queue": name, "paused": paused} for name in names])
        return
    for name in names:
        said = "is paused" if paused else "is served again"
        click.echo(f"The queue {name!r} {said}{'' if name in known else ' (it holds no jobs yet)'}.")
