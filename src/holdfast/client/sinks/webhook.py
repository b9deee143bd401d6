"""A signed webhook: events as one POST of JSON, to a checked address, answered with 2xx or else sent again.

No redirects, no proxies, no cookies: one connection, one request, one answer, each within its time. The standard
library's `http.client` reads the answer; the connection is made here, for it must go to the address that was checked.
"""

import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote

from pydantic_core import to_json

from holdfast.client.sinks.address import Address, Resolve, addresses, place_of
from holdfast.client.sinks.shape import Told, Undelivered
from holdfast.client.sinks.signature import EVENT_ID, SIGNATURE, key_of, signature
from holdfast.domain.errors import BadInput
from holdfast.domain.moments import SECOND, duration

_MOST_READ = 64 * 1024
"""The bytes of an answer that are read, headers included."""
_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""What an id keeps as it is in a header, beside letters and digits."""
_SUCCESS = range(200, 300)


class Webhook:
    """An address that events are sent to, and the secret they are signed with.

    `timeout` (seconds) bounds sending and the answer, `connect_timeout` the way to the host. `allow_private` permits
    loopback and internal networks, `allow_http` sending in the clear; `context` is for a certificate authority of one's
    own. `resolve` and `now` are the network's names and the clock.
    """

    most = 100

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes,
        timeout: float = 10,
        connect_timeout: float = 5,
        allow_private: bool = False,
        allow_http: bool = False,
        context: ssl.SSLContext | None = None,
        resolve: Resolve = socket.getaddrinfo,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(allow_private, bool) or not isinstance(allow_http, bool):
            msg = "A webhook's allow_private and allow_http are True or False."
            raise BadInput(msg)
        if context is not None and not isinstance(context, ssl.SSLContext):
            msg = f"A webhook's context is an ssl.SSLContext, not {type(context).__name__}."
            raise BadInput(msg)
        self._place = place_of(url, allow_http=allow_http, allow_private=allow_private)
        self._key = key_of(secret)
        self._timeout = _seconds(timeout, "timeout")
        self._connect_timeout = _seconds(connect_timeout, "connect_timeout")
        self._allow_private = allow_private
        self._context = context
        self._resolve = resolve
        self._now = now

    def __repr__(self) -> str:
        return f"Webhook({self._place.origin!r})"

    def deliver(self, told: list[Told]) -> None:
        """Send the events; anything but 2xx, and any trouble on the way, means that they were not delivered."""
        from http.client import HTTPException

        body = to_json({"events": told})
        try:
            with self._connected() as link:
                until = time.monotonic() + self._timeout
                _send(link, self._head(told[0]["id"], body) + body, until)
                status = _status(link, until)
        except (OSError, HTTPException, ValueError) as error:
            msg = f"{self._place.origin}: {_reason(error)}"
            raise Undelivered(msg) from error
        if status not in _SUCCESS:
            msg = f"{self._place.origin} answered with status {status}"
            raise Undelivered(msg)

    def close(self) -> None:
        """Nothing is kept open."""

    def _head(self, first: str, body: bytes) -> bytes:
        lines = (
            f"POST {self._place.path} HTTP/1.1",
            f"Host: {self._place.authority}",
            "User-Agent: holdfast",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"{EVENT_ID}: {quote(first, safe=_PLAIN)}",
            f"{SIGNATURE}: {signature(self._key, int(self._now()), body)}",
            "Connection: close",
        )
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")

    def _connected(self) -> socket.socket:
        """Connect to the first of the host's addresses that answers, all of which have been checked."""
        found = addresses(self._place, self._resolve, allow_private=self._allow_private)
        until = time.monotonic() + self._connect_timeout
        for last, address in enumerate(found, 1 - len(found)):
            try:
                return self._reach(address, until)
            except OSError:
                if not last:
                    raise
        raise AssertionError

    def _reach(self, address: Address, until: float) -> socket.socket:
        link = socket.socket(address.family, address.kind, address.protocol)
        try:
            link.settimeout(_left(until))
            link.connect(address.sockaddr)
            if not self._place.secure:
                return link
            link.settimeout(_left(until))
            context = self._context or ssl.create_default_context()
            return context.wrap_socket(link, server_hostname=self._place.host)
        except BaseException:
            link.close()
            raise


class _TooLongError(ValueError):
    """An answer went on after all that we read."""


class _Reading(io.RawIOBase):
    """The answer's bytes: no more than we want, and none after the time is over."""

    def __init__(self, link: socket.socket, until: float) -> None:
        self._link = link
        self._until = until
        self._room = _MOST_READ

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._room:
            raise _TooLongError
        self._link.settimeout(_left(self._until))
        taken = self._link.recv_into(buffer, min(len(buffer), self._room))
        self._room -= taken
        return taken

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Be what `HTTPResponse` expects of a socket."""
        return io.BufferedReader(self)


def _send(link: socket.socket, content: bytes, until: float) -> None:
    left = memoryview(content)
    while left:
        link.settimeout(_left(until))
        left = left[link.send(left) :]


def _status(link: socket.socket, until: float) -> int:
    from http.client import HTTPResponse

    answer = HTTPResponse(cast("socket.socket", _Reading(link, until)), method="POST")
    try:
        answer.begin()
        return answer.status
    finally:
        answer.close()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: Exception) -> str:
    """Put trouble on the way into words that are the same each time, and ours."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return f"no secure connection ({error.reason or type(error).__name__})"
        case OSError():
            return f"no connection ({error.strerror or type(error).__name__})"
        case _:
            return f"the answer is not HTTP, or too long ({type(error).__name__})"


def _seconds(value: float, what: str) -> float:
    seconds = duration(value, f"A webhook's {what}") / SECOND
    if not seconds:
        msg = f"A webhook's {what} is more than zero seconds."
        raise BadInput(msg)
    return seconds
