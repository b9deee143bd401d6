"""The line to a server: its address, its patience, and when to ask again.

What may be asked again is, with growing pauses that are drawn at random, when the line breaks or the server is
overloaded or has no store. Redirects are not followed: a token goes to the server it was meant for, and nowhere else.
"""

import random
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic_core import to_json

from holdfast.domain.errors import BadInput, CommitUnknown, StoreUnavailable
from holdfast.remote.asks import Ask, T
from holdfast.remote.errors import refusal, silence

TRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
_BUSY = frozenset({429, 502, 503, 504})
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_OK = range(200, 300)


class Line:
    """Where a server is, and how it is spoken to."""

    def __init__(self, url: str, token: str | None, timeout: float, tries: int) -> None:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            msg = "A server's address is a URL, as in 'http://127.0.0.1:8080'."
            raise BadInput(msg)
        if parts.username is not None or parts.password is not None:
            msg = "A server's address holds no password; pass token= instead."
            raise BadInput(msg)
        if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
            msg = "A token is text, as `holdfast tokens create` printed it."
            raise BadInput(msg)
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            msg = f"tries is a whole number of 1 or more, not {tries!r}."
            raise BadInput(msg)
        self.url = url.rstrip("/")
        self.tries = tries
        self._timeout = timeout
        self._headers = {"User-Agent": "holdfast", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def options(self) -> dict[str, Any]:
        """Give what both of httpx's clients are made with."""
        return {"headers": self._headers, "timeout": self._timeout, "follow_redirects": False}

    def request(self, http: httpx.Client | httpx.AsyncClient, ask: Ask[Any]) -> httpx.Request:
        """Put a request together."""
        body = None if ask.body is None else to_json(ask.body)
        headers = None if body is None else {"Content-Type": "application/json"}
        timeout = httpx.Timeout(self._timeout, read=self._timeout + ask.wait)
        return http.build_request(
            ask.method, f"{self.url}{ask.path}", content=body, headers=headers, params=ask.query, timeout=timeout
        )


class Tries:
    """How often one request has been tried, and whether it is tried again."""

    def __init__(self, line: Line, ask: Ask[T], most: int | None) -> None:
        self._line = line
        self._ask = ask
        self._left = line.tries if most is None else most
        self._pause = FIRST_PAUSE

    def lost(self, error: httpx.TransportError) -> float:
        """Say how long to wait after the line broke; raises if that was the last try."""
        sent = not isinstance(error, _UNSENT)
        self._left -= 1
        if not self._left or (sent and not self._ask.again):
            reads = self._ask.method == "GET"
            raise silence(self._line.url, type(error).__name__, sent=sent, reads=reads) from error
        return self._drawn()

    def busy(self, answer: httpx.Response) -> float | None:
        """Say how long to wait before asking again; None if the answer is final."""
        if answer.status_code not in _BUSY:
            return None
        self._left -= 1
        if not self._left or (not self._ask.again and isinstance(_refusal(answer), CommitUnknown)):
            return None
        asked = answer.headers.get("retry-after", "")
        least = min(float(asked), LONGEST_PAUSE) if asked.isdecimal() and len(asked) < 4 else 0.0  # noqa: PLR2004
        return least + self._drawn()

    def _drawn(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1)  # noqa: S311 - no secret


def read(ask: Ask[T], answer: httpx.Response) -> T:
    """Read an answer, or raise what it refuses with."""
    if answer.status_code not in _OK:
        raise _refusal(answer)
    try:
        return ask.read(answer.json())
    except (ValueError, KeyError, TypeError) as error:
        msg = f"What answers at {answer.url.scheme}://{answer.url.netloc.decode()} is not a Holdfast server."
        raise BadInput(msg) from error


def closed() -> StoreUnavailable:
    """Say that a client was closed."""
    return StoreUnavailable("The client is closed; make another one.")


def _refusal(answer: httpx.Response) -> Exception:
    try:
        body = answer.json()
    except ValueError:
        body = None
    return refusal(answer.status_code, body)
