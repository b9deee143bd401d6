"""`holdfast queues`: what waits where, and the switch that holds a queue back."""

import click

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
        paused, tenants, kinds = app.pauses()
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
    for what, held in (("tenants", tenants), ("kinds", kinds)):
        if held:
            click.echo(f"Paused {what}: {', '.join(sorted(held))}.")


_names = click.argument("names", metavar="[QUEUE]...", nargs=-1)
_tenants = click.option("--tenant", "tenants", multiple=True, help="Instead, all jobs of this tenant.")
_kinds = click.option("--kind", "kinds", multiple=True, help="Instead, all jobs of this kind.")


@queues.command("pause")
@_names
@_tenants
@_kinds
@json_option
@url_option
def pause_queues(
    names: tuple[str, ...], tenants: tuple[str, ...], kinds: tuple[str, ...], url: str, *, as_json: bool
) -> None:
    """Let no worker claim from these queues, or jobs of these tenants or kinds; what is running goes on."""
    _switch({"queue": names, "tenant": tenants, "kind": kinds}, url, paused=True, as_json=as_json)


@queues.command("resume")
@_names
@_tenants
@_kinds
@json_option
@url_option
def resume_queues(
    names: tuple[str, ...], tenants: tuple[str, ...], kinds: tuple[str, ...], url: str, *, as_json: bool
) -> None:
    """Let workers claim from these queues again, or jobs of these tenants or kinds."""
    _switch({"queue": names, "tenant": tenants, "kind": kinds}, url, paused=False, as_json=as_json)


def _switch(named: dict[str, tuple[str, ...]], url: str, *, paused: bool, as_json: bool) -> None:
    every = [(what, name) for what, names in named.items() for name in names]
    if not every:
        msg = "Name a queue, or give --tenant or --kind."
        raise click.UsageError(msg)
    with opened(url) as app:
        for what, name in every:
            (app.pause if paused else app.resume)(**{what: name})
        known = app.counts().queues
    if as_json:
        show_json([{what: name, "paused": paused} for what, name in every])
        return
    for what, name in every:
        said = "is paused" if paused else "is served again"
        empty = what == "queue" and name not in known
        click.echo(f"The {what} {name!r} {said}{' (it holds no jobs yet)' if empty else ''}.")
