"""The heart: renews leases, enforces timeouts and fences the worker, on its own thread and its own connection.

No handler can starve it short of holding the interpreter lock in C. If leases cannot be renewed, handlers are stopped
while the lease still holds, so
that no two workers run one job; the lease token protects the store in any case.
"""

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count

from holdfast.client.logs import about
from holdfast.client.settings import Settings
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Store, WorkerRecord
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.crew import FENCE
from holdfast.runtime.worker import Worker

log = logging.getLogger("holdfast.heart")
_STOP_GRACE = 2.0
"""Seconds a handler has to stop after it was asked to, before its attempt is settled without it."""
_RETRY = 1.0
_NEWS = 1.0
"""Seconds between two beats that are made only to tell how far handlers are."""
_LOOK = 0.25
"""Seconds between two looks while a heartbeat is under way."""
ENLIST: Micros = 60 * SECOND
"""How often a worker with nothing in hand tells that it is there: two hundred of them must not keep a store busy."""


class Heart:
    """Keeps one worker's leases, or makes it let go of them."""

    def __init__(
        self, *, worker: Worker, store: Store, settings: Settings, clock: Clock, describe: Callable[[], WorkerRecord]
    ) -> None:
        self._worker = worker
        self._store = store
        self._settings = settings
        self._clock = clock
        self._describe = describe
        self._deadlines: list[tuple[float, int, Attempt]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._stopped = False
        self._beating = threading.Lock()
        self._trouble = ""
        """What the store last complained about, while it does."""
        self._next_beat = self._next_enlisting = clock.monotonic()
        self.reached = clock.monotonic()
        """When the last beat that the store answered was made."""
        self._last_beat = 0.0
        self.thread = threading.Thread(target=self._live, name="holdfast-heart", daemon=True)
        worker.crew.on_begin = self._watch

    def start(self) -> None:
        """Begin to beat."""
        self.thread.start()

    def stop(self) -> None:
        """Beat no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _watch(self, attempt: Attempt) -> None:
        assert attempt.kind is not None
        deadline = self._clock.monotonic() + (attempt.kind.timeout or 0) / SECOND
        with self._changed:
            heapq.heappush(self._deadlines, (deadline, next(self._order), attempt))
            if self._deadlines[0][2] is attempt:
                self._changed.notify()

    def _live(self) -> None:
        while not self._stopped:
            try:
                self._enforce_timeouts()
                self._give_up_on_stopped()
                self._hasten()
                if self._clock.monotonic() >= self._next_beat and not self._beating.locked():
                    threading.Thread(target=self._beat_once, name="holdfast-beat", daemon=True).start()
                self._fence()
            except Exception:
                log.exception("the heart stumbled and goes on")
            with self._changed:
                if not self._stopped:
                    self._changed.wait(self._pause())

    def _hasten(self) -> None:
        """Beat sooner if there is news of how far handlers are."""
        if any(attempt.progress for attempt in list(self._worker.held.values())):
            self._next_beat = min(self._next_beat, max(self._last_beat + _NEWS, self._clock.monotonic()))

    def _beat_once(self) -> None:
        """Beat beside the heart's own thread, which must go on if the store keeps one waiting."""
        with self._beating:
            try:
                self._beat()
            except Exception:
                log.exception("a heartbeat stumbled")
                self._next_beat = self._clock.monotonic() + _RETRY
        with self._changed:
            self._changed.notify()

    def _pause(self) -> float:
        now = self._clock.monotonic()
        until = min(max(self._next_beat, now + _LOOK), now + _NEWS)
        if self._deadlines:
            until = min(until, self._deadlines[0][0])
        if any(attempt.stopping for attempt in list(self._worker.held.values())):
            until = min(until, now + _STOP_GRACE / 4)
        return max(0.0, until - now)

    def _enforce_timeouts(self) -> None:
        now = self._clock.monotonic()
        while True:
            with self._changed:
                if not self._deadlines or self._deadlines[0][0] > now:
                    return
                _, _, attempt = heapq.heappop(self._deadlines)
            if not attempt.settled:
                self._worker.crew.stop(attempt, Stop.TIMEOUT)

    def _give_up_on_stopped(self) -> None:
        now = self._clock.monotonic()
        for attempt in list(self._worker.held.values()):
            if attempt.stopping and not attempt.settled and now > attempt.stopped_at + _STOP_GRACE:
                self._worker.crew.give_up(attempt)

    def _beat(self) -> None:
        interval = self._settings.heartbeat / SECOND
        sent = self._last_beat = self._clock.monotonic()
        held = [a for a in list(self._worker.held.values()) if not a.settled and a.stop is not Stop.LOST]
        old = [a for a in held if a.progress or sent - a.renewed > interval / 2]
        beats = [Beat(a.job.id, a.job.token, a.job.lease_id or "", a.begun, a.progress) for a in old]
        try:
            answers = self._store.heartbeat(beats, self._settings.lease) if beats else []
            for attempt, beat, answer in zip(old, beats, answers, strict=True):
                if attempt.progress is beat.progress:
                    attempt.progress = None
                self._heed(attempt, answer, sent)
            if self._worker.held or sent >= self._next_enlisting:
                self._store.enlist(self._describe())
                self._next_enlisting = sent + ENLIST / SECOND
        except StoreError as error:
            if str(error) != self._trouble:
                log.warning("leases could not be renewed: %s", error)
            self._trouble = str(error)
            if self._worker.watch is not None:
                self._worker.watch.missed_beat()
            self._next_beat = sent + min(_RETRY, interval)
            return
        self._trouble = ""
        self.reached = sent
        self._next_beat = sent + interval

    def _heed(self, attempt: Attempt, answer: Answer, sent: float) -> None:
        if answer is Answer.OK:
            attempt.renewed = sent
        elif answer is Answer.CANCEL_REQUESTED:
            attempt.renewed = sent
            if attempt.stop is None:
                self._worker.crew.stop(attempt, Stop.CANCEL)
        elif not attempt.settled:
            text = "job %s: the lease is lost (%s); its handler is stopped"
            log.warning(text, attempt.job.id, answer, extra=about(attempt.job))
            self._lose(attempt)

    def _fence(self) -> None:
        limit = self._clock.monotonic() - self._settings.lease * FENCE / SECOND
        for attempt in list(self._worker.held.values()):
            if attempt.renewed < limit and not attempt.settled and attempt.stop is not Stop.LOST:
                text = "job %s: the lease could not be renewed in time; its handler is stopped"
                log.warning(text, attempt.job.id, extra=about(attempt.job))
                self._lose(attempt)

    def _lose(self, attempt: Attempt) -> None:
        if self._worker.watch is not None:
            self._worker.watch.lost(attempt)
        self._worker.crew.stop(attempt, Stop.LOST)
