"""A whole worker process: worker, heart, upkeep and wake-ups started together, and stopped in order.

Stopping is two-stepped. Told once, it claims nothing more, gives back what has not begun and lets running handlers
finish within the grace. Told twice (or
when the grace is over), it stops handlers, releases their jobs and leaves. Either way it is gone within the grace
plus a second, even if
the store is not there to hand anything in to; leases then run out by themselves.
"""

import logging
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from holdfast.client.collector import seldom_collected
from holdfast.client.drops import Drop
from holdfast.client.family import listened
from holdfast.client.inserter import Inserter
from holdfast.client.registry import Registry
from holdfast.client.settings import Settings
from holdfast.client.sinks import Sink
from holdfast.domain.errors import StoreError, StoreUnreachable
from holdfast.domain.limits import Rule
from holdfast.domain.moments import SECOND
from holdfast.domain.schedule import Spec
from holdfast.port.clock import Clock
from holdfast.port.store import Store, WorkerRecord
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.drop import Watching
from holdfast.runtime.executor import Executor
from holdfast.runtime.hands import Hands
from holdfast.runtime.heart import ENLIST, Heart
from holdfast.runtime.relay import Relay
from holdfast.runtime.signals import stopping_by_signal, wait_heedful
from holdfast.runtime.telemetry.watch import Watch
from holdfast.runtime.upkeep import Upkeep
from holdfast.runtime.worker import Queues, Worker

log = logging.getLogger("holdfast.service")
_HAND_IN = 0.45
"""Seconds kept for handing in the last outcomes, whatever the store does."""
_FLUSH = 10.0
"""The most seconds that a worker which is done waits for its events to be delivered."""
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 5.0


