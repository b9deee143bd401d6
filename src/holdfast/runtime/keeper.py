"""Keeps the lease of a single attempt that runs outside a worker, and stops it when it must stop.

The thread is started with the attempt and does nothing until the first heartbeat is due, or the timeout is over.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.client.context import AttemptStopped
from holdfast.client.settings import Settings
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer
from holdfast.port.clock import Clock
from holdfast.port.shelter import SHELTER
from holdfast.port.store import Beat, Store
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.crew import FENCE

_OBEY = 1.0
"""Seconds that a handler which was told to give its job back has for it."""


class Keeper:
    """Used as `with Keeper(...)` around the handler's call.

    At `until`, by the monotonic clock, the attempt is stopped and its job given back; if the handler does not stop
    then, `give_back` is called in its stead.
    """

    def __init__(
        self,
        attempt: Attempt,
        store: Store,
        settings: Settings,
        clock: Clock,
        *,
        until: float = math.inf,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self._attempt = attempt
        self._store = store
        self._settings = settings
        self._clock = clock
        self._until = until
        self._give_back = give_back
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="holdfast-keeper", daemon=True)

    def __enter__(self) -> Self:
        SHELTER.expose()
        self._attempt.runner = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._attempt.runner = None
        self._ended.set()

    def running(self, task: "asyncio.Task[object]") -> None:
        """Say that the attempt runs as this task, which is then cancelled instead of its thread interrupted."""
        self._attempt.runner = task

    def _keep(self) -> None:
        attempt, beat = self._attempt, self._settings.heartbeat / SECOND
        started = attempt.renewed = self._clock.monotonic()
        due, over = started + beat, math.inf
        if attempt.kind is not None and attempt.kind.timeout is not None:
            over = started + attempt.kind.timeout / SECOND
        while not self._ended.is_set():
            fence = attempt.renewed + self._settings.lease * FENCE / SECOND
            if self._ended.wait(max(0.0, min(due, fence, over, self._until) - self._clock.monotonic())):
                return None
            now = self._clock.monotonic()
            if now >= over:
                return self._stop(Stop.TIMEOUT)
            if now >= self._until:
                return self._leave()
            if now >= fence:
                return self._stop(Stop.LOST)
            if now >= due:
                self._renew(now)
                due = now + beat
        return None

    def _renew(self, sent: float) -> None:
        attempt = self._attempt
        beat = Beat(
            attempt.job.id, attempt.job.token, attempt.job.lease_id or "", begun=True, progress=attempt.progress
        )
        try:
            (answer,) = self._store.heartbeat([beat], self._settings.lease)
        except StoreError:
            return
        if answer is Answer.OK:
            attempt.renewed = sent
        elif not self._ended.is_set():
            self._stop(Stop.CANCEL if answer is Answer.CANCEL_REQUESTED else Stop.LOST)

    def _leave(self) -> None:
        """Have the job given back; a handler that does not stop does not keep it from others."""
        self._stop(Stop.RELEASE)
        if not self._ended.wait(_OBEY) and self._give_back is not None:
            self._give_back()

    def _stop(self, reason: Stop) -> None:
        with self._lock:
            runner = self._attempt.runner
            if runner is None or self._attempt.stopping:
                return
            self._attempt.stop = reason
            if isinstance(runner, asyncio.Task):
                runner.get_loop().call_soon_threadsafe(runner.cancel)
            elif isinstance(runner, int):
                SHELTER.stop(runner, AttemptStopped)
