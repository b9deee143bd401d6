"""The HTTP server: Holdfast for programs in any language, and for people at a browser.

`asgi(app)` gives an ASGI application that can be mounted in another one; `serve(app)` runs it, as `holdfast server`
does. Nothing here decides anything about jobs: every route is a thin way to the client, and the store guards every
write.
"""

import ipaddress
from typing import TYPE_CHECKING

from holdfast.app import Holdfast
from holdfast.domain.errors import BadInput
from holdfast.server.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from holdfast.server.serving import Serving

__all__ = ["Limits", "asgi", "serve"]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names that a server on this machine goes by."""


def asgi(
    app: Holdfast,
    *,
    auth: bool = True,
    dashboard: bool = True,
    any_kind: bool | None = None,
    read_only: bool = False,
    hosts: tuple[str, ...] | None = None,
    limits: Limits | None = None,
) -> "FastAPI":
    """Make an ASGI application that serves an application's jobs.

    `auth` asks for bearer tokens (see `app.tokens`); without it whoever can reach the server may do everything.
    `any_kind` takes jobs of kinds that `app` does not know; by default only if it knows none. `read_only` refuses all
    that would change something. `hosts` are the names that a request may call this server by; any, if not given.
    """
    try:
        from holdfast.server.application import build
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return build(
        app,
        auth=auth,
        dashboard=dashboard,
        any_kind=not len(app.registry) if any_kind is None else any_kind,
        read_only=read_only,
        hosts=hosts,
        limits=limits or Limits(),
    )


def serve(
    app: Holdfast,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    auth: bool | None = None,
    dashboard: bool = True,
    any_kind: bool | None = None,
    read_only: bool = False,
    upkeep: bool = True,
    root_path: str = "",
    limits: Limits | None = None,
) -> "Serving":
    """Start a server on a thread of this process; `stop()` and `join()` end it. Port 0 takes a free one.

    Tokens are asked for everywhere but on this machine's own addresses, unless `auth` says otherwise; without tokens no
    other address is listened on. `upkeep` takes back what workers lost and fires schedules, as every worker does; one
    server or worker of a store does so at a time.
    """
    try:
        from holdfast.server.serving import Serving, upkeep_of
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    wanted = _auth(app, host, auth)
    hosts = None if wanted else (*_LOOPBACK, host)
    served = asgi(
        app, auth=wanted, dashboard=dashboard, any_kind=any_kind, read_only=read_only, hosts=hosts, limits=limits
    )
    kept = upkeep_of(app) if upkeep and not read_only else None
    serving = Serving(served, host, port, auth=wanted, root_path=root_path, upkeep=kept)
    serving.start()
    return serving


def _auth(app: Holdfast, host: str, asked: bool | None) -> bool:  # noqa: FBT001 - an option as it was given
    """Decide whether to ask for tokens; refuse what would leave jobs open to a network, or closed to everybody."""
    here = _is_loopback(host)
    if asked is False and not here:
        msg = f"Without tokens a server listens on this machine alone; ask for tokens, or do not listen on {host}."
        raise BadInput(msg)
    wanted = not here if asked is None else asked
    if wanted and not app.tokens.list():
        msg = (
            "There is no token yet that would let anybody in; make one with: holdfast tokens create NAME --scope read."
        )
        raise BadInput(msg)
    return wanted


def _is_loopback(host: str) -> bool:
    """Tell whether a server that listens there can only be reached from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _not_installed(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] == "holdfast":
        return error
    return BadInput(f"The server needs {error.name}; install what it takes with: pip install 'holdfast[server]'.")
