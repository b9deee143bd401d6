"""`holdfast server`: the HTTP API and the dashboard, until it is told to stop."""

import sys
from typing import TYPE_CHECKING

import click

from holdfast.app import DEFAULT_URL, Holdfast
from holdfast.cli.store import masked
from holdfast.cli.target import load, parse
from holdfast.cli.worker import LEVELS, Start, set_up_logging
from holdfast.runtime.service import patiently
from holdfast.runtime.signals import stopping_by_signal
from holdfast.server import Limits, serve

if TYPE_CHECKING:
    from holdfast.server.serving import Serving

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080
_TURN = 0.2


@click.command("server")
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option(
    "--url",
    envvar="HOLDFAST_URL",
    show_envvar=True,
    help=f"The store, if no application is named.  [default: {DEFAULT_URL}]",
)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Whether to ask for tokens; by default everywhere but on this machine's own addresses.",
)
@click.option("--any-kind", is_flag=True, help="Take jobs of kinds that the application does not know, too.")
@click.option("--read-only", is_flag=True, help="Show everything, and let nothing be changed.")
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Whether to serve the dashboard.")
@click.option("--root-path", default="", help="The path that a proxy serves this under, as in /jobs.")
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    default=500.0,
    show_default=True,
    help="The requests per second that one token may make in the long run.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log.")
@click.option("--log-json", is_flag=True, help="Log a JSON object per line.")
def server(
    target: str | None,
    url: str | None,
    host: str,
    port: int,
    *,
    auth: bool | None,
    any_kind: bool,
    read_only: bool,
    dashboard: bool,
    root_path: str,
    rate: float,
    log_level: str,
    log_json: bool,
) -> None:
    """Serve jobs over HTTP: the API under /v1, described in /openapi.json, and the dashboard at /.

    With MODULE:APP, jobs are validated by that application, and other kinds are refused. Without, jobs of any kind are
    taken, for workers in any language. Listens on this machine alone unless told otherwise, and then asks for tokens.
    """
    app = Holdfast(url) if target is None else load(parse(target))
    set_up_logging(log_level, app, as_json=log_json)
    app.instrument(metrics=True)
    start = Start()
    with stopping_by_signal(start.stop):
        start.open(lambda: patiently(lambda: app.store))
        serving = serve(
            app,
            host,
            port,
            auth=auth,
            dashboard=dashboard,
            any_kind=any_kind or None,
            read_only=read_only,
            root_path=root_path,
            limits=Limits(rate=rate, burst=2 * rate),
        )
        start.hand_over(serving.stop)
        told(serving, app)
        while not serving.join(_TURN):
            pass
    app.close()


def told(serving: "Serving", app: Holdfast) -> None:
    """Say where a server is and whom it serves."""
    who = "whoever has a token" if serving.auth else "whoever is on this machine"
    click.echo(f"server at {serving.address} serves {masked(app.url)} to {who}")
    sys.stdout.flush()
