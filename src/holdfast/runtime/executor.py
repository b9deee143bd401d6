"""From a claimed job to the move that settles it: decode, call, and turn whatever came of it into a decision of the
lifecycle.

Whatever a handler does (raise BaseException, call `sys.exit`, return something that is not JSON, raise an exception
that cannot be printed) ends as
a recorded outcome; nothing that a handler does may end the worker.
"""

import asyncio
import inspect
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.client.context import AttemptStopped, Context
from holdfast.client.durable import Suspended
from holdfast.client.logs import about
from holdfast.client.registry import Kind
from holdfast.client.settings import Settings
from holdfast.domain import codec, events, lifecycle
from holdfast.domain.errors import (
    ArtifactDamaged,
    BadInput,
    BadPayload,
    HoldfastError,
    InsufficientCredits,
    Permanent,
    Snooze,
    StoreError,
)
from holdfast.domain.job import Failure, JobRecord
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer, Move, Verb, joined
from holdfast.port.transaction import Transaction
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.hands import Hands
from holdfast.runtime.stage import AttemptStage
from holdfast.runtime.telemetry.watch import Watch

log = logging.getLogger("holdfast.executor")
_OWN_CODE = str(Path(__file__).parents[1]) + os.sep
_LONGEST_MESSAGE = 200
_LONGEST_TRACEBACK = 16_000
_UNKNOWN_KIND_PAUSE = 5 * SECOND
_MISSING_CODE_PAUSE = 30 * SECOND
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]")


