"""What the memory store keeps beside jobs: schedules, pages, events and sinks; and the lock that it all is under."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.limits import BOOK, NO_RULES, Rules
from holdfast.domain.moments import Micros
from holdfast.domain.move import Move
from holdfast.port.clock import Clock
from holdfast.port.store import EventRecord, Page, ScheduleRecord


class Shelf:
    """Schedules, pages, events and sinks in dictionaries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        """Entered by itself: a signal that comes while a condition is entered would leave it locked for ever."""
        self._changed = threading.Condition(self._lock)
        self._schedules: dict[str, ScheduleRecord] = {}
        self._pages: dict[tuple[str, str], Page] = {}
        self._events: list[EventRecord] = []
        self._position = 0
        self._sinks: dict[str, int] = {}
        self._wakes = 0
        self._closed = False

    def now(self) -> Micros:
        """Give the clock's time."""
        return self._clock.now()

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules."""
        with self._open():
            return sorted(self._schedules.values())

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule that has not changed."""
        with self._open():
            found = self._schedules.get(schedule.name)
            if (found and found.version) != seen:
                return False
            self._schedules[schedule.name] = schedule._replace(version=(seen or 0) + 1)
            return True

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        with self._open():
            return self._schedules.pop(name, None) is not None

    def pages(self, book: str, after: str | None = None, limit: int = 100, newest: bool = False) -> list[Page]:  # noqa: FBT001, FBT002
        """List the pages of a book."""
        with self._open():
            names = sorted((name for of, name in self._pages if of == book), reverse=newest)
        behind = [name for name in names if after is None or (name < after if newest else name > after)]
        return [page for name in behind if (page := self.page(book, name))][:limit]

    def page(self, book: str, name: str) -> Page | None:
        """Read one page."""
        with self._open():
            found = self._pages.get((book, name))
            return None if found is None or self._over(found) else found

    def write_page(self, page: Page, seen: int | None) -> bool:
        """Write a page that has not changed."""
        with self._open():
            found = self.page(page.book, page.name)
            if (found and found.version) != seen:
                return False
            self._pages[page.book, page.name] = page._replace(version=(seen or 0) + 1)
            return True

    def remove_page(self, book: str, name: str) -> bool:
        """Forget a page."""
        with self._open():
            return self.page(book, name) is not None and self._pages.pop((book, name), None) is not None

    def _rules(self) -> Rules:
        """Read the rules of flow control."""
        if not any(book == BOOK for book, _ in self._pages):
            return NO_RULES
        return Rules.read((page.name, page.body) for page in self.pages(BOOK, limit=len(self._pages)))

    def _purge_pages(self, limit: int) -> int:
        """Remove pages whose time is over."""
        over = [key for key, page in self._pages.items() if self._over(page)][:limit]
        for key in over:
            del self._pages[key]
        return len(over)

    def _over(self, page: Page) -> bool:
        return page.expires_at is not None and page.expires_at <= self.now()

    def events(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position."""
        with self._open():
            return [event for event in self._events if event.position > after][:limit]

    def sinks(self) -> dict[str, int]:
        """Give the position of each sink."""
        with self._open():
            return dict(self._sinks)

    def reach(self, sink: str, position: int) -> None:
        """Record how far a sink is."""
        with self._open():
            self._sinks[sink] = max(position, self._sinks.get(sink, 0))

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        with self._open():
            self._sinks.pop(name, None)

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had."""
        with self._open():
            upto = min(self._sinks.values(), default=self._position)
            over = [event for event in self._events if event.position <= upto][:limit]
            del self._events[: len(over)]
            return len(over)

    def _tell(self, move: Move, now: Micros) -> None:
        """Write down the events of a move."""
        for event in move.events:
            self._position += 1
            self._events.append(EventRecord(self._position, event.id, move.id, event.name, event.body, now))

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until something changed."""
        with self._changed:
            seen = self._wakes
            return self._changed.wait_for(lambda: self._wakes != seen, timeout)

    def wake(self) -> None:
        """Make every `wait` return now."""
        with self._lock:
            self._wakes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self.wake()

    def _open(self) -> AbstractContextManager[bool]:
        if self._closed:
            msg = "The store is closed."
            raise StoreUnavailable(msg)
        return self._lock
