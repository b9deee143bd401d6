"""From a claimed job to the move that settles it: decode, call, and turn whatever came of it into a decision of the
lifecycle.

Whatever a handler does (raise BaseException, call `sys.exit`, return something that is not JSON, raise an exception
that cannot be printed) ends as
a recorded outcome; nothing that a handler does may end the worker.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.client.context import AttemptStopped, Context
from holdfast.client.registry import Kind
from holdfast.client.settings import Settings
from holdfast.domain import codec, lifecycle
from holdfast.domain.errors import BadPayload, Permanent, Snooze, StoreError
from holdfast.domain.job import Failure, JobRecord
from holdfast.domain.lifecycle import Answer, Move, Verb
from holdfast.domain.moments import SECOND
from holdfast.port.store import Transaction
from holdfast.runtime.attempt import Attempt, Stop

log = logging.getLogger("holdfast.executor")
_LONGEST_MESSAGE = 200
_LONGEST_TRACEBACK = 16_000
_UNKNOWN_KIND_PAUSE = 5 * SECOND
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]")


class Executor:
    """Decides outcomes with one application's settings. `draw` gives the randomness for jitter."""

    def __init__(
        self, settings: Settings, draw: Callable[[], float], transact: Callable[[], Transaction] | None = None
    ) -> None:
        self._settings = settings
        self._retention = settings.retention
        self._draw = draw
        self._transact = transact

    def call(self, attempt: Attempt) -> Move | None:
        """Run a synchronous handler and give the move that settles the attempt; None if it may not be settled any
        more.
        """
        attempt.transact = self._transact
        try:
            fn, arguments = self.bind(attempt)
            result = fn(**arguments)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            if attempt.transaction is not None:
                attempt.transaction.rollback()
            return self.failed(attempt, error)
        move = self.returned(attempt, result)
        return move if attempt.transaction is None else self._settled(attempt, attempt.transaction, move)

    async def acall(self, attempt: Attempt) -> Move | None:
        """Run an asynchronous handler likewise."""
        attempt.transact = self._transact
        try:
            fn, arguments = self.bind(attempt)
            result = await fn(**arguments)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            if attempt.transaction is not None:
                await attempt.transaction.arollback()
            return self.failed(attempt, error)
        move = self.returned(attempt, result)
        return move if attempt.transaction is None else await self._asettled(attempt, attempt.transaction, move)

    def _settled(self, attempt: Attempt, transaction: Transaction, move: Move | None) -> Move | None:
        """Commit a handler's transaction together with the completion; give what is left to be written."""
        if not transaction.open or move is None or move.verb is not Verb.COMPLETE:
            transaction.rollback()
            return move
        try:
            return self._answered(attempt, transaction.settle(move))
        except StoreError as error:
            return self.failed(attempt, error)

    async def _asettled(self, attempt: Attempt, transaction: Transaction, move: Move | None) -> Move | None:
        if not transaction.open or move is None or move.verb is not Verb.COMPLETE:
            await transaction.arollback()
            return move
        try:
            return self._answered(attempt, await transaction.asettle(move))
        except StoreError as error:
            return self.failed(attempt, error)

    def _answered(self, attempt: Attempt, answer: Answer) -> Move | None:
        if answer is not Answer.OK:
            log.warning("job %s: its transaction was undone, the completion was refused (%s)", attempt.job.id, answer)
        return None

    @staticmethod
    def bind(attempt: Attempt) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Validate the payload; give the handler and its arguments."""
        kind = attempt.kind
        assert kind is not None
        binder = kind.binder
        arguments = binder.decode(attempt.job.payload)
        if binder.context is not None:
            arguments = {**arguments, binder.context: Context(attempt.job, attempt)}
        return kind.fn, arguments

    def returned(self, attempt: Attempt, result: object) -> Move | None:
        """Settle an attempt whose handler returned."""
        if attempt.stop is Stop.LOST:
            return None
        if result is None:
            return lifecycle.complete(attempt.job, None, self._retention)
        try:
            text = codec.encode(result, "The result", self._settings.max_payload)
        except BadPayload as error:
            failure = Failure("bad_result", _short(str(error)), retryable=False)
            return self._fail(attempt.job, failure, None)
        return lifecycle.complete(attempt.job, text, self._retention)

    def failed(self, attempt: Attempt, error: BaseException) -> Move | None:
        """Settle an attempt whose handler raised."""
        if attempt.stop is not None and isinstance(error, AttemptStopped | asyncio.CancelledError):
            return self.stopped(attempt)
        if attempt.stop is Stop.LOST:
            return None
        if isinstance(error, Snooze):
            return lifecycle.snooze(attempt.job, round(error.seconds * SECOND))
        return self._fail(attempt.job, failure_of(error, attempt.kind), trace(error))

    def stopped(self, attempt: Attempt) -> Move | None:
        """Settle an attempt that was stopped from outside."""
        match attempt.stop:
            case Stop.TIMEOUT:
                return self._fail(
                    attempt.job, Failure("timeout", "the attempt took longer than its timeout", retryable=True), None
                )
            case Stop.CANCEL:
                return lifecycle.settle_cancel(attempt.job, self._retention)
            case Stop.RELEASE:
                return lifecycle.release(attempt.job)
            case _:
                return None

    def unknown_kind(self, job: JobRecord, now: int) -> Move:
        """Put off a job whose kind is not registered here; reject it once there has been time for a deployment."""
        if now - (job.started_at or now) < self._settings.unknown_kind_grace:
            return lifecycle.snooze(job, min(_UNKNOWN_KIND_PAUSE, self._settings.unknown_kind_grace // 2))
        failure = Failure("unknown_kind", f"no handler is registered for {_short(job.kind)}", retryable=False)
        return self._fail(job, failure, None)

    def complete(self, attempt: Attempt, result: str | None) -> Move | None:
        """Settle an attempt whose handler returned this JSON elsewhere."""
        return None if attempt.stop is Stop.LOST else lifecycle.complete(attempt.job, result, self._retention)

    def fail(self, attempt: Attempt, failure: Failure, text: str | None) -> Move | None:
        """Settle an attempt whose handler failed elsewhere."""
        return None if attempt.stop is Stop.LOST else self._fail(attempt.job, failure, text)

    def died(self, attempt: Attempt, code: str, message: str) -> Move | None:
        """Settle an attempt whose child process ended without an answer."""
        if attempt.stop is not None:
            return self.stopped(attempt)
        return self._fail(attempt.job, Failure(code, message, retryable=True), None)

    def _fail(self, job: JobRecord, failure: Failure, text: str | None) -> Move:
        return lifecycle.fail(job, failure, draw=self._draw(), retention=self._retention, traceback=text)


def failure_of(error: BaseException, kind: Kind | None) -> Failure:
    """Classify an exception. The message names the place, never the exception's own text, which may hold personal
    data.
    """
    if isinstance(error, Permanent):
        return Failure(_short(error.code), _short(_text(error)), retryable=False)
    if isinstance(error, BadPayload):
        return Failure(error.code, _short(_text(error)), retryable=False)
    name = type(error).__name__
    retryable = kind is None or not isinstance(error, kind.permanent)
    return Failure(_short(_WORDS.sub("_", name).lower()), _short(f"{name} {_place(error)}"), retryable)


def trace(error: BaseException) -> str:
    """Format a traceback, whatever the exception does to prevent it."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an exception's own methods may raise anything
        text = f"{type(error).__name__} (its traceback cannot be printed)"
    return text.encode(errors="replace").decode().replace("\x00", "\\x00")[-_LONGEST_TRACEBACK:]


def _place(error: BaseException) -> str:
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "raised"
    frame, line = frames[-1]
    return f"raised in {frame.f_code.co_name}, line {line} of {frame.f_code.co_filename.rpartition('/')[2]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - __str__ may raise anything
        return "(the message cannot be printed)"


def _short(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)[:_LONGEST_MESSAGE]
