"""Who sits at the browser, and whether what it sends was sent on purpose.

A visitor pastes a token once; from then on a cookie stands for it, of which the store keeps only a digest, with the
token's id. A token that is revoked or expires ends its sessions. A server that asks for no tokens gives everybody who
reaches it a cookie as well, because forms need one: each form carries a word that is made from the cookie, and a page
of another site can neither read nor guess it.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Form, Request, Response

from holdfast.client.tokens import Principal
from holdfast.domain.moments import HOUR
from holdfast.port.store import Page
from holdfast.server.dashboard.rendering import links_of
from holdfast.server.problems import Problem
from holdfast.server.security import local
from holdfast.server.surface import Surface, surface_of

COOKIE = "holdfast_session"
NOTICE = "holdfast_notice"
BOOK = "session"
LASTS = 12 * HOUR
_SHORTEST = 32
_NOTICE_LASTS = 60


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever looks at a page."""

    principal: Principal
    word: str
    """What its forms must carry."""
    cookie: str
    fresh: bool
    """The cookie was made for this answer, and must be sent with it."""
    leaves: bool
    """There is something to log out of."""

    @property
    def operates(self) -> bool:
        """Tell whether it may change anything."""
        return self.principal.may("operate")

    @property
    def tenant(self) -> str | None:
        """The only tenant it may see; None for all."""
        return self.principal.tenant


async def visitor_of(request: Request) -> Visitor:
    """Tell who looks; raises a problem with status 401 for a stranger."""
    surface = surface_of(request)
    cookie = cookie_of(request)
    if surface.auth:
        principal = None if cookie is None else await asyncio.to_thread(_session, surface, cookie)
        if principal is None or cookie is None:
            raise Problem(401, "no-session", "Log in to see this page.")
        if not principal.may("read"):
            raise Problem(403, "scope-missing", "The token lacks the scope 'read' that the dashboard takes.")
        if surface.read_only:
            principal = replace(principal, scopes=frozenset({"read"}))
        return Visitor(principal, word_of(cookie), cookie, fresh=False, leaves=True)
    made = cookie or new_cookie()
    return Visitor(local(surface), word_of(made), made, fresh=cookie is None, leaves=False)


Looker = Annotated[Visitor, Depends(visitor_of)]


async def overseer_of(visitor: Looker) -> Visitor:
    """Let through whoever may see all tenants."""
    if visitor.tenant is not None:
        detail = "This page is about every tenant, and your token is bound to one; use a token that is not."
        raise Problem(403, "tenant-bound", detail)
    return visitor


Overseer = Annotated[Visitor, Depends(overseer_of)]


async def operator_of(request: Request, visitor: Looker, word: Annotated[str, Form(max_length=200)] = "") -> Visitor:
    """Tell who wants to change something; raises a problem if it may not, or if another site may have sent it."""
    same_origin(request)
    if surface_of(request).read_only:
        raise Problem(403, "read-only", "This server only shows; nothing can be changed through it.")
    if not visitor.operates:
        raise Problem(403, "scope-missing", "Your token may look and not change; use one with the scope 'operate'.")
    known(visitor.cookie, word)
    return visitor


Operator = Annotated[Visitor, Depends(operator_of)]


async def chief_of(visitor: Operator) -> Visitor:
    """Let through whoever may change what concerns all tenants."""
    return await overseer_of(visitor)


Chief = Annotated[Visitor, Depends(chief_of)]


def known(cookie: str | None, word: str) -> None:
    """Refuse a form that was not made for this cookie."""
    if cookie is None or not hmac.compare_digest(word_of(cookie).encode(), word.encode()):
        raise Problem(403, "stale-form", "The form is from another session; load the page again and repeat it.")


def same_origin(request: Request) -> None:
    """Refuse what a page of another site sends.

    Browsers say where a request comes from, in `Sec-Fetch-Site` (not to plain addresses other than loopback), in
    `Origin`, or both; `Origin` is "null" for a form, because our pages send no referrer.
    """
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    named = origin not in (None, "null")
    ours = named and urlsplit(origin or "").netloc == request.headers.get("Host")
    if (named and not ours) or (site is not None and site != "same-origin") or (site is None and not named):
        raise Problem(403, "cross-origin", "This was sent by another site, or by no page at all; nothing was changed.")


async def begin(request: Request, principal: Principal) -> str:
    """Open a session for a token that was checked; give its cookie."""
    cookie = new_cookie()
    await asyncio.to_thread(_write, surface_of(request), cookie, principal)
    return cookie


def _write(surface: Surface, cookie: str, principal: Principal) -> None:
    store = surface.app.store
    body = json.dumps({"token": principal.id})
    store.write_page(Page(BOOK, _digest(cookie), body, expires_at=store.now() + LASTS), None)


async def finish(request: Request) -> None:
    """Close a session."""
    cookie = cookie_of(request)
    if cookie is not None:
        await asyncio.to_thread(surface_of(request).app.store.remove_page, BOOK, _digest(cookie))


def _session(surface: Surface, cookie: str) -> Principal | None:
    page = surface.app.store.page(BOOK, _digest(cookie))
    return None if page is None else surface.app.tokens.standing(json.loads(page.body)["token"])


def cookie_of(request: Request) -> str | None:
    """Read the cookie of a session, if there is one that could be ours."""
    cookie = request.cookies.get(COOKIE)
    return cookie if cookie is not None and len(cookie) >= _SHORTEST and cookie.isascii() else None


def new_cookie() -> str:
    """Make a cookie that nobody can guess."""
    return secrets.token_urlsafe(32)


def word_of(cookie: str) -> str:
    """Make the word that the forms of a session carry."""
    return hmac.new(cookie.encode(), b"form", hashlib.sha256).hexdigest()


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def keep(request: Request, response: Response, name: str, value: str, seconds: int | None = None) -> None:
    """Send a cookie that only our own pages send back, and that no script reads."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=links_of(request)(),
        secure=request.url.scheme == "https" or request.headers.get("Origin", "").startswith("https://"),
        httponly=True,
        samesite="strict",
    )


def tell(request: Request, response: Response, cookie: str, text: str, *, trouble: bool = False) -> None:
    """Leave a sentence for the next page; signed, so that nobody else can have a sentence shown."""
    body = urlsafe_b64encode(json.dumps([text, trouble]).encode()).decode()
    keep(request, response, NOTICE, f"{body}.{_seal(cookie, body)}", _NOTICE_LASTS)


def told(request: Request, cookie: str) -> tuple[str, bool] | None:
    """Read the sentence that was left for this page, and whether it tells of trouble."""
    body, _, seal = request.cookies.get(NOTICE, "").partition(".")
    if not body or not hmac.compare_digest(seal.encode(), _seal(cookie, body).encode()):
        return None
    text, trouble = json.loads(urlsafe_b64decode(body))
    return str(text), bool(trouble)


def _seal(cookie: str, body: str) -> str:
    return hmac.new(cookie.encode(), f"notice:{body}".encode(), hashlib.sha256).hexdigest()
