"""Metrics of this process: what its workers do, what it enqueues, and how long its store takes."""

import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

from holdfast.client.registry import Registry
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer, Move, Verb
from holdfast.port.store import Inserted, Store
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.telemetry import families
from holdfast.runtime.telemetry.tally import Key, Tally, Totals, together
from holdfast.runtime.telemetry.watch import Crewed, Settled, Watch

MOST_QUEUES = 100
TIMED = (
    "insert", "claim", "commit", "exchange", "heartbeat", "read", "find", "steps", "signals", "counts", "expired",
    "purge", "events", "lead", "enlist", "next_due",
)  # fmt: skip
"""The calls to the store whose duration is measured."""
_OUTCOMES = {Verb.FAIL: "failed", Verb.SNOOZE: "snoozed", Verb.RELEASE: "released"}


class Metrics(Watch):
    """Counts what it is told. What should never happen is shown as 0 until it does, so that its first time is seen."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tally = Tally()
        self._queues: set[str] = set()
        self._crews: list[Crewed] = []
        self._tally.count(families.MISSED, by=0)
        for verb in (Verb.COMPLETE, Verb.FAIL):
            for reason in (Answer.ALREADY_CLAIMED, Answer.NO_OP_TERMINAL):
                self._tally.count(families.REFUSED, verb.value, reason.value, by=0)

    def totals(self) -> Totals:
        """Give what was counted so far, with how the workers of this process are now."""
        gauges: dict[Key, float] = {}
        for crew in list(self._crews):
            now: dict[Key, float] = {(families.SLOTS.name, ()): crew.slots, (families.BUSY.name, ()): crew.busy}
            now |= {(families.AGE.name, (loop,)): age for loop, age in crew.ages().items()}
            gauges = dict(together([Totals(gauges, {}), Totals(now, {})]).numbers)
        counted = self._tally.totals()
        return Totals({**counted.numbers, **gauges}, counted.spans)

    def store(self, store: Store) -> Store:
        """Give a store whose calls are timed."""
        return cast("Store", TimedStore(store, self._tally))

    def opened(self, crewed: Crewed) -> None:
        """Look at this worker from now on."""
        self._crews.append(crewed)

    def closed(self, crewed: Crewed) -> None:
        """Look at it no more."""
        self._crews.remove(crewed)

    def enqueued(self, jobs: Sequence[Inserted]) -> None:
        """Count what was stored, and not what was there already."""
        for job in jobs:
            if not job.duplicate:
                self._tally.count(families.ENQUEUED, self._queue(job.new.queue), self._kind(job.new.kind))

    def claimed(self, attempts: Sequence[Attempt]) -> None:
        """Measure how long jobs were due."""
        for attempt in attempts:
            job = attempt.job
            waited = max(0, (job.claimed_at or 0) - job.available_at) / SECOND
            self._tally.observe(families.WAIT, waited, *self._labels(job))

    def began(self, attempt: Attempt) -> None:
        """Count starts."""
        attempt.began = time.monotonic()
        self._tally.count(families.STARTED, *self._labels(attempt.job))

    def finished(self, attempt: Attempt, move: Move | None) -> None:
        """Measure how long the handler ran, once."""
        if attempt.began:
            self._tally.observe(families.RUN, time.monotonic() - attempt.began, *self._labels(attempt.job))
            attempt.began = 0.0
        if move is None and attempt.stop is Stop.LOST:
            self._tally.count(families.ENDED, *self._labels(attempt.job), "lost")

    def settled(self, settled: Sequence[Settled]) -> None:
        """Count ends by what they were."""
        for attempt, move in settled:
            self._tally.count(families.ENDED, *self._labels(attempt.job), outcome(move))

    def refused(self, job: JobRecord, move: Move, answer: Answer) -> None:
        """Count refusals."""
        self._tally.count(families.REFUSED, move.verb.value, answer.value)

    def lost(self, attempt: Attempt) -> None:
        """Count lost leases."""
        self._tally.count(families.LOST, self._queue(attempt.job.queue))

    def missed_beat(self) -> None:
        """Count heartbeats that did not reach the store."""
        self._tally.count(families.MISSED)

    def reaped(self, reaped: Sequence[tuple[JobRecord, Move]]) -> None:
        """Count leases that ended; waiting jobs that expired had none."""
        for job, _ in reaped:
            if job.state is State.RUNNING:
                self._tally.count(families.EXPIRED, self._queue(job.queue))

    def _labels(self, job: JobRecord) -> tuple[str, str]:
        return self._queue(job.queue), self._kind(job.kind)

    def _kind(self, kind: str) -> str:
        return families.OTHER if self._registry.get(kind) is None else kind

    def _queue(self, queue: str) -> str:
        """Give the label of a queue: its name, unless there have been too many."""
        if queue not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return families.OTHER
            self._queues.add(queue)
            self._tally.count(families.EXPIRED, queue, by=0)
            self._tally.count(families.LOST, queue, by=0)
        return queue


def outcome(move: Move) -> str:
    """Name the end of an attempt: the state it led to, or why the job runs again."""
    if move.state is State.RETRYING:
        return _OUTCOMES.get(move.verb, move.verb.value)
    return move.state.value


class TimedStore:
    """A store whose calls are measured; all else it leaves to the store itself."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        for call in TIMED:
            setattr(self, call, _timed(getattr(store, call), call, tally))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _timed(fn: Callable[..., Any], call: str, tally: Tally) -> Callable[..., Any]:
    @wraps(fn)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return fn(*args, **kwargs)
        finally:
            tally.observe(families.CALLS, time.perf_counter() - began, call)

    return timed
