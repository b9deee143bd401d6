"""Upkeep: what keeps a store in order, done by whichever worker leads. No cron job for anybody to write.

Every worker asks for the lead; one has it for a term and renews it. Losing it in the middle of a round is harmless:
every write is guarded.
"""

import logging
import threading
from collections.abc import Callable

from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.errors import IllegalMove, StoreError
from holdfast.domain.lifecycle import Answer, Move
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Store

log = logging.getLogger("holdfast.upkeep")
BATCH = 500
_SELDOM = 5
"""Of so many rounds, one looks for what is in no hurry."""
UNSUBMITTED_AFTER: Micros = 5 * SECOND


def reap(store: Store, settings: Settings) -> int:
    """Take back jobs whose lease ended, and end waiting jobs past their expiry; give their number."""
    moves: list[Move] = []
    now = store.now()
    for job in store.expired(BATCH):
        try:
            moves.append(lifecycle.reap(job, now, settings.retention))
        except IllegalMove:
            continue
    return _written(store, moves)


def resubmit(store: Store, older_than: Micros = UNSUBMITTED_AFTER) -> int:
    """Submit jobs whose enqueuer died between storing and submitting; give their number."""
    return _written(store, [lifecycle.submit(job) for job in store.unsubmitted(older_than, BATCH)])


def purge(store: Store) -> int:
    """Remove finished jobs whose retention is over; give their number."""
    return store.purge(BATCH)


def _written(store: Store, moves: list[Move]) -> int:
    if not moves:
        return 0
    return sum(answer is Answer.OK for answer in store.commit(moves))


class Upkeep:
    """The rounds, on a thread of their own."""

    def __init__(self, store: Store, settings: Settings, owner: str) -> None:
        self._store = store
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

    def round(self) -> None:
        """Do what there is to do, if this worker leads."""
        if not self._leads():
            return
        tasks: list[Callable[[], int]] = [lambda: reap(self._store, self._settings)]
        if self._rounds % _SELDOM == 0:
            tasks += [lambda: resubmit(self._store), lambda: purge(self._store)]
        self._rounds += 1
        for task in tasks:
            while task() >= BATCH and not self._stop.is_set():
                pass

    def _leads(self) -> bool:
        now = self._store.now()
        if now < self._lead_until - self._term // 2:
            return True
        if self._store.lead("upkeep", self._owner, self._term):
            self._lead_until = now + self._term
            return True
        self._lead_until = 0
        return False

    def _live(self) -> None:
        trouble = ""
        while not self._stop.wait(self._settings.upkeep / SECOND):
            try:
                self.round()
                trouble = ""
            except StoreError as error:
                if str(error) != trouble:
                    log.warning("upkeep waits: %s", error)
                trouble = str(error)
            except Exception:
                log.exception("upkeep stumbled and goes on")
