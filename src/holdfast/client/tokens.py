"""Tokens: who may do what through a server.

A token is a secret that is shown once, when it is made; the store keeps its SHA-256 alone. The secret is random enough
(256 bits) for that to be all it takes. It holds the token's id, by which it is looked up: `hf_<id>_<random>`.

A check that went well is remembered for a few seconds, so that not every request reads the store; a token that was
revoked elsewhere is refused once they are over.
"""

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.client.asynchronous import asynchronous, in_thread
from holdfast.client.registry import text
from holdfast.domain.errors import BadInput, StoreUnavailable, TokenNotFound
from holdfast.domain.moments import DAY, SECOND, Micros, duration
from holdfast.port.store import Page, Store

SCOPES = ("read", "enqueue", "work", "operate", "admin")
"""What a token may allow: look at jobs, enqueue them, run them, change what is stored, and everything."""
BOOK = "tokens"
REMEMBERED = 5.0
"""Seconds for which a token that was checked is not looked up again."""
_IMPLIED = {"operate": frozenset({"read"}), "admin": frozenset(SCOPES)}
_SHAPE = re.compile(r"hf_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_LASTING: Micros = 90 * DAY
"""For so long a token that was revoked or has expired is still listed."""
_MOST = 1_000
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever makes a request."""

    id: str
    name: str
    scopes: frozenset[str]
    tenant: str | None
    """The only tenant it may see; None for all."""

    def may(self, scope: str) -> bool:
        """Tell whether it may do what a scope allows; who may operate may read, and an admin may do everything."""
        return scope in self.scopes or any(scope in _IMPLIED.get(own, ()) for own in self.scopes)


class TokenRecord(NamedTuple):
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    tenant: str | None
    """The only tenant it is good for; None for all."""
    created_at: Micros
    expires_at: Micros | None = None
    revoked_at: Micros | None = None
    rotated_at: Micros | None = None
    """When its secret was last exchanged for another."""

    def state(self, now: Micros) -> str:
        """Tell whether it is "active", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class _Kept(NamedTuple):
    """A token as it is stored. `former` is the digest it had before, and the instant up to which that is still good."""

    record: TokenRecord
    digest: str
    former: tuple[str, Micros] | None = None

    def good_until(self, digest: str, now: Micros) -> Micros | None:
        """Give the instant up to which this digest lets somebody in, never later than the token does; or None."""
        if self.record.state(now) != "active":
            return None
        ends = now + _LASTING if self.record.expires_at is None else self.record.expires_at
        if hmac.compare_digest(digest, self.digest):
            return ends
        former, until = self.former or ("", 0)
        return min(ends, until) if hmac.compare_digest(digest, former) and now < until else None


Listed = list[TokenRecord]


class Tokens:
    """The tokens of a store. `tick` counts seconds, for what is remembered."""

    def __init__(self, store: Callable[[], Store], tick: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._tick = tick
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Principal, float]] = {}
        """Who was let in lately, by the digest of the secret or the token's id, and until when that holds."""

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        tenant: str | None = None,
        expires_in: float | timedelta | None = None,
    ) -> tuple[str, TokenRecord]:
        """Make a token; give its secret, which cannot be had again, and what is known of it."""
        store, id_ = self._store(), secrets.token_hex(8)
        now, secret = store.now(), _secret(id_)
        lasts = None if expires_in is None else _span(expires_in)
        record = TokenRecord(
            id_,
            text(name, "token's name"),
            _scopes(scopes),
            tenant if tenant in (None, "") else text(tenant, "tenant"),
            now,
            None if lasts is None else now + lasts,
        )
        if not store.write_page(_page(_Kept(record, _digest(secret)), 1), None):
            msg = "The token could not be stored, because another has its id; try again."
            raise StoreUnavailable(msg)
        return secret, record

    def list(self, *, ended: bool = False) -> Listed:
        """List the tokens that let somebody in, oldest first; with `ended`, also those revoked or expired of late."""
        store = self._store()
        found, after = list[TokenRecord](), None
        while pages := store.pages(BOOK, after, _MOST):
            found += [_kept(page).record for page in pages]
            after = pages[-1].name
        now = store.now()
        return sorted((one for one in found if ended or one.state(now) == "active"), key=_age)

    def get(self, id: str) -> TokenRecord:  # noqa: A002 - the token's own word
        """Read what is known of a token; raises `TokenNotFound`."""
        return _kept(self._page(id)).record

    def revoke(self, id: str) -> TokenRecord:  # noqa: A002 - the token's own word
        """Let nobody in with a token any more; one that is revoked already stays as it is."""

        def end(kept: _Kept, now: Micros) -> _Kept:
            if kept.record.revoked_at is not None:
                return kept
            return kept._replace(record=kept.record._replace(revoked_at=now), former=None)

        return self._change(id, end)

    def rotate(self, id: str, grace: float | timedelta = 0) -> str:  # noqa: A002 - the token's own word
        """Give a token another secret; the one it had is good for `grace` more."""
        lasts, secret = duration(grace, "grace"), _secret(id)

        def exchange(kept: _Kept, now: Micros) -> _Kept:
            if (state := kept.record.state(now)) != "active":
                msg = f"The token {id} is {state}, so it has no use for another secret; make a new token instead."
                raise BadInput(msg)
            former = (kept.digest, now + lasts) if lasts else None
            return _Kept(kept.record._replace(rotated_at=now), _digest(secret), former)

        self._change(id, exchange)
        return secret

    def check(self, secret: str) -> Principal | None:
        """Tell whom a secret lets in, if anybody; a token revoked elsewhere may be good for some seconds more."""
        shape = _SHAPE.fullmatch(secret) if isinstance(secret, str) else None
        if shape is None:
            return None
        digest = _digest(secret)
        return self._remembered(digest) or self._looked_up(shape[1], digest)

    async def acheck(self, secret: str) -> Principal | None:
        """Asynchronous twin of `check`; what is remembered takes no thread."""
        known = self._remembered(_digest(secret)) if _SHAPE.fullmatch(secret) else None
        return known or await in_thread(self.check, secret)

    def standing(self, id: str) -> Principal | None:  # noqa: A002 - the token's own word
        """Tell whom the token of this id stands for, unless it is revoked or expired; for who was checked before."""
        return self._remembered(id) or self._looked_up(id, None)

    def _looked_up(self, id_: str, digest: str | None) -> Principal | None:
        store = self._store()
        page = store.page(BOOK, id_)
        if page is None:
            return None
        kept, now = _kept(page), store.now()
        until = kept.good_until(kept.digest if digest is None else digest, now)
        if until is None:
            return None
        record = kept.record
        principal = Principal(record.id, record.name, frozenset(record.scopes), record.tenant)
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.clear()
            lasts = min(REMEMBERED, (until - now) / SECOND)
            self._known[id_ if digest is None else digest] = (principal, self._tick() + lasts)
        return principal

    def _remembered(self, key: str) -> Principal | None:
        principal, until = self._known.get(key, (None, 0.0))
        return principal if self._tick() < until else None

    def _change(self, id_: str, change: Callable[[_Kept, Micros], _Kept]) -> TokenRecord:
        """Change what is stored, again if somebody else wrote in between; and forget what was remembered of it."""
        store = self._store()
        for _ in range(_TRIES):
            page = self._page(id_)
            kept = _kept(page)
            changed = change(kept, store.now())
            if changed is kept or store.write_page(_page(changed, page.version), page.version):
                with self._lock:
                    self._known = {key: known for key, known in self._known.items() if known[0].id != id_}
                return changed.record
        msg = f"The token {id_} kept changing while it was being changed; try again."
        raise StoreUnavailable(msg)

    def _page(self, id_: str) -> Page:
        page = self._store().page(BOOK, id_) if isinstance(id_, str) and id_ else None
        if page is None:
            msg = f"There is no token {str(id_)[:40]!r}; `holdfast tokens list` shows the ids."
            raise TokenNotFound(msg)
        return page

    acreate = asynchronous(create)
    alist = asynchronous(list)  # noqa: A003 - the method, not the type
    aget = asynchronous(get)
    arevoke = asynchronous(revoke)
    arotate = asynchronous(rotate)
    astanding = asynchronous(standing)


