"""The relay: carries events from the store to the sinks, at least once and in order, each sink on a thread of its own.

One worker at a time delivers to a sink: whoever leads `sink:<name>`. It reads what comes behind the sink's position,
hands it over and then records the new position; whoever dies in between leaves the rest to be delivered again. A sink
that fails holds up itself alone. The relay has nothing to do, and does nothing, where no sink is declared.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.client.sinks import Sink
from holdfast.client.sinks.shape import Undelivered, shown
from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.clock import Clock
from holdfast.port.store import EventRecord, Store
from holdfast.runtime.executor import failure_of

log = logging.getLogger("holdfast.relay")
TERM: Micros = 15 * SECOND
"""How long a lead holds without being renewed."""
PAUSES = (0.5, 60.0)
"""Seconds between two tries of a sink that fails: the first pause, which doubles, and the longest."""
PAGE = 1_000
_LEAST = 100
"""So many events are read at once, or as many as the sink takes at once."""
_POLL = 1.0
"""Seconds between two looks of a relay that is idle."""
_LONG_POLL = 5.0
"""The same when it has been idle for long: for `_LONG` looks."""
_LONG = 60
_REST = 0.1
"""Seconds between two looks while events come: what comes meanwhile is delivered and put on record together."""
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.25
_ASIDE = 5.0
"""Seconds between two looks whether another worker has left a sink."""
_RECORD = 1.0
"""Seconds after which a position is recorded in the middle of a page: so much is delivered again after a crash."""
_TRIM = 60.0
_JOIN = 2.0
"""Seconds that a start waits for another worker to register a new sink."""


class Tally(NamedTuple):
    """What a relay has done for one sink since it started."""

    delivered: int
    failures: int
    """Deliveries that were refused, and tried again."""
    passed_over: int
    """Events that were refused so often that they were left out."""


def last_position(store: Store, after: int = 0) -> int:
    """Give the position of the last event there is."""
    while page := store.events(after, PAGE):
        after = page[-1].position
    return after


class Lead:
    """The lead of one role: taken for a term by whoever delivers, renewed from beside, however long a call takes."""

    def __init__(self, store: Store, role: str, owner: str, clock: Clock) -> None:
        self._store = store
        self._role = role
        self._owner = owner
        self._clock = clock
        self._until = 0.0
        self._taken = False
        self._lock = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether the term lasts."""
        return self._taken and self._clock.monotonic() < self._until

    def take(self) -> bool:
        """Take or keep the lead; false while another has it."""
        with self._lock:
            return self._take()

    def renew(self) -> None:
        """Keep the lead if it has not been lost; what was lost may have changed hands, and is taken anew."""
        with self._lock:
            if self.held:
                self._take()

    def give_up(self) -> None:
        """Let another have the lead at once."""
        with self._lock:
            if self.held:
                self._store.lead(self._role, self._owner, 0)
            self._taken = False

    def _take(self) -> bool:
        asked = self._clock.monotonic()
        self._taken = self._store.lead(self._role, self._owner, TERM)
        self._until = asked + TERM / SECOND
        return self._taken


