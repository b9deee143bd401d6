"""`holdfast limits`: how fast queues are served and how much of them at once, changed while work goes on."""

from functools import reduce
from typing import Any

import click

from holdfast.cli.output import show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.client.limits import Limited
from holdfast.domain.errors import BadInput
from holdfast.domain.limits import FULL, ORDERS, PER, Rule, checked, ordered
from holdfast.domain.moments import Micros, duration

_MOST_USES = 10


@click.group(no_args_is_help=False)
def limits() -> None:
    """Look at limits and orders of queues, set and remove them."""


@limits.command("list")
@json_option
@url_option
def list_limits(url: str, *, as_json: bool) -> None:
    """List the limits with what is in use of them, and the queues that are not served by priority alone."""
    with opened(url) as app:
        listed, queues = app.limits(), app.limits.queues()
    if as_json:
        show_json(
            {"limits": [views.limited(each) for each in listed], "queues": [views.ordered(each) for each in queues]}
        )
        return
    rows = ([each.queue, _asked(each), each.per, each.full, _used(each)] for each in listed)
    show_table(["queue", "limit", "per", "when full", "in use"], rows, empty="There are no limits.")
    for each in queues:
        weights = ", ".join(f"{tenant} {weight}" for tenant, weight in sorted(each.weights.items()))
        aging = "" if each.aging is None else f", aging {each.aging.total_seconds():g} s"
        click.echo(f"The queue {each.queue!r}: {each.order}{f' ({weights})' if weights else ''}{aging}.")


@limits.command("set")
@click.argument("queue")
@click.option("--rate", metavar="N/UNIT", help="How fast jobs may start, as in 100/min, 5/s or 1/10min.")
@click.option("--burst", type=int, help="How many may start at once after a quiet time; 1 if not given.")
@click.option("--concurrency", type=int, help="How many jobs may run at once.")
@click.option("--per", type=click.Choice(PER), default="queue", show_default=True, help="Whose limit it is.")
@click.option("--full", type=click.Choice(FULL), default="wait", show_default=True, help="What becomes of the rest.")
@click.option("--order", type=click.Choice(ORDERS), help="In which order the queue is served.")
@click.option("--weight", "weights", metavar="TENANT=N", multiple=True, help="A tenant's share of a fair queue.")
@click.option("--aging", type=float, metavar="SECONDS", help="Jobs that waited for so long go before all others.")
@json_option
@url_option
def set_limit(
    queue: str,
    url: str,
    *,
    rate: str | None,
    burst: int | None,
    concurrency: int | None,
    per: str,
    full: str,
    order: str | None,
    weights: tuple[str, ...],
    aging: float | None,
    as_json: bool,
) -> None:
    """Limit QUEUE (or all queues: '*'), or say in which order it is served; workers follow within a second."""
    ordering = order is not None or aging is not None or bool(weights)
    limiting = any(value is not None for value in (rate, concurrency, burst)) or full != "wait"
    if not (ordering or limiting):
        msg = "Say what to set: --rate, --concurrency, --order, --weight or --aging."
        raise BadInput(msg)
    asked = checked(rate=rate, burst=burst, concurrency=concurrency, per=per, full=full) if limiting else []
    weighed, aged = _weights(weights), None if aging is None else duration(aging, "aging")

    def change(rule: Rule) -> Rule:
        return reduce(Rule.limited, asked, _reordered(rule, order, weighed, aged) if ordering else rule)

    with opened(url) as app:
        app.limits.change(queue, change)
        listed = [each for each in app.limits() if each.queue == queue]
        fair = any(each.queue == queue and each.order == "fair" for each in app.limits.queues())
    if as_json:
        show_json([views.limited(each) for each in listed])
        return
    if limiting:
        click.echo(f"The queue {queue!r} has {'; '.join(_told(each) for each in listed)}.")
    if ordering:
        click.echo(f"The queue {queue!r} is served {'tenant by tenant' if fair else 'by priority'}.")


def _reordered(rule: Rule, order: str | None, weights: dict[str, int], aging: Micros | None) -> Rule:
    """Change what was given of an order, and leave the rest of it as it is."""
    wanted = order or ("fair" if weights else rule.order)
    kept = rule.weights if wanted == "fair" else {}
    return ordered(rule, wanted, {**kept, **weights}, rule.aging if aging is None else aging)


@limits.command("remove")
@click.argument("queue")
@click.option("--per", type=click.Choice(PER), help="Only limits that are per this.")
@click.option("--rate", "what", flag_value="rate", help="Only rates.")
@click.option("--concurrency", "what", flag_value="concurrency", help="Only limits of jobs at once.")
@click.option("--order", is_flag=True, help="Its order as well: by priority again, without aging.")
@json_option
@url_option
def remove_limit(queue: str, url: str, *, per: str | None, what: str | None, order: bool, as_json: bool) -> None:
    """Take the limits of QUEUE away; what code declares comes back once it declares something else."""
    with opened(url) as app:
        removed = app.limits.remove(queue, per=per, what=what)
        ordered = order and any(each.queue == queue for each in app.limits.queues())
        if ordered:
            app.limits.order(queue)
        kept = "; ".join(_told(each) for each in app.limits() if each.queue == queue)
    if not removed and not ordered:
        msg = f"The queue {queue!r} has no such limit."
        raise BadInput(msg)
    if as_json:
        show_json({"queue": queue, "removed": True})
        return
    free = "it" if kept and removed else "its limits" if removed else "its order"
    click.echo(f"The queue {queue!r} is free of {free}{f'; it keeps {kept}' if kept else ''}.")


def _weights(given: tuple[str, ...]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for one in given:
        tenant, _, number = one.rpartition("=")
        if not number.isdecimal():
            msg = f"A weight is written TENANT=N, as in acme=3; {one!r} is not."
            raise BadInput(msg)
        weights[tenant] = int(number)
    return weights


def _told(limit: Limited) -> str:
    return f"{_asked(limit)} per {limit.per}"


def _asked(limit: Limited) -> str:
    if limit.rate is None:
        return f"{limit.concurrency} at once"
    return limit.rate if limit.burst == 1 else f"{limit.rate}, burst {limit.burst}"


def _used(limit: Limited) -> str:
    shown = [_use(limit, use) for use in limit.uses[:_MOST_USES]]
    return "; ".join([*shown, *(["…"] if len(limit.uses) > _MOST_USES else [])])


def _use(limit: Limited, use: Any) -> str:
    who = " ".join(part for part in (use.tenant, use.key) if part)
    number = f"{use.running} running" if limit.rate is None else f"{use.tokens} to go"
    return f"{who}: {number}" if who else number
