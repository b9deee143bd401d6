"""Watching drops: one job for each new object, whoever watches.

One worker at a time watches a drop: whoever leads `drop:<name>`, on a thread of its own, so that a folder which does
not answer holds up nothing else. An object is enqueued once it has looked the same for the drop's `settle` time.

Its job is stored under a key that names the object and its content, and only then is the object written down as taken.
So a watcher that dies between the two, and a second watcher, ask for a job that is there already.
"""

import logging
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from holdfast.client.drops import Drop
from holdfast.client.inbox import Found, InboxTrouble
from holdfast.domain.errors import BadPayload, InsufficientCredits, KeyConflict, StoreError
from holdfast.domain.job import NewJob
from holdfast.domain.moments import SECOND
from holdfast.port.clock import Clock
from holdfast.port.store import Store
from holdfast.runtime.firing import Insert
from holdfast.runtime.relay import Lead
from holdfast.runtime.taken import Taken

log = logging.getLogger("holdfast.drop")
MOST = 100_000
"""The objects of one place that are looked at."""
BATCH = 500
"""The jobs that are stored at once."""
_ASIDE = 5.0
"""Seconds between two looks whether another worker has left a drop."""


class Watch:
    """Watches one drop."""

    def __init__(self, store: Store, drop: Drop, owner: str, clock: Clock, insert: Insert) -> None:
        self.name = drop.name
        self.stopped = threading.Event()
        self._lead = Lead(store, f"drop:{drop.name}", owner, clock)
        self._store = store
        self._drop = drop
        self._clock = clock
        self._insert = insert
        self._taken = Taken(store, drop.name, lambda: secrets.token_hex(8))
        self._since: dict[str, float] = {}
        """When each object that is not taken yet was first seen as it is."""
        self._refused: set[str] = set()
        """The objects that the job's kind does not accept."""
        self._trouble = ""
        self.thread = threading.Thread(target=self._live, name=f"holdfast-drop-{drop.name}", daemon=True)

    def round(self) -> int:
        """Look, if this worker leads, and enqueue what is new and has settled; give the number of new jobs."""
        kept = self._lead.held
        if not self._lead.take():
            self._since.clear()
            return 0
        if not kept:
            self._taken.load()
        return self._look()

    def _look(self) -> int:
        found = islice(self._drop.inbox.look(self._drop.pattern), MOST + 1)
        seen = {self._drop.digest(one): one for one in found}
        trouble = ""
        if len(seen) > MOST:
            trouble = f"More than {MOST:,} objects are in {self._drop.inbox.shown}; move away those that are done with."
        self._refused &= seen.keys()
        ripe, stored = self._settled(seen), 0
        for start in range(0, len(ripe), BATCH):
            if self.stopped.is_set() or not self._lead.held:
                break
            new, refusal = self._take(ripe[start : start + BATCH], seen)
            stored, trouble = stored + new, refusal or trouble
        self._taken.keep(seen.keys(), self._store.now())
        self._complain(trouble)
        return stored

    def _settled(self, seen: Mapping[str, Found]) -> list[str]:
        now, settle = self._clock.monotonic(), self._drop.settle / SECOND
        self._since = {
            digest: self._since.get(digest, now)
            for digest in seen
            if digest not in self._taken and digest not in self._refused
        }
        return [digest for digest, since in self._since.items() if now - since >= settle]

    def _take(self, digests: Sequence[str], seen: Mapping[str, Found]) -> tuple[int, str]:
        """Store the jobs of these objects; give the number of new ones, and what keeps the others from being stored."""
        jobs: dict[str, NewJob] = {}
        trouble = ""
        for digest in digests:
            try:
                jobs[digest] = self._drop.new_job(seen[digest])
            except BadPayload as refusal:
                self._refused.add(digest)
                trouble = f"An object is passed over: {refusal}"
        stored, done, refusal_ = _stored(self._insert, jobs)
        self._taken.add(done, self._store.now())
        for digest in done:
            self._since.pop(digest, None)
        return stored, refusal_ or trouble

    def _pause(self) -> float:
        """Say how long to wait before looking again: until the first object that is seen has settled, if that is
        sooner than the next look.
        """
        if not self._lead.held:
            return _ASIDE
        every, now = self._drop.every / SECOND, self._clock.monotonic()
        first = min(self._since.values(), default=None)
        ripens = every if first is None else first + self._drop.settle / SECOND - now
        return min(every, ripens) if ripens > 0 else every

    def _live(self) -> None:
        while not self.stopped.is_set():
            try:
                self.round()
            except (StoreError, InboxTrouble) as error:
                self._complain(str(error))
            except Exception:
                log.exception("drop %s: the watch stumbled and goes on", self.name)
            self.stopped.wait(self._pause())
        try:
            self._lead.give_up()
        except StoreError as error:
            log.debug("drop %s: could not sign off: %s", self.name, error)

    def _complain(self, trouble: str) -> None:
        """Log what is wrong: once, not at every look."""
        if trouble and trouble != self._trouble:
            log.warning("drop %s: %s", self.name, trouble)
        self._trouble = trouble


class Watching:
    """Watches all drops that are declared here, in turn with the other workers."""

    def __init__(self, store: Store, drops: Iterable[Drop], owner: str, clock: Clock, insert: Insert) -> None:
        self._clock = clock
        self._watches = [Watch(store, drop, owner, clock, insert) for drop in drops]

    def start(self) -> None:
        """Begin to look."""
        for watch in self._watches:
            watch.thread.start()

    def round(self) -> None:
        """Look once."""
        for watch in self._watches:
            try:
                watch.round()
            except InboxTrouble as error:
                log.warning("drop %s: %s", watch.name, error)

    def stop(self, timeout: float) -> None:
        """Stop looking; a look that does not come back in time (seconds) is left behind."""
        for watch in self._watches:
            watch.stopped.set()
        until = self._clock.monotonic() + timeout
        for watch in self._watches:
            if watch.thread.ident is not None:
                watch.thread.join(max(until - self._clock.monotonic(), 0.0))


def _stored(insert: Insert, jobs: Mapping[str, NewJob]) -> tuple[int, list[str], str]:
    """Store jobs by the digests of their objects; give the number of new ones, the digests that are done with, and why
    the others are not.
    """
    if len(jobs) > 1:
        try:
            return sum(not one.duplicate for one in insert(list(jobs.values()))), list(jobs), ""
        except (KeyConflict, InsufficientCredits):
            pass  # one of them is refused: ask for each by itself
    stored, done, trouble = 0, list[str](), ""
    for digest, job in jobs.items():
        try:
            stored += sum(not one.duplicate for one in insert([job]))
        except KeyConflict:
            pass  # taken already, before the drop's job was changed
        except InsufficientCredits as refusal:
            trouble = str(refusal)
            continue
        done.append(digest)
    return stored, done, trouble
