"""What every request passes on its way in: checks that need no route, and limits that hold before a body is read.

- The `Host` header must be one of the names the server goes by, if it has been told some: a page of another site cannot
  reach a server on this machine by a name of its own (DNS rebinding).
- A request that a browser sends on behalf of another site is refused unless it only reads.
- A body is at most so large, in JSON if it is for the API, and comes within a time.
- Whatever goes wrong inside is told as a problem, and logged without anything that came with the request.
"""

import asyncio
import logging
import os
import time
import traceback
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.limits import Limits
from holdfast.server.problems import Problem

log = logging.getLogger("holdfast.server")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_DIGITS = 18
_API = "/v1/"
_HOOKS = "/v1/hooks/"
"""Where other programs post what they like: the body is theirs."""


class Gate:
    """The way in."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, limits: Limits) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(each.lower() for each in hosts)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, private=_path(scope).startswith(_API))
        try:
            self._check(scope, Headers(scope=scope))
            await self._app(scope, _Bounded(receive, self._limits), answer)
        except Problem as problem:
            await answer.instead(problem, scope, receive)
        except Exception as error:  # noqa: BLE001 - a caller is told of anything in one sentence
            _complain(error)
            detail = "Something unexpected went wrong; nothing is known to have changed. The server's log says more."
            await answer.instead(Problem(500, "internal", detail), scope, receive)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            detail = "This server does not go by the name in the Host header; call it by the address it listens on."
            raise Problem(421, "wrong-host", detail)
        if scope["method"] in _SAFE:
            return
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if origin == "null" and site == "same-origin":
            origin = None  # a form of a page that sends no referrer, as the dashboard's do
        if site not in ("none", "same-origin") or not _own(origin, host):
            raise Problem(403, "cross-site", "Pages of other sites may not change anything here.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > _DIGITS or int(length) > self._limits.body:
            raise too_large(self._limits)
        if headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "encoded", "A body is sent as it is, without a content encoding.")
        has_body = length != "0" or "transfer-encoding" in headers
        path = _path(scope)
        if has_body and path.startswith(_API) and not path.startswith(_HOOKS) and not _json(headers):
            raise Problem(415, "not-json", "A body is JSON; say so with 'Content-Type: application/json'.")


class _Bounded:
    """A request's body, of which no more is taken than the limits allow."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._taken = 0
        self._whole = False
        self._end = time.monotonic() + limits.patience

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._end - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            detail = f"The body did not come within {self._limits.patience:g} s; send it faster."
            raise Problem(408, "too-slow", detail, {"Connection": "close"}) from None
        if message["type"] != "http.request":
            return message
        self._taken += len(message.get("body", b""))
        if self._taken > self._limits.body:
            raise too_large(self._limits)
        self._whole = not message.get("more_body", False)
        return message


class _Answer:
    """A request's answer, with the headers that each one has."""

    def __init__(self, send: Send, *, private: bool) -> None:
        self._send = send
        self._private = private
        self._begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            if self._private:
                headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def instead(self, problem: Problem, scope: Scope, receive: Receive) -> None:
        """Answer with a problem, unless an answer has begun."""
        if not self._begun:
            await problem.response()(scope, receive, self)


def too_large(limits: Limits) -> Problem:
    """Say that a body is too large; the connection is of no more use then."""
    detail = f"The body is larger than the {limits.body:,} bytes that this server takes; send less at a time."
    return Problem(413, "too-large", detail, {"Connection": "close"})


def _path(scope: Scope) -> str:
    """Give the path below the place where the server is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _name(host: str) -> str:
    """Give the host's name without its port; nothing for what is no name."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _own(origin: str | None, host: str) -> bool:
    return origin is None or origin.partition("://")[2].lower() == host.lower()


def _json(headers: Headers) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _complain(error: Exception) -> None:
    """Log where something went wrong; what the exception says may hold a payload, and is left out."""
    if os.environ.get("HOLDFAST_DEBUG", "0") not in ("", "0"):
        log.error("a request failed", exc_info=error)
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = f", line {frames[-1].lineno} of {frames[-1].filename.rpartition('/')[2]}" if frames else ""
    log.error("a request failed: %s%s; HOLDFAST_DEBUG=1 shows the traceback", type(error).__name__, place)