class Courier:
    """Delivers to one sink."""

    def __init__(self, store: Store, sink: Sink, owner: str, clock: Clock, pauses: tuple[float, float]) -> None:
        self.name = sink.name
        self.lead = Lead(store, f"sink:{sink.name}", owner, clock)
        self.nudged = threading.Event()
        self.stopped = threading.Event()
        self.left_behind = False
        """Set when nobody waits for it any more: the store may be closed, and is not to be touched."""
        self.delivered = self.failures = self.passed_over = 0
        self._store = store
        self._sink = sink
        self._target = sink.open()
        self._clock = clock
        self._pauses = pauses
        self._pause = 0.0
        """How long to wait after a refusal; grows until something is delivered."""
        self._refusing = False
        self._page = max(self._target.most, _LEAST)
        self._size = self._target.most
        self._head = ""
        """The event that was last refused on its own, and how often."""
        self._tries = 0
        self._trouble = ""
        self._position: int | None = None
        """How far the sink has had the events, and how far that is on record."""
        self._recorded = 0
        self._recorded_at = 0.0
        self._untrimmed = False
        self._next_trim = clock.monotonic()
        self.thread = threading.Thread(target=self._live, name=f"holdfast-sink-{sink.name}", daemon=True)

    def join(self) -> bool:
        """Take the lead if it is free and learn how far the sink is; a new one starts behind all events there are."""
        if self.lead.held and self._position is not None:
            return True
        self._position = None
        if not self.lead.take():
            return False
        known = self._store.sinks()
        if self.name not in known:
            known[self.name] = last_position(self._store, max(known.values(), default=0))
            self._store.reach(self.name, known[self.name])
        self._position = self._recorded = known[self.name]
        return True

    def round(self) -> int:
        """Deliver what there is, a page at most; give the number of events that there were."""
        self._refusing = False
        if not self.join() or self._position is None:
            return 0
        self._record()
        page = self._store.events(self._position, self._page)
        if page:
            self._carry(page)
        self._trim()
        return len(page)

    def _carry(self, page: list[EventRecord]) -> None:
        wanted = [record for record in page if self._sink.wants(record.name)]
        self._recorded_at = self._clock.monotonic()
        while wanted and self._goes_on():
            batch = wanted[: self._size]
            self._refusing = not self._delivered(batch)
            if self._refusing:
                break
            del wanted[: len(batch)]
            self._position = batch[-1].position
            if self._clock.monotonic() - self._recorded_at > _RECORD:
                self._record()
        if not wanted:
            self._position = page[-1].position
        self._record()

    def _delivered(self, batch: list[EventRecord]) -> bool:
        """Hand a batch over; tell whether it is done with."""
        try:
            self._target.deliver([shown(record) for record in batch])
        except Undelivered as error:
            return self._refused(batch, str(error))
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything
            return self._refused(batch, failure_of(error, None).message)
        if self._trouble:
            log.info("sink %s: delivers again", self.name)
        self.delivered += len(batch)
        self._size = min(2 * self._size, self._target.most)
        self._pause, self._trouble = 0.0, ""
        return True

    def _refused(self, batch: list[EventRecord], why: str) -> bool:
        """Learn from a refusal: try fewer events at once, so that one bad event ends up alone, and that one only so
        often.
        """
        first, longest = self._pauses
        self.failures += 1
        self._pause = min(2 * self._pause, longest) or first
        self._complain(why)
        if len(batch) > 1:
            self._size = len(batch) // 2
            return False
        (event,) = batch
        self._tries = self._tries + 1 if self._head == event.id else 1
        self._head = event.id
        if self._sink.max_tries is None or self._tries < self._sink.max_tries:
            return False
        self.passed_over += 1
        log.error("sink %s: event %s was refused %d times and is passed over", self.name, event.id, self._tries)
        return True

    def _record(self) -> None:
        """Put on record how far the sink is."""
        if self._position is None or self._position <= self._recorded or self.left_behind:
            return
        self._store.reach(self.name, self._position)
        self._recorded, self._recorded_at, self._untrimmed = self._position, self._clock.monotonic(), True

    def _trim(self) -> None:
        """Remove what every sink has had, once in a while."""
        if not self._untrimmed or self._clock.monotonic() < self._next_trim or self.left_behind:
            return
        while self._store.trim(PAGE) >= PAGE and self._goes_on():
            pass
        self._untrimmed = False
        self._next_trim = self._clock.monotonic() + _TRIM

    def _goes_on(self) -> bool:
        return not self.stopped.is_set() and self.lead.held

    def _live(self) -> None:
        idle, trouble = 0, ""
        while not self.stopped.is_set():
            try:
                found, trouble = self.round(), ""
            except StoreError as error:
                if str(error) != trouble:
                    log.warning("sink %s: waits for the store: %s", self.name, error)
                found, trouble = 0, str(error)
            except Exception:
                log.exception("sink %s: the relay stumbled and goes on", self.name)
                found, trouble = 0, "stumbled"
            idle = 0 if found else idle + 1
            if self._refusing or trouble:
                self.stopped.wait(self._pause or _POLL)
            elif found < self._page:
                self.nudged.wait(_rest(idle) if self.lead.held else _ASIDE)
            self.nudged.clear()
        self.leave()

    def leave(self) -> None:
        """Let go of the sink, and of its lead."""
        try:
            self._target.close()
            if not self.left_behind:
                self._record()
                self.lead.give_up()
        except StoreError as error:
            log.warning("sink %s: could not sign off: %s", self.name, error)
        except Exception:
            log.exception("sink %s: could not be closed", self.name)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("sink %s: %s; trying again", self.name, trouble)
        self._trouble = trouble