def worker_id() -> str:
    """Make a name for this worker process that nobody else has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def patiently(open_store: Callable[[], Store]) -> Store:
    """Open a store, waiting for a server that is not there yet."""
    pause, told = _FIRST_PAUSE, ""
    while True:
        try:
            return open_store()
        except StoreUnreachable as error:
            if str(error) != told:
                log.error("%s Trying again.", error)  # noqa: TRY400 - a sentence, not a traceback
            told = str(error)
            threading.Event().wait(pause)
            pause = min(2 * pause, _LAST_PAUSE)


def _watched(watch: Watch, open_store: Callable[[], Store]) -> Store:
    return watch.store(open_store())


class Service:
    """One worker process."""

    def __init__(
        self,
        *,
        open_store: Callable[[], Store],
        registry: Registry,
        settings: Settings,
        clock: Clock,
        queues: Queues | None,
        concurrency: int,
        id: str | None = None,  # noqa: A002 - the record's own word
        declared: Mapping[str, Spec] | None = None,
        rules: Mapping[str, Rule] | None = None,
        sinks: Iterable[Sink] = (),
        drops: Iterable[Drop] = (),
        watch: Watch | None = None,
    ) -> None:
        self.id = id or worker_id()
        self._clock = clock
        self._registry = registry
        self._watch = watch
        if watch is not None:
            open_store = partial(_watched, watch, open_store)
        self._store = patiently(open_store)
        self._settings = settings = replace(settings, events=settings.events or listened(self._store))
        self._side_store = self._store if self._store.capabilities.concurrent else open_store()
        self._started_at = self._store.now()
        self._version = _version()
        self._inserter = Inserter(self._side_store, clock, watch)
        hands = Hands(self._store, registry, settings, random.random, self._inserter.take, watch=watch)
        self.worker = Worker(
            id=self.id,
            store=self._store,
            registry=registry,
            settings=settings,
            executor=Executor(settings, random.random, self._store.transaction, hands, watch),
            clock=clock,
            lease_id=lambda: secrets.token_hex(8),
            queues=queues,
            concurrency=concurrency,
        )
        self._heart = Heart(
            worker=self.worker, store=self._side_store, settings=settings, clock=clock, describe=self._describe
        )
        self._upkeep = Upkeep(
            self._side_store, settings, self.id, self._inserter.insert, declared, rules=rules, watch=watch
        )
        self._relay = Relay(self._side_store, sinks, self.id, clock)
        self._watching = Watching(self._side_store, drops, self.id, clock, self._inserter.insert)
        self._queues = None if queues is None else list(queues)
        self._ear = threading.Lock()
        """Held by the one of the two listeners that listens."""
        self._away = False
        """The other runs a job that it heard of: whoever listens must go on listening."""
        self._stopping = 0
        self._over = threading.Event()
        """Told to stop, or the worker has ended by itself."""
        self._ended = threading.Event()

    def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until idle if asked; then hand everything in."""
        if self._watch is not None:
            self._watch.opened(self)
        self._registry.make_ready()
        self._store.wait(self._queues, 0)
        with suppress(StoreError):  # upkeep does it otherwise
            self._upkeep.declare()
        if until_idle:
            self._upkeep.round()
            self._watching.round()
        self._heart.start()
        self._upkeep.start()
        self._relay.start()
        self._watching.start()
        for _ in range(2):
            threading.Thread(target=self._listen, name="holdfast-listen", daemon=True).start()
        try:
            with stopping_by_signal(self.stop), seldom_collected():
                self._work(until_idle=until_idle)
                self._leave()
                if until_idle and not self._stopping:
                    self._relay.flush(_FLUSH)
        finally:
            self._close()

    def stop(self) -> None:
        """Ask once to drain, ask again to leave at once."""
        self._stopping += 1
        self.worker.drain()
        self._over.set()

    @property
    def slots(self) -> int:
        """How many jobs it runs at once."""
        return self.worker.concurrency

    @property
    def busy(self) -> int:
        """How many handlers are running."""
        return sum(attempt.begun and not attempt.settled for attempt in list(self.worker.held.values()))

    def ages(self) -> dict[str, float]:
        """Say how many seconds ago each loop last did what it is for; one that has not yet counts from its start."""
        now = self._clock.monotonic()
        reached = {"claim": self.worker.reached, "heartbeat": self._heart.reached, "upkeep": self._upkeep.reached}
        return {loop: max(0.0, now - at) for loop, at in reached.items()}

    def _listen(self) -> None:
        """Hear that there is work, and do it if it is one job, while the other listener takes over."""
        while not self._ended.is_set():
            attempt: Attempt | None = None
            try:
                with self._ear:
                    if not self._ended.is_set() and self._store.wait(self._queues, 1.0):
                        attempt = self.worker.called(free=not self._away)
                        self._away = self._away or attempt is not None
            except (StoreError, OSError, ValueError):
                self._ended.wait(1.0)
            if attempt is not None:
                try:
                    self.worker.crew.run_here(attempt)
                finally:
                    self._away = False

    def _work(self, *, until_idle: bool) -> None:
        """Let the worker run; once told to stop, do not wait for a trip that is stuck in the store."""
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self.worker.run(until_idle=until_idle)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failure.append(error)
            finally:
                self._over.set()

        working = threading.Thread(target=work, name="holdfast-worker", daemon=True)
        working.start()
        wait_heedful(self._over)
        working.join(_HAND_IN / 2)
        if failure:
            raise failure[0]

    def _leave(self) -> None:
        """Hand everything in, in bounded time: the last trips are made by a thread that may be left behind."""
        grace = self._settings.grace / SECOND
        leaving = threading.Thread(target=self._hand_in, args=(grace,), name="holdfast-leave", daemon=True)
        leaving.start()
        end = self._clock.monotonic() + grace + _HAND_IN
        while leaving.is_alive() and self._clock.monotonic() < end:
            leaving.join(0.1)
            if self._stopping > 1:
                end = min(end, self._clock.monotonic() + 2 * _HAND_IN)
        if leaving.is_alive():
            log.warning("left with %d job(s) not handed in; their leases run out by themselves", len(self.worker.held))

    def _hand_in(self, grace: float) -> None:
        worker = self.worker
        worker.give_back()
        end = self._clock.monotonic() + grace
        while not worker.settle(0.05) and self._stopping < 2 and self._clock.monotonic() < end:  # noqa: PLR2004
            pass
        if not worker.held:
            return
        for attempt in list(worker.held.values()):
            worker.crew.stop(attempt, Stop.RELEASE)
        end = self._clock.monotonic() + _HAND_IN / 2
        while not worker.settle(0.05) and self._clock.monotonic() < end:
            pass
        for attempt in list(worker.held.values()):
            worker.crew.give_up(attempt)
        worker.settle(0)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.closed(self)
        self._ended.set()
        self._watching.stop(_HAND_IN / 2)
        self._relay.stop(_HAND_IN / 2)
        self._upkeep.stop()
        self._heart.stop()
        self.worker.crew.close()
        closing = threading.Thread(target=self._let_go, name="holdfast-close", daemon=True)
        closing.start()
        closing.join(_HAND_IN)

    def _let_go(self) -> None:
        self._store.wake()
        with self._ear:  # nobody listens any more
            for thread in (self._heart.thread, self._upkeep.thread):
                if thread.is_alive():
                    thread.join()
        try:
            self._upkeep.resign()
            self._side_store.dismiss(self.id)
        except StoreError as error:
            log.warning("could not sign off: %s", error)
        if self._store.capabilities.shared:
            self._store.close()
            self._side_store.close()

    def _describe(self) -> WorkerRecord:
        now = self._side_store.now()
        queues = None if self.worker.queues is None else tuple(self.worker.queues)
        running = sum(attempt.begun for attempt in list(self.worker.held.values()))
        return WorkerRecord(
            self.id, socket.gethostname(), os.getpid(), queues, tuple(sorted(self._registry)), self.worker.concurrency,
            self._started_at, now, now + 3 * max(self._settings.heartbeat, ENLIST), running,
            self._version,
        )  # fmt: skip


def _version() -> str:
    """Tell which Holdfast this is. Imported here: `import holdfast` need not wait for it."""
    from importlib.metadata import version

    return version("holdfast")
