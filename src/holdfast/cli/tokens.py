"""`holdfast tokens`: who may come in through a server."""

import getpass
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.output import show_json, show_table
from holdfast.cli.span import span
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.client.tokens import REMEMBERED, SCOPES, TokenRecord
from holdfast.domain.moments import Micros, to_datetime

_ONCE = "It is shown this once: keep it where only its holder can read it."


@click.group(no_args_is_help=False)
def tokens() -> None:
    """Make tokens for a server, look at them, revoke and rotate them."""


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What it allows; may be given several times."
)
@click.option("--tenant", help="The only tenant it is good for; without this, all are.")
@click.option("--expires", callback=span, metavar="SPAN", help="When it ends, as in 30d; without this, never.")
@json_option
@url_option
def create_token(
    name: str, scopes: tuple[str, ...], tenant: str | None, expires: timedelta | None, url: str, *, as_json: bool
) -> None:
    """Make a token called NAME and print it: this once, because only its hash is stored."""
    with opened(url) as app:
        secret, record = app.tokens.create(name, scopes, tenant, expires)
        _note(app, "token.create", record, scopes=list(record.scopes), tenant=record.tenant)
        now = app.store.now()
    if as_json:
        show_json({**views.token(record, now), "token": secret})
        return
    click.echo(secret)
    ends = "does not expire" if record.expires_at is None else f"expires {_at(record.expires_at)}"
    said = f"The token {record.id} allows {', '.join(record.scopes)} for {_whose(record)} and {ends}."
    click.echo(f"{said} {_ONCE}", err=True)


@tokens.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that were revoked or have expired of late.")
@json_option
@url_option
def list_tokens(url: str, *, ended: bool, as_json: bool) -> None:
    """List tokens, oldest first; their secrets are not stored and cannot be shown."""
    with opened(url) as app:
        found, now = app.tokens.list(ended=ended), app.store.now()
    if as_json:
        show_json([views.token(each, now) for each in found])
        return
    rows = (
        [
            *(each.id, each.name, each.state(now), " ".join(each.scopes), _whose(each)),
            *(_when(each.created_at), _when(each.expires_at)),
        ]
        for each in found
    )
    columns = ["token", "name", "state", "scopes", "tenant", "created", "expires"]
    show_table(columns, rows, empty="There are no tokens; make one with: holdfast tokens create NAME --scope read.")


@tokens.command("revoke")
@click.argument("id_", metavar="ID")
@json_option
@url_option
def revoke_token(id_: str, url: str, *, as_json: bool) -> None:
    """Let nobody in with a token any more."""
    with opened(url) as app:
        record = app.tokens.revoke(id_)
        _note(app, "token.revoke", record)
        now = app.store.now()
    if as_json:
        show_json(views.token(record, now))
    else:
        click.echo(f"The token {record.id} is revoked; servers refuse it within {REMEMBERED:g} seconds.")


@tokens.command("rotate")
@click.argument("id_", metavar="ID")
@click.option(
    "--grace",
    callback=span,
    metavar="SPAN",
    default="0s",
    show_default=True,
    help="How long the old secret is still good.",
)
@json_option
@url_option
def rotate_token(id_: str, grace: timedelta, url: str, *, as_json: bool) -> None:
    """Give a token another secret, and print that: this once."""
    with opened(url) as app:
        secret = app.tokens.rotate(id_, grace)
        record = app.tokens.get(id_)
        _note(app, "token.rotate", record, grace=grace.total_seconds())
        now = app.store.now()
    if as_json:
        show_json({**views.token(record, now), "token": secret})
        return
    click.echo(secret)
    old = f"the old one is good until {_at(now + grace // timedelta(microseconds=1))}" if grace else "the old one ended"
    click.echo(f"The token {record.id} has this secret now, and {old}. {_ONCE}", err=True)


def _note(app: Holdfast, what: str, record: TokenRecord, **detail: Any) -> None:
    """Write down who did this; the command line knows people by their accounts on this machine."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):
        who = "somebody"
    app.trail.record(f"{who} (command line)", what, record.id, None, {"name": record.name, **detail})


def _whose(record: TokenRecord) -> str:
    if record.tenant is None:
        return "all tenants"
    return f"tenant {record.tenant!r}" if record.tenant else "jobs without a tenant"


def _when(at: Micros | None) -> object:
    return None if at is None else to_datetime(at)


def _at(at: Micros) -> str:
    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S}Z"