class Relay:
    """Carries events to all sinks that are declared here, in turn with the other workers."""

    def __init__(
        self, store: Store, sinks: Iterable[Sink], owner: str, clock: Clock, *, pauses: tuple[float, float] = PAUSES
    ) -> None:
        self._store = store
        self._couriers = [Courier(store, sink, owner, clock, pauses) for sink in sinks]
        self._stopped = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="holdfast-relay", daemon=True)

    def start(self) -> None:
        """Register the sinks that are new, so that they get whatever happens from now on, and begin to deliver."""
        if not self._couriers:
            return
        try:
            self._register()
        except StoreError as error:
            log.warning("the sinks are not registered yet: %s", error)
        self._renewing.start()
        for courier in self._couriers:
            courier.thread.start()

    def nudge(self) -> None:
        """Look for events now."""
        for courier in self._couriers:
            courier.nudged.set()

    def flush(self, timeout: float) -> bool:
        """Wait until every sink has had all events that are there now; false if the time (seconds) is over before."""
        until, pause, end = time.monotonic() + timeout, _FIRST_LOOK, None
        while self._couriers:
            self.nudge()
            try:
                reached = self._store.sinks()
                if end is None:
                    end = last_position(self._store, max(reached.values(), default=0))
                if all(reached.get(courier.name, -1) >= end for courier in self._couriers):
                    return True
            except StoreError as error:
                log.debug("flush waits for the store: %s", error)
            if self._stopped.wait(min(pause, max(until - time.monotonic(), 0.0))) or time.monotonic() >= until:
                return False
            pause = min(2 * pause, _LAST_LOOK)
        return True

    def stop(self, timeout: float) -> bool:
        """Stop delivering; true if all ended in time (seconds). A call that does not come back is left behind, and
        what it was given is delivered again by another worker.
        """
        until = time.monotonic() + timeout
        self._stopped.set()
        for courier in self._couriers:
            courier.stopped.set()
            courier.nudged.set()
        late = []
        for courier in self._couriers:
            if not _ended(courier.thread, until):
                courier.left_behind = True
                late.append(courier.name)
        if late:
            log.warning("left while delivering to %s; what is not on record is delivered again", ", ".join(late))
        return _ended(self._renewing, until) and not late

    def tallies(self) -> dict[str, Tally]:
        """Say what has been done for each sink since the start."""
        return {one.name: Tally(one.delivered, one.failures, one.passed_over) for one in self._couriers}

    def _register(self) -> None:
        """Join every sink; give another worker, which leads one that is new, a moment to register it."""
        until = time.monotonic() + _JOIN
        for courier in self._couriers:
            while not courier.join() and courier.name not in self._store.sinks() and time.monotonic() < until:
                self._stopped.wait(_FIRST_LOOK)

    def _renew(self) -> None:
        while not self._stopped.wait(TERM / SECOND / 3):
            for courier in self._couriers:
                try:
                    courier.lead.renew()
                except StoreError as error:
                    log.debug("the lead of sink %s could not be renewed: %s", courier.name, error)
                except Exception:
                    log.exception("the lead of sink %s could not be renewed", courier.name)


def _rest(idle: int) -> float:
    """Say how long to wait before looking again, after so many looks in vain."""
    if idle > _LONG:
        return _LONG_POLL
    return min(_REST * 2.0 ** min(idle, 10), _POLL)


def _ended(thread: threading.Thread, until: float) -> bool:
    if thread.ident is not None:
        thread.join(max(until - time.monotonic(), 0.0))
    return not thread.is_alive()
