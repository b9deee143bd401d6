"""Durable steps: what a workflow has behind it is read from the record, what lies ahead is run once and recorded.

The rules are scripts: generators that yield what is to be done (`Call` a function, write a `Move`, …) and are sent what
came of it. So they are the same for blocking and asynchronous workflows, and hold no I/O. A script that has to wait for
longer than a moment raises `Suspended` with the move that puts the workflow off: slot and lease are free meanwhile, and
whoever claims it next runs the function again from its beginning, past all that is recorded.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.client.asking import Call, Jobs, Keep, Last, Load, Rest, Script, Signals
from holdfast.client.outcomes import collected, encode_plain, is_as_said, opened, read_typed
from holdfast.domain import codec, lifecycle
from holdfast.domain.errors import BadInput
from holdfast.domain.job import NOTE, PLAIN, TERMINAL, JobRecord, NewJob, SignalRecord, StepRecord
from holdfast.domain.moments import HORIZON, Micros
from holdfast.domain.move import Move
from holdfast.domain.retry import Retry

T = TypeVar("T")
UNDO = "undo:"
CHILDREN = "$children"
"""The signal that wakes a parent whose children have ended."""
_SLEEP = "$sleep"
_TIMEOUT = {"$timeout": True}
_TAKEN = '{"payload":'
"""Begins the record of a wait whose signal came."""
FORKED = f"{NOTE}fork"
"""The note, in a fork, behind the records that are those of the job it was forked from."""
LONGEST_NAME = 200
_new = tuple.__new__
"""Makes a named tuple at a fraction of what its own way takes: for what is made for every step."""


class Suspended(BaseException):
    """Raised through a workflow's function when it must wait: `move` puts it off."""

    def __init__(self, move: Move) -> None:
        super().__init__("the workflow waits; let this exception pass")
        self.move = move


class Unwound(BaseException):
    """Raised through a workflow's function when all that is recorded has been gone through and is to be undone."""


class Stage(Protocol):
    """What the scripts need to know of the attempt they run in, and who carries them out."""

    recorded: dict[str, StepRecord]
    spends: Counter[object]
    """Credits that are not on record yet, by the step whose body spent them; or by branch, if spent between steps."""
    suspended: Move | None
    """The move that puts the workflow off, once it must wait."""

    @property
    def job(self) -> JobRecord: ...
    @property
    def trace_id(self) -> str | None: ...
    def drive(self, script: Script[T]) -> T: ...
    def promise(self, name: str, script: Script[T]) -> Coroutine[Any, Any, T]: ...
    def unawaited(self) -> str | None: ...
    def now(self) -> Micros: ...
    @property
    def spend(self) -> int: ...
    def take(self) -> int: ...
    def draw(self) -> float: ...
    def ids(self, count: int) -> list[str]: ...
    def encode(self, value: object, what: str) -> str: ...
    def fits(self, text: str) -> bool: ...
    def is_final(self, error: Exception) -> bool: ...
    def typed(self, kind: str, value: Any) -> Any: ...
    @property
    def patience(self) -> Micros:
        """The longest wait that is waited out in place."""
        ...


class _Undo(NamedTuple):
    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class Link(NamedTuple):
    """One step of a pipeline."""

    name: str
    fn: Callable[..., Any]
    room: int | None
    """How much it takes by position; None if there is no end to it."""
    context: str | None
    """The name of the parameter that wants the context."""
    undo: Callable[..., Any] | None
    undo_context: str | None
    retry: Retry | None
    timeout: Micros | None


