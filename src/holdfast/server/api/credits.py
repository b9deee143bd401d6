"""`/v1/credits`: the accounts of tenants."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.client import views
from holdfast.client.tokens import Principal
from holdfast.server.answers import AccountAnswer, EntryAnswer, Items
from holdfast.server.problems import Problem, responses
from holdfast.server.security import Chief, Overseer, Reader, record
from holdfast.server.shapes import LARGEST_PAGE, GrantBody
from holdfast.server.surface import reply, surface_of

router = APIRouter(prefix="/v1/credits", tags=["credits"])
Tenant = Annotated[str, Path(min_length=1, max_length=255)]


@router.get("", summary="List accounts", responses={200: {"model": Items[AccountAnswer]}, **responses()})
def list_accounts(request: Request, _principal: Overseer) -> Response:
    """List the accounts of all tenants."""
    return reply({"items": [views.account(each) for each in surface_of(request).app.accounts()]})


@router.post(
    "/{tenant:path}/grant", summary="Grant credits", responses={200: {"model": AccountAnswer}, **responses(402, 404)}
)
def grant(request: Request, principal: Chief, tenant: Tenant, body: GrantBody) -> Response:
    """Give a tenant credits, which opens its account; a negative number takes back what is not in use."""
    account = surface_of(request).app.grant(tenant, body.credits, key=body.key)
    record(request, principal, "credits.grant", tenant, credits=body.credits, key=body.key)
    return reply(views.account(account))


@router.get(
    "/{tenant:path}/ledger",
    summary="List an account's changes",
    responses={200: {"model": Items[EntryAnswer]}, **responses(404)},
)
def ledger(
    request: Request,
    principal: Reader,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="The most changes to give.")] = 100,
) -> Response:
    """List the changes of a tenant's account, newest first."""
    app = surface_of(request).app
    account = app.account(tenant)
    if account is None or not _own(principal, tenant):
        raise _absent(tenant)
    return reply({"items": [views.entry(each) for each in app.ledger(tenant, limit)]})


@router.get("/{tenant:path}", summary="Read an account", responses={200: {"model": AccountAnswer}, **responses(404)})
def read_account(request: Request, principal: Reader, tenant: Tenant) -> Response:
    """Read a tenant's credits. A tenant without an account pays for nothing."""
    account = surface_of(request).app.account(tenant)
    if account is None or not _own(principal, tenant):
        raise _absent(tenant)
    return reply(views.account(account))


def _own(principal: Principal, tenant: str) -> bool:
    return principal.tenant is None or principal.tenant == tenant


def _absent(tenant: str) -> Problem:
    return Problem(404, "account-not-found", f"The tenant {tenant!r} has no account; the first grant opens it.")
