"""`holdfast credits`: the accounts of tenants."""

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.domain.moments import to_datetime


@click.group(no_args_is_help=False)
def credits() -> None:  # noqa: A001 - the account's own word
    """Look at tenants' credits and grant them."""


@credits.command("list")
@json_option
@url_option
def list_accounts(url: str, *, as_json: bool) -> None:
    """List the accounts of all tenants that have one."""
    with opened(url) as app:
        accounts = app.accounts()
    if as_json:
        show_json([views.account(each) for each in accounts])
        return
    rows = ([each.tenant, each.granted, each.reserved, each.spent, each.available] for each in accounts)
    columns = ["tenant", "granted", "reserved", "spent", "available"]
    show_table(
        columns, rows, empty="No tenant has an account, so jobs cost nothing; open one with: holdfast credits grant."
    )


@credits.command("grant", context_settings={"ignore_unknown_options": True})
@click.argument("tenant")
@click.argument("amount", type=int)
@click.option("--key", help="A grant with the same key counts once.")
@json_option
@url_option
def grant(tenant: str, amount: int, key: str | None, url: str, *, as_json: bool) -> None:
    """Give a tenant credits, which opens its account; a negative number takes back what is to spare."""
    with opened(url) as app:
        account = app.grant(tenant, amount, key=key)
    if as_json:
        show_json(views.account(account))
        return
    click.echo(f"The account of {tenant!r} has {account.available} credits to spare of {account.granted} granted.")


@credits.command("ledger")
@click.argument("tenant")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most entries.")
@json_option
@url_option
def ledger(tenant: str, limit: int, url: str, *, as_json: bool) -> None:
    """List the changes of an account, newest first."""
    with opened(url) as app:
        entries = app.ledger(tenant, limit)
    if as_json:
        show_json([views.entry(each) for each in entries])
        return
    rows = (
        [to_datetime(each.at), each.verb, each.granted, each.reserved, each.spent, each.job_id, each.step]
        for each in entries
    )
    columns = ["at", "verb", "granted", "reserved", "spent", "job", "step"]
    show_table(columns, rows, empty=f"The tenant {tenant!r} has no account.")