class Durable:
    """The steps of one attempt."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._asked: dict[str, int] = {}
        self._undos: list[_Undo] = []
        self._waits: dict[str, list[str]] = {}
        """The waits that are under way, by signal, in the order asked for."""
        self._since = stage.job.claimed_at or 0
        """Stands for the time of what is recorded now: times are asked only of what was on record before."""
        self.undoing = lifecycle.undoing(stage.job)
        self._ahead = {name for name in stage.recorded if self._stands(name)} if self.undoing else set()
        """What is recorded and has not been asked for yet, while all that is left to do is to undo."""

    def key(self, name: str) -> str:
        """Give the name under which a step is recorded: its own, with a number from its second use on.

        A step that was undone in an earlier generation is a new one.
        """
        return self._key(checked_name(name))

    def _key(self, name: str) -> str:
        self._asked[name] = number = self._asked.get(name, 0) + 1
        key = name if number == 1 else f"{name}#{number}"
        return f"{key}@{self._stage.job.generation}" if self._stage.recorded and self._undone_before(key) else key

    def _undone_before(self, key: str) -> bool:
        """Tell whether a step was undone in an earlier generation."""
        undone = self._stage.recorded.get(f"{UNDO}{key}")
        return undone is not None and int(undone.result or 1) < self._stage.job.generation

    def _stands(self, name: str) -> bool:
        return not name.startswith((NOTE, UNDO)) and not self._undone_before(name)

    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        undo: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        timeout: Micros | None = None,
        advance: int | None = None,
        last: bool = False,
    ) -> Script[Any]:
        """Run a step and record its result; or give the result that is recorded. `last` tells that nothing is left to
        do behind it but to end the job with its result.
        """
        stage, value = self._stage, None
        record = self._found(key)
        if record is None:
            call = _new(Call, (key, fn, args, kwargs, timeout))
            try:
                value = (yield call) if retry is None else (yield from self._body(call, retry))
            except Exception:
                stage.spends.pop(key, None)
                raise
            text = encode_plain(value)
            certain = text is not None and is_as_said(fn, value)
            if text is None and value is not None:
                text = yield from self._kept(value, "The result of step", key)
            spend = stage.take() + stage.spends.pop(key, 0) if stage.spends else 0
            moved = self._one if advance is None else advance
            move = lifecycle.checkpoint(stage.job, key, text, advance=moved, undoable=undo is not None, spend=spend)
            if last and undo is None and (text is None or not codec.reference(text)):
                if not certain and text is not None:
                    value, certain = read_typed(fn, text), True
                yield _new(Last, (move, value))
            else:
                yield move
            stage.recorded[key] = _new(StepRecord, (key, text, self._since))
        else:
            text, certain = record.result, False
        if not certain:
            value = None if text is None else read_typed(fn, (yield from self._loaded(text)))
        if undo is not None:
            self._undos.append(_Undo(key, undo, args, kwargs, value))
        if self.undoing:
            self._pass(key)
        return value

    def _body(self, call: Call, retry: Retry) -> Script[Any]:
        """Run a step's function, again by its own policy; longer pauses are slept through outside the worker."""
        failures = self._failures(call.step, retry)
        while True:
            try:
                return (yield call)
            except Exception as error:
                self._stage.spends.pop(call.step, None)
                failures += 1
                if failures >= retry.max_attempts or self._stage.is_final(error):
                    raise
                pause = retry.delay(failures, self._stage.draw())
            if pause > self._stage.patience:
                note = f"{NOTE}try:{call.step}:{failures}"
                raise Suspended(lifecycle.suspend(self._stage.job, note, None, delay=pause))
            yield Rest(pause)

    def _failures(self, step: str, retry: Retry) -> int:
        """Say how often a step has failed by its own policy, as far as that is on record: notes bear the number."""
        numbers = range(1, retry.max_attempts)
        return max((number for number in numbers if f"{NOTE}try:{step}:{number}" in self._stage.recorded), default=0)

    def sleep(self, key: str, span: Micros) -> Script[None]:
        """Wait until a time that is counted from the first asking."""
        record = self._found(key)
        if record is None:
            text = codec.encode({_SLEEP: span}, "A sleep")
            self._suspend(key, text, delay=span, advance=self._one)
        else:
            left = record.recorded_at + _slept(record) - self._stage.now()
            if left > 0 and not self.undoing:
                self._suspend(key, record.result, delay=left, advance=0)
        self._pass(key)
        return None
        yield  # a script, though it has nothing to ask for

    def wait_for(self, key: str, name: str, timeout: Micros | None) -> Script[Any]:
        """Give the next signal of this name that was not taken before; `None` if it does not come in time."""
        record = self._found(key, also=f"{NOTE}wait:{key}")
        if record is None:
            self._waits.setdefault(name, []).append(key)
            signals: list[SignalRecord] = yield Signals()
            signal = self._arrived(key, name, signals)
            if signal is None:
                self._await(key, name, timeout, len(signals))
            self._waits[name].remove(key)
            if signal is None:
                text = codec.encode(_TIMEOUT, "A wait")
            else:
                text = f"{_TAKEN}{signal.payload or 'null'}}}"
                self._stage.recorded[key] = StepRecord(key, text, signal.sent_at)  # no other wait is to take it
                text = yield from self._put(text, f"The signal for {key!r}")
            yield from self._taken(key, text)
        else:
            text = record.result or "null"
        value = codec.decode((yield from self._loaded(text)))
        self._pass(key)
        return None if value == _TIMEOUT else value["payload"]

    def _arrived(self, key: str, name: str, signals: list[SignalRecord]) -> SignalRecord | None:
        """Give the first signal that no earlier wait has taken.

        Of waits side by side, the first that was asked for comes first; the others come back once it has its signal.
        """
        waits = [r for k, r in self._stage.recorded.items() if k == name or k.startswith(f"{name}#")]
        taken = sum(1 for wait in waits if wait.result is not None and wait.result.startswith((_TAKEN, codec.ARTIFACT)))
        free = [signal for signal in signals if signal.name == name][taken:]
        place = self._waits[name].index(key)
        if 0 < place < len(free):
            self._suspend(f"{NOTE}turn:{key}", None, delay=0)
        return free[0] if free and not place else None

    def _await(self, key: str, name: str, timeout: Micros | None, heard: int) -> None:
        """Suspend until the signal or the end of the time; comes back only if that is over."""
        note = f"{NOTE}wait:{key}"
        begun = self._stage.recorded.get(note)
        left = timeout
        if begun is not None and (span := codec.decode(begun.result or "null")) is not None:
            left = begun.recorded_at + span - self._stage.now()
            if left <= 0:
                return
        text = codec.encode(timeout, "A wait")
        self._suspend(note, text, delay=HORIZON if left is None else left, awaits=name, heard=heard)

    def gather(self, key: str, children: list[NewJob], failures: str) -> Script[list[Any]]:
        """Spawn children, wait until all have ended and give their results in order."""
        note = f"{NOTE}children:{key}"
        record = self._found(key, also=note)
        text = "" if record is None else record.result or "[]"
        if record is None:
            spawned = self._stage.recorded.get(note)
            if spawned is None:
                yield from self._spawn(note, children)
            ids: list[str] = codec.decode((yield from self._loaded(spawned.result or "[]"))) if spawned else []
            found: list[JobRecord | None] = yield Jobs(ids)
            if any(child is not None and child.state not in TERMINAL for child in found):
                self._suspend(note, None, awaits=CHILDREN, heard=(self._stage.job.flow or PLAIN).signals)
            ends = collected(ids, found, failures)
            for end, child in zip(ends, found, strict=True):
                if child is not None and "ok" in end and child.result is not None:
                    end["ok"] = codec.decode((yield from self._loaded(child.result)))
            text = yield from self._kept(ends, "What was gathered as", key)
            yield from self._taken(key, text)
        ends = codec.decode((yield from self._loaded(text)))
        self._pass(key)

        def typed(place: int, value: Any) -> Any:
            return self._stage.typed(children[place].kind, value) if place < len(children) else value

        return opened(ends, failures, typed)

    def _spawn(self, note: str, children: list[NewJob]) -> Script[None]:
        job = self._stage.job
        ids = self._stage.ids(len(children))
        family: list[tuple[str, NewJob]] = []
        for id_, new in zip(ids, children, strict=True):
            payload = yield from self._put(new.payload, f"The payload of {new.kind}")
            tenant, trace_id = new.tenant or job.tenant, new.trace_id or self._stage.trace_id
            family.append((id_, new._replace(payload=payload, parent=job.id, tenant=tenant, trace_id=trace_id)))
        heard = (job.flow or PLAIN).signals
        delay = HORIZON if family else 0
        text = yield from self._kept(ids, "The children of", note)
        self._suspend(note, text, delay=delay, awaits=CHILDREN, heard=heard, children=tuple(family))

    def pipeline(self, links: Sequence[Link], payload: Any, context: Any) -> Script[Any]:
        """Run the steps of a pipeline in order and give the result of the last.

        If the list has changed since the job was made: a recorded step that is no longer in it is of no account, and
        steps that were put before the last recorded one are left out, because the run is past them. A step that was
        undone is run again.
        """
        keys = [self._key(link.name) for link in links]
        recorded = self._stage.recorded
        past = max((place for place, key in enumerate(keys) if key in recorded), default=-1) if recorded else -1
        results: dict[str, Any] = {}
        for place, (link, key) in enumerate(zip(links, keys, strict=True)):
            if place < past and key == link.name and key not in recorded:
                continue
            given = (payload, dict(results))[: link.room]
            named = {} if link.context is None else {link.context: context}
            advance = self._advance(place + 1, len(links))
            undo = link.undo
            if undo is not None and link.undo_context is not None:
                undo = partial(undo, **{link.undo_context: context})
            results[link.name] = yield from self.step(
                *(key, link.fn, given, named),
                undo=undo,
                retry=link.retry,
                timeout=link.timeout,
                advance=advance,
                last=place + 1 == len(links),
            )
        if (left := self._advance(len(links), len(links))) and self._stage.job.steps_total and not self.undoing:
            yield from self._write(lifecycle.note(self._stage.job, f"{NOTE}end", None)._replace(advance=left))
        return results.get(links[-1].name)

    def _advance(self, done: int, steps: int) -> int:
        """Say how far the cursor moves when so many steps of a pipeline are done: it ends at the total that was fixed
        when the job was made, whatever the pipeline has become.
        """
        job = self._stage.job
        total = job.steps_total
        if not total:
            return 1
        reached = total if done == steps else done if done < total else total - 1
        return reached - job.step_cursor if reached > job.step_cursor else 0

    def undo(self) -> Script[None]:
        """Undo the recorded steps that can be undone, last first, each recorded like a step, with the generation.

        What a fork started out with is not its own to undo.
        """
        names = list(self._stage.recorded)
        inherited = set(names[: names.index(FORKED)]) if FORKED in names else set()
        for step in reversed(self._undos):
            key = f"{UNDO}{step.key}"
            if key not in self._stage.recorded and step.key not in inherited:
                arguments = undo_arguments(step.fn, step.result, step.args, step.kwargs)
                yield Call(key, step.fn, *arguments, timeout=None)
                yield from self._write(lifecycle.note(self._stage.job, key, str(self._stage.job.generation)))

    def _found(self, key: str, also: str | None = None) -> StepRecord | None:
        """Find a step's record. Credits spent before it (or before the note `also`) were written with it."""
        record = self._stage.recorded.get(key)
        if record is None and self.undoing:
            raise Unwound
        if record is not None or also in self._stage.recorded:
            self._stage.take()
        return record

    def _pass(self, key: str) -> None:
        """Stop behind the last record if all that is left to do is to undo: what comes next is not to run again."""
        self._ahead.discard(key)
        if self.undoing and not self._ahead:
            raise Unwound

    @property
    def _one(self) -> int:
        """How far a record moves the cursor, unless it is that of a pipeline's own step."""
        return 0 if self._stage.job.steps_total else 1

    def _taken(self, key: str, text: str) -> Script[None]:
        """Record what was waited for."""
        spend = self._stage.take()
        yield from self._write(lifecycle.checkpoint(self._stage.job, key, text, advance=self._one, spend=spend))

    def _write(self, move: Move) -> Script[None]:
        yield move
        if move.step is not None:
            self._stage.recorded[move.step] = StepRecord(move.step, move.result, self._since)

    def _kept(self, value: object, what: str, step: str) -> Script[str]:
        """Encode a value for the record of a step."""
        called = f"{what} {step!r}"
        return (yield from self._put(self._stage.encode(value, called), called))

    def _put(self, text: str, what: str) -> Script[str]:
        """Give what is recorded for a text: itself, or where it was put if it is too large."""
        return text if self._stage.fits(text) else (yield Keep(text, what))

    def _loaded(self, text: str) -> Script[str]:
        """Give the text that a record stands for."""
        return (yield Load(text)) if codec.reference(text) else text

    def _suspend(self, step: str, result: str | None, **how: Any) -> None:
        raise Suspended(lifecycle.suspend(self._stage.job, step, result, spend=self._stage.take(), **how))


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def undo_arguments(
    fn: Callable[..., Any], result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give an undo function what it takes: the step's result first, then the step's own arguments."""
    given = (result, *args)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # written in C, and silent about itself
        return (result,), {}
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        named = kwargs
    else:
        named = {parameter.name: kwargs[parameter.name] for parameter in parameters if parameter.name in kwargs}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return given, named
    free = [each for each in parameters if each.kind in _POSITIONAL and each.name not in named]
    if any(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in free):
        return given[: len(free)], named
    return (), {**dict(zip([each.name for each in free], given, strict=False)), **named}


def positional_room(fn: Callable[..., Any]) -> int | None:
    """Count the positional parameters of a function; None if there is no end to them."""
    kinds = [parameter.kind for parameter in inspect.signature(fn).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)


def checked_name(name: str) -> str:
    """Check a step's name: short printable text that does not look like one of our own records."""
    reserved = (NOTE, UNDO, "$")
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():
        msg = f"A step's name is 1 to {LONGEST_NAME} printable characters; {name!r:.60} is not."
        raise BadInput(msg)
    if name.startswith(reserved) or "#" in name or "@" in name:
        msg = f"A step's name has no '#' or '@' and does not begin with '~', '$' or 'undo:'; {name!r} does."
        raise BadInput(msg)
    return name


def awake(result: str | None) -> str | None:
    """Give the record of a step for a job that starts out with it: a sleep is over."""
    slept = result is not None and result.startswith(f'{{"{_SLEEP}":')
    return codec.encode({_SLEEP: 0}, "A sleep") if slept else result


def _slept(record: StepRecord) -> Micros:
    value = codec.decode(record.result or "null")
    return int(value[_SLEEP]) if isinstance(value, dict) and _SLEEP in value else 0
