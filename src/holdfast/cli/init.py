"""`holdfast init`: bring about what a store needs from somebody else, or see what it lacks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import FAILURE
from holdfast.cli.output import plural, show_json
from holdfast.cli.store import json_option
from holdfast.domain.errors import BadInput, StoreUnusable

if TYPE_CHECKING:
    from holdfast.aws.desired import Difference, Resource, Wish


@click.group("init", no_args_is_help=False)
def init() -> None:
    """Bring about what a store needs, or see what it lacks."""


@init.command("aws")
@click.option("--table", required=True, help="The table of the jobs.")
@click.option("--queue", help="The queue of their messages (layout contract).")
@click.option("--dlq", help="Its dead-letter queue; without it, named after the queue.")
@click.option(
    "--layout",
    type=click.Choice(["contract", "scheduled"]),
    default="contract",
    show_default=True,
    help="contract for dynamodb+sqs://TABLE/QUEUE, scheduled for dynamodb://TABLE.",
)
@click.option(
    "--alarm-topic",
    metavar="ARN|NAME",
    default="holdfast-alerts",
    show_default=True,
    help="The topic that is told of dead letters: an ARN of your own, or a name to be made.",
)
@click.option(
    "--visibility",
    type=click.IntRange(0, 43_200),
    default=60,
    show_default=True,
    help="Seconds that a message is hidden; for Lambda six times the function's timeout.",
)
@click.option(
    "--max-receives",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="So often a message is received before SQS takes it for dead.",
)
@click.option("--policies/--no-policies", default=True, show_default=True, help="With or without the IAM policies.")
@click.option("--region", help="The region; else the one in your AWS settings.")
@click.option("--endpoint", metavar="URL", help="Where AWS is, if it is an emulator.")
@click.option("--apply", is_flag=True, help="Make and change what differs; without it nothing is changed.")
@json_option
def aws(
    *,
    table: str,
    queue: str | None,
    dlq: str | None,
    layout: str,
    alarm_topic: str,
    visibility: int,
    max_receives: int,
    policies: bool,
    region: str | None,
    endpoint: str | None,
    apply: bool,
    as_json: bool,
) -> None:
    """Compare an AWS account with what the store needs; with --apply, bring it about.

    Tables with their indexes, the queue with its dead-letter queue, the alarm on its depth with a topic, and policies
    for workers, enqueuers and operators. Prints one line for each difference. Ends with 0 if there is none, or none is
    left, and with 1 otherwise. Nothing is removed, but the oldest version of a policy that has as many as it may.
    """
    try:
        from holdfast.aws.desired import Layout, Wish, checked
    except ModuleNotFoundError as error:
        msg = f"AWS needs {error.name}; install it with: pip install 'holdfast[aws]'."
        raise BadInput(msg) from error
    wish = checked(
        Wish(Layout(layout), table, queue, dlq, alarm_topic, visibility, max_receives, policies),
    )
    _run(wish, region, endpoint, apply=apply, as_json=as_json)


def _run(wish: "Wish", region: str | None, endpoint: str | None, *, apply: bool, as_json: bool) -> None:
    from holdfast.aws import found
    from holdfast.aws.calls import Calls
    from holdfast.aws.desired import desired, differences, tables

    calls = Calls(region, endpoint)
    account = calls.account()
    url = _opened(wish, account.region, endpoint)
    resources = desired(wish, account)
    different = {one.arn: differences(one, found.look(calls, one)) for one in resources}
    every = [each for some in different.values() for each in some]
    stuck = [each for each in every if each.stuck]
    if not as_json:
        for line in _lines(resources, different):
            click.echo(line)
    if apply and stuck:
        raise StoreUnusable(_refusal(stuck[0]))
    if apply:
        for one in resources:
            if different[one.arn]:
                found.mend(calls, one, different[one.arn], tables(wish).get(one.name))
    if as_json:
        about = {"account": account.number, "region": account.region, "url": url}
        show_json({**about, "differences": [_as_json(each) for each in every], "applied": apply and bool(every)})
    else:
        click.echo(_summary(url, len(every), applied=apply))
    if every and not apply:
        raise click.exceptions.Exit(FAILURE)


def _lines(resources: "list[Resource]", different: "dict[str, list[Difference]]") -> Iterator[str]:
    """Say of each thing how it differs: `+` it is missing, `~` it can be changed, `!` it cannot, `=` it is right."""
    for resource in resources:
        what = f"{resource.kind} {resource.name}"
        if not different[resource.arn]:
            yield f"= {what}"
        for each in different[resource.arn]:
            if each.setting is None:
                yield f"+ {what}"
                yield from (f"    {name}: {_shown(value)}" for name, value in resource.settings.items())
            elif each.stuck:
                yield f"! {what}: {each.setting} is {_shown(each.have)}, not {_shown(each.want)}; {each.stuck}"
            else:
                yield f"~ {what}: {each.setting} is {_shown(each.have)}, not {_shown(each.want)}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return "on" if value else "off"
        case {"Statement": statements}:
            return f"one that allows {plural(sum(len(one.get('Action', ())) for one in statements), 'action')}"
        case {"key": key, "projects": projects}:
            return f"{', '.join(key)} with {', '.join(projects) or 'keys only'}"
        case dict():
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _refusal(each: "Difference") -> str:
    kind, name = each.resource.kind, each.resource.name
    return (
        f"The {kind} {name!r} has {each.setting} {_shown(each.have)}, not {_shown(each.want)}, and {each.stuck}; "
        "nothing was changed."
    )


def _opened(wish: "Wish", region: str, endpoint: str | None) -> str:
    """Give the URL of the store with the place where it is: another process may have other AWS settings."""
    place = f"region={region}" if endpoint is None else f"region={region}&endpoint={endpoint}"
    return f"{wish.url}{'&' if '?' in wish.url else '?'}{place}"


def _summary(url: str, number: int, *, applied: bool) -> str:
    if not number:
        return f"Nothing differs; the store is {url}."
    if applied:
        return f"{plural(number, 'difference')} mended; the store is {url}."
    return f"{plural(number, 'difference')}; nothing was changed. To mend: the same command with --apply."


def _as_json(each: "Difference") -> dict[str, Any]:
    resource = each.resource
    want = dict(resource.settings) if each.setting is None else each.want
    return {
        "kind": resource.kind,
        "name": resource.name,
        "setting": each.setting,
        "have": each.have,
        "want": want,
        "stuck": each.stuck,
    }
