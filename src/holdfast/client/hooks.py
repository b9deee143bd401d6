"""Inbound hooks: a signed request from another program becomes one job.

The signature is that of our own webhooks (`client.sinks.signature`): HMAC-SHA256 over a time and the body as it came.
It is the sender's only credential; a hook that does not exist is answered like one whose secret was not met, after the
same work.

One signed request is one job, however often it is sent: the job's key names the signature, and a page of the store
remembers it for as long as it could be sent again, should the job be purged before that.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from holdfast.client.asynchronous import asynchronous
from holdfast.client.function import JobFunction, Prepared, repeatable
from holdfast.client.job import Job
from holdfast.client.registry import text
from holdfast.client.sinks.signature import SIGNATURE, TOLERANCE, key_of, matching, parts
from holdfast.domain.errors import BadInput, BadPayload, BadSignature
from holdfast.domain.job import Trigger
from holdfast.domain.moments import DAY, HOUR, SECOND, Micros, duration
from holdfast.port.store import Page, Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
_LONGEST: Micros = DAY
_SPARE: Micros = HOUR
"""How much longer a signature is remembered than it is good for: the store's clock may not be the server's."""


class Received(NamedTuple):
    """What became of a signed request."""

    job_id: str
    duplicate: bool
    """The request had come before, and has its job already."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One declared hook."""

    name: str
    job: JobFunction[..., Any]
    keys: tuple[bytes, ...]
    """The secrets, if they were given; otherwise `env` names the variable that holds one."""
    env: str | None
    tolerance: Micros
    header: str

    def secrets(self) -> tuple[bytes, ...]:
        """Give the secrets that requests may be signed with."""
        if self.env is None:
            return self.keys
        found = os.environ.get(self.env)
        if not found:
            msg = f"The hook {self.name!r} takes its secret from {self.env}, which is not set; set it and start again."
            raise BadInput(msg)
        return (key_of(found),)


class Hooks:
    """All hooks of one application. `now` is its own clock."""

    def __init__(
        self, store: Callable[[], Store], enqueue: Callable[[Prepared], Job[Any]], now: Callable[[], Micros]
    ) -> None:
        self._store = store
        self._enqueue = enqueue
        self._now = now
        self._hooks: dict[str, Hook] = {}
        self._nobody = (secrets.token_bytes(32),)
        """The secret of hooks that do not exist."""

    def declare(
        self,
        name: str,
        job: JobFunction[..., Any],
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        secret_env: str | None = None,
        tolerance: float | timedelta = TOLERANCE,
        header: str = SIGNATURE,
    ) -> None:
        """Have signed requests enqueue a job."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            msg = f"A hook's name is part of its address: letters, digits and . _ -, 100 at most; {name!r:.60} is not."
            raise BadInput(msg)
        if name in self._hooks:
            msg = f"The hook {name!r} is declared already; give one of the two another name."
            raise BadInput(msg)
        if (secret is None) == (secret_env is None):
            msg = f"The hook {name!r} needs a secret: give one of secret= and secret_env=."
            raise BadInput(msg)
        if not isinstance(header, str) or not _HEADER.fullmatch(header):
            msg = f"The hook {name!r}: header is the name of a header, as in {SIGNATURE!r}; {header!r:.60} is not."
            raise BadInput(msg)
        span = duration(tolerance, "tolerance")
        if not SECOND <= span <= _LONGEST:
            msg = f"The hook {name!r}: tolerance is between a second and a day; {tolerance!r} was given."
            raise BadInput(msg)
        keys = () if secret is None else _keys(secret)
        env = None if secret_env is None else text(secret_env, "variable's name")
        self._hooks[name] = Hook(name, repeatable(job, f"The hook {name!r}"), keys, env, span, header)

    def check(self) -> None:
        """Raise `BadInput` if a hook's secret cannot be read."""
        for hook in self:
            hook.secrets()

    def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Received:
        """Check a request and enqueue its job; `body` is the request's body as it came.

        Raises `BadSignature` if it was not signed with the hook's secret a short while ago, or there is no such hook,
        and `BadPayload` if the job's kind does not accept it.
        """
        if not isinstance(body, bytes):
            msg = f"A hook's body is checked as it came, as bytes, not as {type(body).__name__}."
            raise BadInput(msg)
        hook = self._hooks.get(name)
        digest = self._signed(hook, headers, body)
        assert hook is not None
        store, book = self._store(), f"hook:{hook.name}"
        if (known := store.page(book, digest)) is not None:
            return Received(from_json(known.body), duplicate=True)
        prepared = hook.job.prepare_json(_text(body, hook))
        new = prepared.new._replace(key=f"hook:{hook.name}:{digest}", trigger=Trigger.WEBHOOK.value)
        job = self._enqueue(Prepared(new, prepared.connection, prepared.debounce))
        page = Page(book, digest, to_json(str(job.id)).decode(), expires_at=store.now() + 2 * hook.tolerance + _SPARE)
        store.write_page(page, None)  # if it is there by now, the same request came twice at once
        return Received(str(job.id), job.duplicate)

    def _signed(self, hook: Hook | None, headers: Mapping[str, str], body: bytes) -> str:
        """Give the digest that a request was rightly signed with."""
        try:
            at, digests = parts(headers, SIGNATURE if hook is None else hook.header)
        except BadInput:
            at, digests = 0, []
        keys = self._nobody if hook is None else hook.secrets()
        met = [digest for key in keys if (digest := matching(key, at, body, digests))]
        if hook is None or not met:
            msg = "There is no such hook, or the request was not signed with its secret; nothing was enqueued."
            raise BadSignature(msg)
        if abs(self._now() - at * SECOND) > hook.tolerance:
            span = hook.tolerance / SECOND
            msg = (
                f"The signature's time is more than {span:g} s from this server's clock; sign again, with the time now."
            )
            raise BadSignature(msg)
        return met[0]

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks.values())

    def __len__(self) -> int:
        return len(self._hooks)

    areceive = asynchronous(receive)


def _keys(secret: str | bytes | Sequence[str | bytes]) -> tuple[bytes, ...]:
    if isinstance(secret, str | bytes):
        return (key_of(secret),)
    if not isinstance(secret, list | tuple) or not secret:
        msg = "A hook's secret is text or bytes, or a list of those while it is changed."
        raise BadInput(msg)
    return tuple(key_of(one) for one in secret)


def _text(body: bytes, hook: Hook) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        msg = f"{hook.job.name}: the body is not JSON in UTF-8."
        raise BadPayload(msg) from None