class Executor:
    """Decides outcomes with one application's settings. `draw` gives the randomness for jitter."""

    def __init__(
        self,
        settings: Settings,
        draw: Callable[[], float],
        transact: Callable[[], Transaction] | None = None,
        hands: Hands | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch
        self._hands = hands
        self._settings = settings
        self._retention = settings.retention
        self._draw = draw
        self._transact = transact
        self._artifacts = settings.artifacts
        self._load = settings.artifacts.load

    def call(self, attempt: Attempt) -> Move | None:
        """Run a synchronous handler and give the move that settles the attempt; None if it may not be settled any
        more.
        """
        if self.watch is None:
            return self._call(attempt)
        with self.watch.scope(attempt):
            return self._call(attempt)

    def _call(self, attempt: Attempt) -> Move | None:
        kind, job = attempt.kind, attempt.job
        assert kind is not None
        if kind.binder.context is not None or job.flow is not None:
            return self._call_on_stage(attempt)
        try:
            fn, arguments = self.bind(attempt)
            result = fn(**arguments)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return self.failed(attempt, error)
        return self.returned(attempt, result)

    def _call_on_stage(self, attempt: Attempt) -> Move | None:
        attempt.transact = self._transact
        try:
            if (stage := self.stage(attempt)) is not None:
                stage.open()
            fn, arguments = self.bind(attempt)
            if lifecycle.undoing(attempt.job):
                return self._undone(attempt, stage, fn, arguments)
            result = fn(**arguments)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            attempt.undo()
            return self.failed(attempt, error)
        attempt.undo_steps()
        move = self.returned(attempt, result)
        return move if attempt.transaction is None else self._settled(attempt, attempt.transaction, move)

    def opens(self, attempt: Attempt) -> bool:
        """Tell whether an attempt can be run by `walk`: a pipeline that is not to be undone."""
        kind = attempt.kind
        return bool(kind and kind.links) and self._hands is not None and not lifecycle.undoing(attempt.job)

    def walk(self, attempt: Attempt) -> tuple[Move | None, Move | None]:
        """Run a pipeline up to its next record, and give that; or, once it has ended, the move that settles it."""
        if self.watch is None:
            return self._walk(attempt)
        with self.watch.scope(attempt):
            return self._walk(attempt)

    def _walk(self, attempt: Attempt) -> tuple[Move | None, Move | None]:
        try:
            if attempt.script is None:
                self._begin_pipeline(attempt)
            assert attempt.script is not None
            assert isinstance(attempt.stage, AttemptStage)
            written = attempt.stage.walk(attempt.script)
            if written is not None:
                return written, None
        except BaseException as error:  # noqa: BLE001 - a step may raise anything
            attempt.undo()
            return None, self.failed(attempt, error)
        attempt.undo_steps()
        move = self.returned(attempt, attempt.stage.result)
        if attempt.last is not None:
            end = self._joined(attempt, attempt.last, move)
            return (attempt.stage.apart(), None) if end is None else (None, end)
        return None, move if attempt.transaction is None else self._settled(attempt, attempt.transaction, move)

    def _joined(self, attempt: Attempt, last: Move, move: Move | None) -> Move | None:
        """Let the completion of a pipeline record its last step, unless each of them has to be told of."""
        alone = attempt.transaction is None and attempt.stop is None and not self._settings.events
        return joined(attempt.job, last, move) if alone and move is not None else None

    def _begin_pipeline(self, attempt: Attempt) -> None:
        attempt.transact = self._transact
        stage = self.stage(attempt)
        assert stage is not None
        assert attempt.kind is not None
        stage.open()
        _, arguments = self.bind(attempt)
        payload, context = arguments["payload"], arguments["ctx"]
        attempt.script = attempt.workflow().pipeline(attempt.kind.links, payload, context)

    async def acall(self, attempt: Attempt) -> Move | None:
        """Run an asynchronous handler likewise."""
        if self.watch is None:
            return await self._acall(attempt)
        with self.watch.scope(attempt):
            return await self._acall(attempt)

    async def _acall(self, attempt: Attempt) -> Move | None:
        attempt.transact = self._transact
        try:
            if (stage := self.stage(attempt)) is not None and stage.has_past:
                await asyncio.to_thread(stage.open)
            fn, arguments = self.bind(attempt)
            if lifecycle.undoing(attempt.job):
                return await self._aundone(attempt, stage, fn, arguments)
            result = await fn(**arguments)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            await attempt.aundo()
            return self.failed(attempt, error)
        await attempt.aundo_steps()
        move = self.returned(attempt, result)
        return move if attempt.transaction is None else await self._asettled(attempt, attempt.transaction, move)

    def stage(self, attempt: Attempt) -> AttemptStage | None:
        """Set the stage for a handler that asks for its context."""
        assert attempt.kind is not None
        if self._hands is None or attempt.kind.binder.context is None:
            return None
        attempt.stage = stage = AttemptStage(attempt, self._hands)
        return stage

    def _undone(
        self, attempt: Attempt, stage: AttemptStage | None, fn: Callable[..., Any], arguments: dict[str, Any]
    ) -> Move:
        """Go through a workflow's record once more to learn what there is to undo, undo it, and end the job."""
        if stage is not None:
            with _unwinding(attempt):
                fn(**arguments)
            stage.drive(attempt.workflow().undo())
        return lifecycle.undo(attempt.job, self._retention)

    async def _aundone(
        self, attempt: Attempt, stage: AttemptStage | None, fn: Callable[..., Any], arguments: dict[str, Any]
    ) -> Move:
        if stage is not None:
            with _unwinding(attempt):
                await fn(**arguments)
            await stage.adrive(attempt.workflow().undo())
        return lifecycle.undo(attempt.job, self._retention)

    def _settled(self, attempt: Attempt, transaction: Transaction, move: Move | None) -> Move | None:
        """Commit a handler's transaction together with the completion; give what is left to be written."""
        if not transaction.open or move is None or move.verb is not Verb.COMPLETE:
            transaction.rollback()
            return move
        try:
            return self._answered(attempt, move, transaction.settle(self._told(attempt, move)))
        except Exception as error:  # noqa: BLE001 - the handler had the connection, and may have done anything to it
            return self.failed(attempt, error)

    async def _asettled(self, attempt: Attempt, transaction: Transaction, move: Move | None) -> Move | None:
        if not transaction.open or move is None or move.verb is not Verb.COMPLETE:
            await transaction.arollback()
            return move
        try:
            return self._answered(attempt, move, await transaction.asettle(self._told(attempt, move)))
        except Exception as error:  # noqa: BLE001 - the handler had the connection, and may have done anything to it
            return self.failed(attempt, error)

    def _told(self, attempt: Attempt, move: Move) -> Move:
        return events.told(attempt.job, move, public=self._settings.events)

    def _answered(self, attempt: Attempt, move: Move, answer: Answer) -> Move | None:
        if answer is Answer.UNPAID:
            return self.unpaid(attempt)
        if answer is not Answer.OK:
            text = "job %s: its transaction was undone, the completion was refused (%s)"
            log.warning(text, attempt.job.id, answer, extra=about(attempt.job))
        if self.watch is not None:
            self.watch.answered(attempt, move, answer)
        return None

    def bind(self, attempt: Attempt) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Validate the payload; give the handler and its arguments."""
        kind = attempt.kind
        assert kind is not None
        binder, payload = kind.binder, attempt.job.payload
        arguments = binder.decode(self._load(payload) if payload.startswith(codec.ARTIFACT) else payload)
        if binder.context is not None:
            arguments = {**arguments, binder.context: Context(attempt.job, attempt, awaited=kind.is_async)}
        return kind.fn, arguments

    def returned(self, attempt: Attempt, result: object) -> Move | None:
        """Settle an attempt whose handler returned."""
        if attempt.stop is not None and attempt.stop is Stop.LOST:
            return None
        if attempt.stage is not None:
            if attempt.stage.suspended is not None:
                return attempt.stage.suspended
            if (name := attempt.stage.unawaited()) is not None:
                said = _short(f"The handler returned and never awaited {name!r} of its context; write await before it.")
                return self._fail(attempt.job, Failure("not_awaited", said, retryable=False), None)
        if result is None:
            return lifecycle.complete(attempt.job, None, self._retention, spend=attempt.spend)
        try:
            text = codec.encode(result, "The result", self._artifacts.largest)
            if attempt.stage is None and self._artifacts.fits(text):
                return lifecycle.complete(attempt.job, text, self._retention)
            return self._completed(attempt, text)
        except BadPayload as error:
            said = _unawaited(result) or _short(str(error))
            return self._fail(attempt.job, Failure("bad_result", said, retryable=False), None)
        except BaseException as error:  # noqa: BLE001 - a result's own code runs while it is written
            return self.failed(attempt, error)

    def _completed(self, attempt: Attempt, text: str) -> Move:
        """Complete a job with a result that is kept where there is room for it."""
        try:
            kept = self._settings.artifacts.keep(text, "The result")
        except StoreError as error:
            return self._fail(attempt.job, Failure(error.code, _short(str(error)), retryable=True), None)
        return lifecycle.complete(attempt.job, kept, self._retention, spend=attempt.spend)

    def failed(self, attempt: Attempt, error: BaseException) -> Move | None:
        """Settle an attempt whose handler raised."""
        if attempt.stop is not None and isinstance(error, AttemptStopped | asyncio.CancelledError):
            return self.stopped(attempt)
        if attempt.stop is Stop.LOST:
            return None
        if isinstance(error, Suspended):
            return error.move
        if attempt.stage is not None and attempt.stage.suspended is not None:
            return attempt.stage.suspended
        if isinstance(error, Snooze):
            return lifecycle.snooze(attempt.job, round(error.seconds * SECOND))
        if self.watch is not None:
            attempt.error = error
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
        """Put off a job whose kind is not registered here; reject it once there has been time for a deployment.

        A run that has steps behind it, or whose kind is here in another version, is never rejected: it waits for its
        code.
        """
        known = self._hands is not None and job.kind in self._hands.registry
        if job.step_cursor or job.flow is not None or known:
            return lifecycle.snooze(job, _MISSING_CODE_PAUSE)
        if now - (job.started_at or now) < self._settings.unknown_kind_grace:
            return lifecycle.snooze(job, min(_UNKNOWN_KIND_PAUSE, self._settings.unknown_kind_grace // 2))
        failure = Failure("unknown_kind", f"no handler is registered for {_short(job.kind)}", retryable=False)
        return self._fail(job, failure, None)

    def unpaid(self, attempt: Attempt) -> Move:
        """Settle an attempt whose outcome cost more than the tenant's account holds."""
        message = "the tenant's account does not hold what the job has spent"
        return self._fail(attempt.job, Failure(InsufficientCredits.code, message, retryable=True), None)

    def packed(self, attempt: Attempt) -> tuple[JobRecord, int]:
        """Give what a handler elsewhere needs: the job with its payload, and how large its result may be."""
        artifacts = self._settings.artifacts
        return attempt.job._replace(payload=artifacts.load(attempt.job.payload)), artifacts.largest

    def complete(self, attempt: Attempt, result: str | None) -> Move | None:
        """Settle an attempt whose handler returned this JSON elsewhere."""
        if attempt.stop is Stop.LOST:
            return None
        return (
            lifecycle.complete(attempt.job, None, self._retention)
            if result is None
            else self._completed(attempt, result)
        )

    def fail(self, attempt: Attempt, failure: Failure, text: str | None) -> Move | None:
        """Settle an attempt whose handler failed elsewhere."""
        return None if attempt.stop is Stop.LOST else self._fail(attempt.job, failure, text)

    def died(self, attempt: Attempt, code: str, message: str) -> Move | None:
        """Settle an attempt whose child process ended without an answer."""
        if attempt.stop is not None:
            return self.stopped(attempt)
        return self._fail(attempt.job, Failure(code, message, retryable=True), None)

    def _fail(self, job: JobRecord, failure: Failure, text: str | None) -> Move:
        told = None if text is None else self._settings.redaction.text(text)
        move = lifecycle.fail(job, failure, draw=self._draw(), retention=self._retention, traceback=told)
        level = logging.WARNING if move.cause is not None else logging.INFO
        text = "job %s: attempt %d failed: %s (%s); %s"
        log.log(level, text, job.id, job.attempt, failure.code, failure.message, _next(move), extra=about(job))
        return move


@contextmanager
def _unwinding(attempt: Attempt) -> Iterator[None]:
    """Let a workflow's function come to the end of its record, however that looks; a stop from outside is a stop."""
    try:
        yield
    except (AttemptStopped, asyncio.CancelledError):
        if attempt.stop is not None:
            raise
    except BaseException:  # noqa: BLE001, S110 - what brought the job to its end is on record already
        pass


def _unawaited(result: object) -> str:
    """Say so if a handler gave work to be awaited in place of a result; that work is not begun."""
    if not inspect.iscoroutine(result):
        return ""
    result.close()
    return "The handler returned a coroutine, which nobody awaits; make the handler itself async."


def failure_of(error: BaseException, kind: Kind | None) -> Failure:
    """Classify an exception. The message names the place, never the exception's own text, which may hold personal
    data. A wrong call of Holdfast's own (`BadInput`) would be as wrong the next time.
    """
    error = _blamed(error, kind)
    if isinstance(error, Permanent):
        return Failure(_short(_text(error.code)), _short(_text(error)), retryable=False)
    if isinstance(error, BadPayload | ArtifactDamaged):
        return Failure(error.code, _short(_text(error)), retryable=False)
    name = type(error).__name__
    retryable = not isinstance(error, (BadInput, *(() if kind is None else kind.permanent)))
    return Failure(_short(_WORDS.sub("_", name).lower()), _short(f"{name} {_place(error)}"), retryable)


def _blamed(error: BaseException, kind: Kind | None) -> BaseException:
    """Find in a group the one exception that decides: one that is not to be retried, or the only one there is."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_blamed(each, kind) for each in error.exceptions]
    final = (Permanent, BadInput, *(() if kind is None else kind.permanent))
    return next((each for each in inner if isinstance(each, final)), inner[0] if len(inner) == 1 else error)


def trace(error: BaseException) -> str:
    """Format a traceback, whatever the exception does to prevent it."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an exception's own methods may raise anything
        text = f"{type(error).__name__} (its traceback cannot be printed)"
    return text.encode(errors="replace").decode().replace("\x00", "\\x00")[-_LONGEST_TRACEBACK:]


def _place(error: BaseException) -> str:
    """Say where it was raised; an error of Holdfast's own, where Holdfast was called."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "raised"
    theirs = [one for one in frames if not one[0].f_code.co_filename.startswith(_OWN_CODE)]
    frame, line = (theirs or frames)[-1] if isinstance(error, HoldfastError) else frames[-1]
    return f"raised in {frame.f_code.co_name}, line {line} of {frame.f_code.co_filename.rpartition('/')[2]}"


def _text(said: object) -> str:
    try:
        return str(said)
    except BaseException:  # noqa: BLE001 - __str__ may raise anything
        return "(the message cannot be printed)"


def _next(move: Move) -> str:
    if move.cause is not None:
        return f"it is dead ({move.cause})"
    return "its steps are undone" if move.ending else f"it runs again in {(move.delay or 0) / SECOND:g} s"


def _short(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)[:_LONGEST_MESSAGE]
