"""What can be watched, and how several watches are one."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Inserted, Store
from holdfast.runtime.attempt import Attempt

log = logging.getLogger("holdfast.telemetry")
Settled = tuple[Attempt, Move]


class Crewed(Protocol):
    """A worker, as far as a watch looks at it by itself."""

    @property
    def slots(self) -> int:
        """How many jobs it runs at once."""
        ...

    @property
    def busy(self) -> int:
        """How many handlers are running."""
        ...

    def ages(self) -> dict[str, float]:
        """How many seconds ago each of its loops last did what it is for."""
        ...


class Watch:
    """Is told what happens; does nothing about it unless a method is overridden."""

    def store(self, store: Store) -> Store:
        """Give the store to use in place of this one."""
        return store

    def opened(self, crewed: Crewed) -> None:
        """A worker is about to begin."""

    def closed(self, crewed: Crewed) -> None:
        """A worker has ended."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Jobs are about to be stored together; gives what is to be stored."""
        return nullcontext(jobs)

    def enqueued(self, jobs: Sequence[Inserted]) -> None:
        """They have been; told inside `enqueuing`."""

    def claimed(self, attempts: Sequence[Attempt]) -> None:
        """A worker has claimed jobs."""

    def began(self, attempt: Attempt) -> None:
        """A handler is about to run."""

    def scope(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Surround the handler's call; a pipeline is surrounded once for each of its steps."""
        return nullcontext()

    def step(self, attempt: Attempt, name: str) -> AbstractContextManager[None]:
        """Surround the body of a step."""
        return nullcontext()

    def finished(self, attempt: Attempt, move: Move | None) -> None:
        """An attempt has come to its end, which is not written yet; no move means that nothing may be written."""

    def answered(self, attempt: Attempt, move: Move, answer: Answer) -> None:
        """The store has answered to the end of one attempt."""
        if answer is Answer.OK:
            self.settled([(attempt, move)])
        else:
            self.refused(attempt.job, move, answer)

    def settled(self, settled: Sequence[Settled]) -> None:
        """The ends of attempts have been written."""

    def refused(self, job: JobRecord, move: Move, answer: Answer) -> None:
        """The store refused to write the end of an attempt: it is somebody else's by now."""

    def lost(self, attempt: Attempt) -> None:
        """A worker can no longer rely on its lease, and stops the handler."""

    def missed_beat(self) -> None:
        """Leases could not be renewed."""

    def reaped(self, reaped: Sequence[tuple[JobRecord, Move]]) -> None:
        """Jobs whose lease or time had ended were taken back, or ended."""

    def context(self, attempt: Attempt) -> str | None:
        """Give the trace, as `traceparent`, that what the attempt asks for belongs to."""
        return None


class Watches(Watch):
    """Several watches, told one after the other: each of what it does something about. What goes wrong in one is
    logged, and keeps nobody from anything.
    """

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._hear = {what: [getattr(each, what) for each in watches if _hears(each, what)] for what in _TOLD}
        self._stumbled: set[str] = set()

    def store(self, store: Store) -> Store:
        """Give the store that every watch has had its way with."""
        for change in self._hear["store"]:
            store = change(store)
        return store

    def opened(self, crewed: Crewed) -> None:
        """Tell all."""
        self._tell("opened", crewed)

    def closed(self, crewed: Crewed) -> None:
        """Tell all."""
        self._tell("closed", crewed)

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """Let each change what is to be stored."""
        with ExitStack() as stack:
            for surround in self._hear["enqueuing"]:
                jobs = stack.enter_context(_Guarded(surround, (jobs,), self._complain, instead=jobs))
            yield jobs

    def enqueued(self, jobs: Sequence[Inserted]) -> None:
        """Tell all."""
        self._tell("enqueued", jobs)

    def claimed(self, attempts: Sequence[Attempt]) -> None:
        """Tell all."""
        self._tell("claimed", attempts)

    def began(self, attempt: Attempt) -> None:
        """Tell all."""
        self._tell("began", attempt)

    def scope(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Surround with all."""
        return self._around("scope", attempt)

    def step(self, attempt: Attempt, name: str) -> AbstractContextManager[None]:
        """Surround with all."""
        return self._around("step", attempt, name)

    def finished(self, attempt: Attempt, move: Move | None) -> None:
        """Tell all."""
        self._tell("finished", attempt, move)

    def settled(self, settled: Sequence[Settled]) -> None:
        """Tell all, and forget what was kept for them."""
        self._tell("settled", settled)
        for attempt, _ in settled:
            attempt.error = None

    def refused(self, job: JobRecord, move: Move, answer: Answer) -> None:
        """Tell all."""
        self._tell("refused", job, move, answer)

    def lost(self, attempt: Attempt) -> None:
        """Tell all."""
        self._tell("lost", attempt)

    def missed_beat(self) -> None:
        """Tell all."""
        self._tell("missed_beat")

    def reaped(self, reaped: Sequence[tuple[JobRecord, Move]]) -> None:
        """Tell all."""
        self._tell("reaped", reaped)

    def context(self, attempt: Attempt) -> str | None:
        """Ask all."""
        return next((found for ask in self._hear["context"] if (found := ask(attempt))), None)

    def _around(self, what: str, *about: Any) -> AbstractContextManager[None]:
        guarded = [_Guarded(surround, about, self._complain, instead=None) for surround in self._hear[what]]
        if len(guarded) == 1:
            return guarded[0]
        return _nested(guarded) if guarded else nullcontext()

    def _tell(self, what: str, *about: Any) -> None:
        for tell in self._hear[what]:
            try:
                tell(*about)
            except Exception as error:  # noqa: BLE001 - telemetry must never be what stops the work
                self._complain(tell.__qualname__, type(error).__name__)

    def _complain(self, who: str, error: str) -> None:
        """Log what goes wrong in a watch: once, and not for every job."""
        if who not in self._stumbled:
            self._stumbled.add(who)
            log.warning("%s stumbled (%s), which is not told again", who, error)


class _Guarded(AbstractContextManager[Any]):
    """What a watch surrounds something with; if that goes wrong, there is nothing around it, and it goes on."""

    __slots__ = ("_about", "_complain", "_inner", "_instead", "_surround")

    def __init__(
        self, surround: Callable[..., Any], about: tuple[Any, ...], complain: Callable[[str, str], None], instead: Any
    ) -> None:
        self._surround = surround
        self._about = about
        self._complain = complain
        self._instead = instead
        self._inner: Any = None

    def __enter__(self) -> Any:
        try:
            inner = self._surround(*self._about)
            entered = inner.__enter__()
        except Exception as error:  # noqa: BLE001 - telemetry must never be what stops the work
            self._complain(self._surround.__qualname__, type(error).__name__)
            return self._instead
        self._inner = inner
        return entered

    def __exit__(self, *raised: object) -> None:
        if self._inner is not None:
            try:
                self._inner.__exit__(*raised)
            except Exception as error:  # noqa: BLE001 - the same
                self._complain(self._surround.__qualname__, type(error).__name__)


@contextmanager
def _nested(several: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in several:
            stack.enter_context(each)
        yield


_TOLD = [name for name, method in vars(Watch).items() if not name.startswith("_") and callable(method)]


def _hears(watch: Watch, what: str) -> bool:
    """Tell whether a watch does anything about this."""
    return getattr(type(watch), what) is not getattr(Watch, what)
