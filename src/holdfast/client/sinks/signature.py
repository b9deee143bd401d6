"""The signature of a webhook: HMAC-SHA256 over the time and the body, and the receiver's check of it."""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.client.sinks.shape import Told
from holdfast.domain import codec
from holdfast.domain.errors import BadInput

SIGNATURE = "Holdfast-Signature"
EVENT_ID = "Holdfast-Event-Id"
TOLERANCE = 300
"""Seconds by which the clocks of sender and receiver may differ, the way between them included."""
_SHORTEST_SECRET = 16
_TIME = re.compile(r"[0-9]{1,12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def key_of(secret: str | bytes) -> bytes:
    """Check a secret and give its bytes. It is never part of a message."""
    if not isinstance(secret, str | bytes):
        msg = f"A webhook's secret is text or bytes, not {type(secret).__name__}."
        raise BadInput(msg)
    key = secret.encode(errors="surrogatepass") if isinstance(secret, str) else secret
    if len(key) < _SHORTEST_SECRET:
        msg = f"A webhook's secret is {_SHORTEST_SECRET} bytes or more; make one with secrets.token_urlsafe(32)."
        raise BadInput(msg)
    return key


def signature(key: bytes, at: int, body: bytes) -> str:
    """Give the value of the signature's header."""
    return f"t={at},v1={_digest(key, at, body)}"


def verify_webhook(
    secret: str | bytes,
    headers: Mapping[str, str],
    body: str | bytes,
    tolerance: float = TOLERANCE,
    *,
    now: Callable[[], float] = time.time,
) -> list[Told]:
    """Check that a request came from a holder of the secret, whole and not long ago; give its events.

    Raises `BadInput` otherwise. `body` is the request's body as it came, before anything has parsed it. An event may
    come more than once: remember the ids that were dealt with.
    """
    if not isinstance(body, str | bytes):
        msg = f"A webhook's body is checked as it came, as bytes or text, not as {type(body).__name__}."
        raise BadInput(msg)
    key, content = key_of(secret), body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
    at, digests = parts(headers)
    if abs(now() - at) > tolerance:
        msg = f"The webhook's signature is not of now: its time is more than {tolerance:g} s from this clock's."
        raise BadInput(msg)
    if matching(key, at, content, digests) is None:
        msg = "The webhook's signature does not fit its body: another secret, or a body that was changed on its way."
        raise BadInput(msg)
    return _events(content)


def matching(key: bytes, at: int, body: bytes, digests: Iterable[str]) -> str | None:
    """Give the one of these digests that is that of a time and a body."""
    expected = _digest(key, at, body)
    return expected if any(hmac.compare_digest(expected, digest) for digest in digests) else None


def parts(headers: Mapping[str, str], header: str = SIGNATURE) -> tuple[int, list[str]]:
    """Read the signature's header: one time, and a digest for each secret in use."""
    found = [str(value) for name, value in headers.items() if str(name).lower() == header.lower()]
    pairs = [part.strip().partition("=") for part in found[0].split(",")] if len(found) == 1 else []
    times = [value for name, _, value in pairs if name == "t" and _TIME.fullmatch(value)]
    digests = [value for name, _, value in pairs if name == "v1" and _DIGEST.fullmatch(value)]
    if len(times) != 1 or not digests:
        msg = f"The request has no {header} header of the form t=...,v1=...; it is not a webhook of Holdfast's."
        raise BadInput(msg)
    return int(times[0]), digests


def _digest(key: bytes, at: int, body: bytes) -> str:
    return hmac.new(key, b"%d.%b" % (at, body), hashlib.sha256).hexdigest()


def _events(content: bytes) -> list[Told]:
    try:
        told: Any = codec.decode(content.decode())["events"]
    except (ValueError, KeyError, TypeError):
        told = None
    if not isinstance(told, list):
        msg = "The webhook's body is signed but is not a JSON object with a list of events."
        raise BadInput(msg)
    return told
