"""Where steps are done: carries out what the scripts of `client.durable` ask for, in a thread or on the event loop."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from holdfast.client.asking import Call, Jobs, Keep, Last, Load, Request, Rest, Script
from holdfast.client.context import CURRENT_STEP, AttemptStopped, branch
from holdfast.client.durable import Suspended, Unwound
from holdfast.domain import codec, events, lifecycle
from holdfast.domain.errors import (
    BadInput,
    BadPayload,
    CommitUnknown,
    InsufficientCredits,
    Permanent,
    Snooze,
    StoreError,
)
from holdfast.domain.job import JobRecord, StepRecord
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Move
from holdfast.port.transaction import Transaction
from holdfast.runtime.alarm import Alarm
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.body import limited, plainly
from holdfast.runtime.hands import Hands

T = TypeVar("T")
_TROUBLE = 0.2
_MANY_PAUSE: Micros = 30 * SECOND
"""How long a workflow is put off at most that waits for several signals at once: only one of them wakes it."""
_OK = Answer.OK
_INSIDE: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("holdfast_inside", default=())
"""The scripts that one runs inside of, as in the body of a step, and itself."""


class AttemptStage:
    """The steps of one attempt, as `client.durable` sees them and as they are carried out."""

    def __init__(self, attempt: Attempt, hands: Hands) -> None:
        self._attempt = attempt
        self._hands = hands
        self.recorded: dict[str, StepRecord] = {}
        self.spends: Counter[object] = Counter()
        self.suspended: Move | None = None
        self.result: Any = None
        """What a pipeline that has ended gave."""
        self._scripts: set[object] = set()
        """The scripts that are under way on the event loop."""
        self._waiting: list[Move] = []
        """What the scripts that must wait would put the workflow off with."""
        self._promised: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}
        """The scripts that were asked for on the event loop and have not begun."""

    @functools.cached_property
    def _resting(self) -> Counter[object]:
        """The scripts that wait for the others, or for one that does."""
        return Counter()

    @functools.cached_property
    def _quiet(self) -> asyncio.Event:
        return asyncio.Event()

    @functools.cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    @property
    def has_past(self) -> bool:
        """Whether anything can be recorded of the job."""
        return self.job.token > 1 or self.job.step_cursor > 0

    def open(self) -> None:
        """Read what is recorded, unless there cannot be anything."""
        if self.has_past:
            found = self._patiently(lambda: self._hands.store.steps(self.job.id))
            self.recorded = {step.name: step for step in found}

    @property
    def job(self) -> JobRecord:
        """The job as its holder knows it."""
        return self._attempt.job

    @property
    def patience(self) -> Micros:
        """The longest wait that is waited out in place."""
        return self._hands.patience

    @property
    def spend(self) -> int:
        """The credits spent between steps that are not on record yet."""
        return sum(spent for key, spent in self.spends.items() if not isinstance(key, str)) if self.spends else 0

    def take(self) -> int:
        """Give the credits spent between steps by this branch of the workflow, and forget them."""
        return self.spends.pop(branch(), 0) if self.spends else 0

    @property
    def trace_id(self) -> str | None:
        """The trace that the job's children belong to."""
        watch = self._hands.watch
        return (None if watch is None else watch.context(self._attempt)) or self.job.trace_id

    def now(self) -> Micros:
        """Give the store's time."""
        return self._hands.store.now()

    def draw(self) -> float:
        """Draw for jitter."""
        return self._hands.draw()

    def ids(self, count: int) -> list[str]:
        """Make ids for children."""
        return self._hands.ids(count)

    def encode(self, value: object, what: str) -> str:
        """Encode a value for the record; what JSON cannot hold will not be better next time."""
        try:
            return codec.encode(value, what, self._hands.settings.artifacts.largest)
        except BadPayload as error:
            raise Permanent(str(error), code="bad_result") from error

    def fits(self, text: str) -> bool:
        """Tell whether a record has room for a text."""
        return self._hands.settings.artifacts.fits(text)

    def is_final(self, error: Exception) -> bool:
        """Tell whether a step that failed so is not to be tried again."""
        kind = self._attempt.kind
        return isinstance(error, (Permanent, Snooze, BadInput, *(() if kind is None else kind.permanent)))

    def typed(self, kind: str, value: Any) -> Any:
        """Give a child's result as its kind says it returns it."""
        known = self._hands.registry.get(kind)
        return value if known is None else known.read_value(value)

    def drive(self, script: Script[T]) -> T:
        """Carry a script out in this thread."""
        self._go_on()
        step, value = script.send, None
        while True:
            try:
                request = step(value)
            except StopIteration as end:
                return cast("T", end.value)
            except Suspended as wait:
                self.suspended = wait.move
                raise
            try:
                value, step = self._do(request), script.send
            except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                value, step = error, script.throw

    def walk(self, script: Script[Any]) -> Move | None:
        """Carry a script out up to its next record, and give that; None once it has ended, with what it gave."""
        attempt = self._attempt
        step, value = script.send, None
        if attempt.answer is _OK and attempt.written is not None:
            attempt.job = lifecycle.after_checkpoint(attempt.job, attempt.written)
        elif attempt.written is not None:
            try:
                self._answered(attempt.written)
            except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                value, step = error, script.throw
        while True:
            try:
                request = step(value)
            except StopIteration as end:
                self.result = end.value
                return None
            apart = not attempt.within  # else a record is to be committed with what its body wrote
            if apart and type(request) is Last:
                if self._hands.store.capabilities.joins:
                    attempt.last, self.result = request.record, request.value
                    return None
                request = request.record
            if apart and type(request) is Move:
                attempt.written, attempt.answer = self._told(request), None
                return attempt.written
            try:
                value, step = self._call(request) if type(request) is Call else self._do(request), script.send
            except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                value, step = error, script.throw

    def apart(self) -> Move | None:
        """Give the record of the last step, if there is one that could not be joined with the end of the job."""
        attempt = self._attempt
        if attempt.last is not None:
            attempt.written, attempt.answer, attempt.last = self._told(attempt.last), None, None
            return attempt.written
        return None

    def _answered(self, move: Move) -> None:
        answer = self._attempt.answer
        if answer is None:
            raise AttemptStopped
        self.heed(move, answer)

    def promise(self, name: str, script: Script[T]) -> Coroutine[Any, Any, T]:
        """Give what carries a script out on the event loop once it is awaited; the name is told if it never is."""
        promised = self.adrive(script)
        self._promised[script] = (name, promised)
        return promised

    def unawaited(self) -> str | None:
        """Name what was asked for and never awaited, if there is such a thing; it will not be done any more."""
        if not self._promised:
            return None
        names = [
            name for name, each in self._promised.values() if inspect.getcoroutinestate(each) == inspect.CORO_CREATED
        ]
        for _, each in self._promised.values():
            each.close()
        return names[0] if names else None

    async def adrive(self, script: Script[T]) -> T:
        """Carry a script out on the event loop. Before the workflow is put off, steps that are under way beside this
        one come to their end.
        """
        self._promised.pop(script, None)
        self._go_on()
        outside = _INSIDE.get()
        _INSIDE.set((*outside, script))
        self._scripts.add(script)
        self._quiet.clear()
        try:
            return await self._carry_out(script)
        except Suspended as wait:
            self._waiting.append(wait.move)
            await self._others()
            async with self._turn:
                if self.suspended is None:
                    self.suspended = await self._put_off(self._waiting)
            raise Suspended(self.suspended) from wait
        except Unwound:
            await self._others()
            raise
        finally:
            self._scripts.discard(script)
            self._look_round()
            _INSIDE.set(outside)

    async def _carry_out(self, script: Script[T]) -> T:
        step, value = script.send, None
        while True:
            try:
                request = step(value)
            except StopIteration as end:
                return cast("T", end.value)
            try:
                value, step = await self._ado(request), script.send
            except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                value, step = error, script.throw

    async def _others(self) -> None:
        """Let the scripts beside this one come to their end, or to where they must wait as well. Those that it runs
        inside of do neither before it does.
        """
        chain = _INSIDE.get()
        self._resting.update(chain)
        self._look_round()
        try:
            await asyncio.sleep(0)  # those that were asked for together with this one have not begun yet
            while self._busy():
                await self._quiet.wait()
        finally:
            self._resting.subtract(chain)
            self._look_round()

    async def _put_off(self, waits: list[Move]) -> Move:
        """Decide on one move for all waits: until the first is over, with the others on record, so that their time
        runs too.
        """
        chosen, *others = sorted(waits, key=lambda move: move.delay or 0)
        for other in others:
            assert other.step is not None
            record = lifecycle.checkpoint(self.job, other.step, other.result, advance=other.advance, spend=other.spend)
            await self._awrite(record._replace(children=other.children, charged=other.charged))
        awaits = [move for move in waits if move.awaits is not None]
        if others and awaits:
            chosen = chosen._replace(awaits=awaits[0].awaits, heard=awaits[0].heard)
        if len({move.awaits for move in awaits}) > 1:
            chosen = chosen._replace(delay=min(chosen.delay or 0, _MANY_PAUSE))
        return chosen

    def _busy(self) -> bool:
        return any(not self._resting[script] for script in self._scripts)

    def _look_round(self) -> None:
        if self._busy():
            self._quiet.clear()
        else:
            self._quiet.set()

    def _go_on(self) -> None:
        """Nothing more is done once the workflow is put off, whatever its function made of that."""
        if self.suspended is not None:
            raise Suspended(self.suspended)

    def _do(self, request: Request) -> Any:
        match request:
            case Call():
                return self._call(request)
            case Move():
                return self._write(request)
            case Last(record):
                return self._write(record)
            case Rest(span):
                return self._pause(span / SECOND)
            case _:
                return self._read(request)

    async def _ado(self, request: Request) -> Any:
        match request:
            case Call():
                return await self._acall(request)
            case Move():
                return await self._awrite(request)
            case Last(record):
                return await self._awrite(record)
            case Rest(span):
                await asyncio.sleep(span / SECOND)
                return None
            case _:
                return await self._in_thread(functools.partial(self._read, request))

    def _read(self, request: Request) -> Any:
        store = self._hands.store
        match request:
            case Keep(text, what):
                return self._kept(text, what)
            case Load(reference):
                return self._hands.settings.artifacts.load(reference)
            case Jobs(ids):
                return self._patiently(lambda: store.read(ids)) if ids else []
            case _:
                return self._patiently(lambda: store.signals(self.job.id))

    def _kept(self, text: str, what: str) -> str:
        try:
            return self._hands.settings.artifacts.keep(text, what)
        except BadPayload as error:
            raise Permanent(str(error), code="bad_result") from error

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the store until it answers; the lease is what limits the asking."""
        while True:
            try:
                return ask()
            except StoreError:
                self._begin()
                self._pause(_TROUBLE)

    def _call(self, call: Call) -> Any:
        if self._attempt.stop is not None:
            self._begin()
        if self._hands.watch is None:
            return self._body(call)
        with self._hands.watch.step(self._attempt, call.step):
            return self._body(call)

    def _body(self, call: Call) -> Any:
        token = CURRENT_STEP.set(call.step)
        try:
            if call.timeout is None:
                result = call.fn(*call.args, **call.kwargs)
            else:
                with Alarm(call.timeout):
                    result = call.fn(*call.args, **call.kwargs)
            return asyncio.run(limited(result, call.timeout)) if hasattr(result, "__await__") else result
        except BaseException:
            self._attempt.undo_steps(call.step)
            raise
        finally:
            CURRENT_STEP.reset(token)

    async def _acall(self, call: Call) -> Any:
        self._begin()
        if self._hands.watch is None:
            return await self._abody(call)
        with self._hands.watch.step(self._attempt, call.step):
            return await self._abody(call)

    async def _abody(self, call: Call) -> Any:
        token = CURRENT_STEP.set(call.step)
        try:
            return await limited(self._result(call), call.timeout)
        except BaseException:
            await self._attempt.aundo_steps(call.step)
            raise
        finally:
            CURRENT_STEP.reset(token)

    async def _result(self, call: Call) -> Any:
        if inspect.iscoroutinefunction(call.fn):
            return await call.fn(*call.args, **call.kwargs)
        result = await self._in_thread(functools.partial(contextvars.copy_context().run, plainly, call))
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, fn: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._hands.threads.run(fn))

    def _begin(self) -> None:
        """Fence: no step begins once the attempt was told to stop."""
        if self._attempt.stopping:
            raise AttemptStopped

    def _write(self, move: Move) -> None:
        move = self._told(move)
        if (transaction := self._attempt.left_open(move)) is not None:
            return self.heed(move, self._committed(move, transaction))
        while True:
            try:
                return self.heed(move, self._hands.committer.share(move))
            except StoreError:  # whatever became of it, it can be asked again; the lease is what limits the asking
                self._begin()
                self._pause(_TROUBLE)

    def _committed(self, move: Move, transaction: Transaction) -> Answer:
        """Record a step in the transaction of its body, and commit that."""
        try:
            return transaction.settle(move)
        except CommitUnknown:
            return self._found_out(move)

    def _found_out(self, move: Move) -> Answer:
        """See whether a step is on record. If not, that may yet come, and to run its body here once more could write
        all of it twice: so the job is given back, which waits for the end of the transaction that was lost.
        """
        found = self._patiently(lambda: self._hands.store.steps(self.job.id))
        if all(step.name != move.step for step in found):
            self._attempt.stop = self._attempt.stop or Stop.RELEASE
            raise AttemptStopped
        return Answer.OK

    async def _acommitted(self, move: Move, transaction: Transaction) -> Answer:
        try:
            return await transaction.asettle(move)
        except CommitUnknown:
            return await self._in_thread(functools.partial(self._found_out, move))

    async def _awrite(self, move: Move) -> None:
        move = self._told(move)
        if (transaction := self._attempt.left_open(move)) is not None:
            return self.heed(move, await self._acommitted(move, transaction))
        while True:
            try:
                return self.heed(move, await self._hands.committer.ashare(move))
            except StoreError:
                self._begin()
                await asyncio.sleep(_TROUBLE)

    def _told(self, move: Move) -> Move:
        return events.told(self.job, move, public=self._hands.settings.events)

    def heed(self, move: Move, answer: Answer) -> None:
        """Take in what the store answered to a move."""
        attempt = self._attempt
        if answer is Answer.OK:
            attempt.job = lifecycle.after_checkpoint(attempt.job, move)
            return
        match answer:
            case Answer.UNPAID:
                msg = f"The account of tenant {attempt.job.tenant!r} does not hold {move.spend} credits more."
                raise InsufficientCredits(msg)
            case Answer.UNWRITABLE:
                msg = f"the store cannot keep the result of step {move.step!r}"
                raise Permanent(msg, code="bad_result")
            case Answer.CANCEL_REQUESTED:
                attempt.stop = attempt.stop or Stop.CANCEL
                raise AttemptStopped
            case _:
                attempt.stop = Stop.LOST
                raise AttemptStopped

    def _pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)
        self._begin()