def _secret(id_: str) -> str:
    return f"hf_{id_}_{secrets.token_urlsafe(32)}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _age(record: TokenRecord) -> tuple[Micros, str]:
    return record.created_at, record.id


def _page(kept: _Kept, version: int) -> Page:
    record = kept.record
    body: dict[str, Any] = {**record._asdict(), "digest": kept.digest, "former": kept.former}
    ends = record.expires_at if record.revoked_at is None else record.revoked_at
    return Page(BOOK, record.id, json.dumps(body), version, None if ends is None else ends + _LASTING)


def _kept(page: Page) -> _Kept:
    body = json.loads(page.body)
    digest, former = body.pop("digest"), body.pop("former")
    body["scopes"] = tuple(body["scopes"])
    return _Kept(TokenRecord(**body), digest, None if former is None else (former[0], former[1]))


def _scopes(asked: Iterable[str]) -> tuple[str, ...]:
    """Check scopes, and put them in order."""
    wanted = {asked} if isinstance(asked, str) else set(asked)
    unknown = wanted - set(SCOPES)
    if unknown or not wanted:
        what = f"{min(map(str, unknown))!r} is not one" if unknown else "none was given"
        msg = f"A token has one or more of the scopes {', '.join(SCOPES)}; {what}."
        raise BadInput(msg)
    return tuple(scope for scope in SCOPES if scope in wanted)


def _span(value: float | timedelta) -> Micros:
    lasts = duration(value, "expires_in")
    if not lasts:
        msg = "expires_in is more than nothing; leave it out for a token that does not expire."
        raise BadInput(msg)
    return lasts
