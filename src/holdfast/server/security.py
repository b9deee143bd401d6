"""Who makes a request, and whether they may.

A route says `Annotated[Principal, Depends(needs("read"))]` and is given whoever asks. `every_tenant` is for what cannot
be told apart by tenant: a principal that is bound to one is refused. Tokens travel in the `Authorization` header and
nowhere else.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Annotated, Any

from fastapi import Depends, Request

from holdfast.client.explain import Explanation
from holdfast.client.tokens import SCOPES, Principal
from holdfast.domain.job import JobRecord
from holdfast.server.problems import Problem, within
from holdfast.server.surface import Surface, surface_of

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="holdfast"'}


def local(surface: Surface) -> Principal:
    """Give the principal of a server that asks for no tokens."""
    scopes = ("read",) if surface.read_only else SCOPES
    return Principal("local", "local", frozenset(scopes), None)


async def principal_of(request: Request) -> Principal:
    """Tell who makes a request; raises a problem with status 401 if it brings no valid token and needs one."""
    surface = surface_of(request)
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    given = kind.lower() == "bearer" and bool(secret)
    if not surface.auth:
        return local(surface)  # whoever is on this machine needs no holding back
    found = await surface.app.tokens.acheck(secret.strip()) if given else None
    address = request.client.host if request.client else ""
    wait = surface.rate.take(f"address {address}" if found is None else found.id, time.monotonic())
    if wait:
        detail = f"There are too many requests; wait {wait:.1f} s, or ask for a higher rate."
        raise Problem(429, "too-many-requests", detail, {"Retry-After": str(ceil(wait))})
    if found is not None:
        return found
    if not given:
        detail = "This server asks for a token; send it as 'Authorization: Bearer TOKEN'."
        raise Problem(401, "no-token", detail, _CHALLENGE)
    raise Problem(401, "bad-token", "The token is not valid: unknown, expired or revoked.", _CHALLENGE)


def needs(scope: str, *, every_tenant: bool = False) -> Callable[..., Awaitable[Principal]]:
    """Give a dependency that lets a request through if its principal may do what the scope allows. It is one and not
    several, because the framework takes longer over each than all of this does.
    """

    async def allowed(request: Request) -> Principal:
        principal = await principal_of(request)
        if surface_of(request).read_only and scope != "read":
            raise Problem(403, "read-only", "This server only shows; nothing can be changed through it.")
        if not principal.may(scope):
            raise Problem(403, "scope-missing", f"The token lacks the scope {scope!r} that this takes.")
        if every_tenant and principal.tenant is not None:
            detail = "This concerns every tenant, and the token is bound to one; use a token that is not."
            raise Problem(403, "tenant-bound", detail)
        _expect(request)
        return principal

    return allowed


def _expect(request: Request) -> None:
    """Refuse a parameter that a route does not have, or twice: a misspelt filter would find everything."""
    asked = request.query_params
    if not asked:
        return
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    unknown = sorted(set(asked) - known)
    if unknown:
        takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise Problem(422, "bad-request", f"There is no parameter {unknown[0][:60]!r} here; {takes}.")
    if len(asked.multi_items()) > len(asked):
        raise Problem(422, "bad-request", "A parameter is given more than once; give it once.")


Reader = Annotated[Principal, Depends(needs("read"))]
Enqueuer = Annotated[Principal, Depends(needs("enqueue"))]
Worker = Annotated[Principal, Depends(needs("work"))]
Operator = Annotated[Principal, Depends(needs("operate"))]
Overseer = Annotated[Principal, Depends(needs("read", every_tenant=True))]
"""Whoever may read what concerns every tenant."""
Chief = Annotated[Principal, Depends(needs("operate", every_tenant=True))]
"""Whoever may do what concerns every tenant."""
Admin = Annotated[Principal, Depends(needs("admin", every_tenant=True))]


def seen(principal: Principal, id_: str, job: JobRecord | None) -> JobRecord:
    """Give a job if the principal may see it."""
    return within(principal.tenant, id_, job)


def shielded(principal: Principal, why: Explanation) -> Explanation:
    """Give what the principal may know of a reason: how many others wait is not one tenant's to know."""
    if principal.tenant is None or why.reason != "waiting":
        return why
    return Explanation(why.reason, "It is due and waits its turn.", {})


def own_tenant(principal: Principal, asked: str | None) -> str | None:
    """Give the tenant that a request is about: the one asked for, or the one that the principal is bound to."""
    if principal.tenant is None:
        return asked
    if asked is not None and asked != principal.tenant:
        raise Problem(403, "foreign-tenant", "The token is bound to another tenant than the one asked for.")
    return principal.tenant


def record(request: Request, principal: Principal, what: str, target: str, **detail: Any) -> None:
    """Write down who did what. Blocks; an action that cannot be written down is not acknowledged."""
    given: Mapping[str, Any] = {name: value for name, value in detail.items() if value is not None}
    surface_of(request).app.trail.record(f"{principal.name} ({principal.id})", what, target, principal.tenant, given)
