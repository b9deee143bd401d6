"""Upkeep: what keeps a store in order, done by whichever worker leads. No cron job for anybody to write.

Every worker asks for the lead; one has it for a term and renews it. Losing it in the middle of a round is harmless:
every write is guarded.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from holdfast.client import family
from holdfast.client.limits import refuse_unable, store_declared
from holdfast.client.logs import about
from holdfast.client.settings import Settings
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import IllegalMove, StoreError
from holdfast.domain.job import JobRecord, State
from holdfast.domain.limits import Rule
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Move
from holdfast.domain.schedule import Spec
from holdfast.port.store import UPKEEP, Store
from holdfast.runtime import firing
from holdfast.runtime.telemetry.watch import Watch

log = logging.getLogger("holdfast.upkeep")
BATCH = 500
_SELDOM = 5
"""Of so many rounds, one looks for what is in no hurry."""
UNSUBMITTED_AFTER: Micros = 5 * SECOND
FAMILY = "holdfast.family"
"""The name under which upkeep itself goes through the events."""


def reap(store: Store, settings: Settings, watch: Watch | None = None) -> int:
    """Take back jobs whose lease ended, and end waiting jobs past their expiry; give their number."""
    late: list[tuple[JobRecord, Move]] = []
    now = store.now()
    for job in store.expired(BATCH):
        try:
            move = lifecycle.reap(job, now, settings.retention)
        except IllegalMove:
            continue
        late.append((job, events.told(job, move, public=settings.events)))
    if not late:
        return 0
    answers = store.commit([move for _, move in late])
    done = [pair for pair, answer in zip(late, answers, strict=True) if answer is Answer.OK]
    for job, move in done:
        if job.state is State.RUNNING:
            text = "job %s: the lease of worker %s ended; it is %s now"
            log.warning(text, job.id, job.lease_owner, move.state, extra=about(job))
    if watch is not None:
        watch.reaped(done)
    return len(done)


def resubmit(store: Store, older_than: Micros = UNSUBMITTED_AFTER) -> int:
    """Submit jobs whose enqueuer died between storing and submitting; give their number."""
    return _written(store, [lifecycle.submit(job) for job in store.unsubmitted(older_than, BATCH)])


def purge(store: Store, settings: Settings) -> int:
    """Remove finished jobs whose retention is over, what they kept outside the store, and pages whose time is over;
    give the number of jobs or of pages, whichever is larger.
    """
    purged = store.purge(BATCH)
    settings.artifacts.forget(purged.artifacts)
    return max(purged.jobs, purged.pages)


def tend(store: Store, settings: Settings) -> int:
    """Wake parents whose children have ended, and cancel children with their parents, where whoever ended one died
    before it could; give the number of events looked at.
    """
    position = store.sinks().get(FAMILY)
    if position is None:
        store.reach(FAMILY, 0)  # from here on nothing is trimmed that was not looked at
        position = 0
    reached, seen = family.relay(store, settings.retention, position, BATCH, public=settings.events)
    if seen:
        store.reach(FAMILY, reached)
    return seen


def _written(store: Store, moves: list[Move]) -> int:
    if not moves:
        return 0
    return sum(answer is Answer.OK for answer in store.commit(moves))


class Upkeep:
    """The rounds, on a thread of their own."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        owner: str,
        insert: firing.Insert,
        declared: Mapping[str, Spec] | None = None,
        *,
        rules: Mapping[str, Rule] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self.reached = time.monotonic()
        """When the last round that nothing kept from its end was made, by the monotonic clock."""
        self.rests = settings.upkeep / SECOND
        """The seconds between two rounds."""
        self._store = store
        self._insert = insert
        self._declared = declared or {}
        self._rules = rules or {}
        if self._rules:
            refuse_unable(store)
        self._settings = settings
        self._owner = owner
        self._stop = threading.Event()
        self._term = 3 * settings.upkeep
        self._lead_until: Micros = 0
        self._rounds = 0
        self.thread = threading.Thread(target=self._live, name="holdfast-upkeep", daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self.thread.start()

    def stop(self) -> None:
        """End the rounds."""
        self._stop.set()

    def resign(self) -> None:
        """Let another lead at once; the rounds must have ended."""
        if self._lead_until:
            self._lead_until = 0
            self._store.lead(UPKEEP, self._owner, 0)

    def declare(self) -> None:
        """Store what code declares, once: rules and schedules."""
        if self._rules:
            store_declared(self._store, self._rules)
            self._rules = {}
        if self._declared:
            firing.store_declared(self._store, self._declared)
            self._declared = {}

    def round(self) -> None:
        """Do what there is to do, if this worker leads."""
        self.declare()
        if not self._leads():
            return
        store, settings = self._store, self._settings
        tasks: list[Callable[[], int]] = [
            lambda: reap(store, settings, self._watch),
            lambda: tend(store, settings),
        ]
        if self._rounds % _SELDOM == 0:
            tasks += [lambda: resubmit(store), lambda: purge(store, settings), lambda: store.trim(BATCH)]
            tasks.append(lambda: store.sweep(BATCH))
        self._rounds += 1
        for task in tasks:
            while task() >= BATCH and not self._stop.is_set():
                pass
        firing.fire(store, self._insert, store.now())

    def _leads(self) -> bool:
        now = self._store.now()
        if now < self._lead_until - self._term // 2:
            return True
        if self._store.lead(UPKEEP, self._owner, self._term):
            self._lead_until = now + self._term
            return True
        self._lead_until = 0
        return False

    def _live(self) -> None:
        trouble = ""
        while not self._stop.wait(self.rests):
            try:
                self.round()
                trouble, self.reached = "", time.monotonic()
            except StoreError as error:
                if str(error) != trouble:
                    log.warning("upkeep waits: %s", error)
                trouble = str(error)
            except Exception:
                log.exception("upkeep stumbled and goes on")
