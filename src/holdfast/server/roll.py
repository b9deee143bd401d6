"""The workers that come by HTTP, as operators see them: since when, when last heard of, and how many jobs they hold.

They have no process here that reports itself. What this server hears of one, by its claims and by the heartbeats of its
jobs, is recorded in the store now and then, and when it is news; how many jobs it holds is as far as this server knows.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Store, WorkerRecord

_OFTEN = 10.0
"""The most often that one worker is recorded, in seconds."""
_STAYS = 90 * SECOND
"""How long a worker counts as alive after it was last recorded."""
_MOST = 10_000
"""As many workers, and as many of their jobs, are remembered; then all are forgotten, and heard of anew."""


@dataclass(slots=True)
class _Known:
    """A worker."""

    host: str
    queues: tuple[str, ...] | None
    kinds: tuple[str, ...]
    since: Micros
    told: float
    room: int = 1
    jobs: set[str] = field(default_factory=set)


class Roll:
    """The workers that one server has heard of. May be used from any thread."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._known: dict[str, _Known] = {}
        self._holders: dict[str, str] = {}
        self._lock = threading.Lock()

    def asks(
        self, owner: str, host: str, queues: Sequence[str] | None, kinds: Sequence[str], *, room: int, now: float
    ) -> None:
        """Note that a worker has room for some jobs. Blocks."""
        serves = (None if queues is None else tuple(queues), tuple(sorted(kinds)))
        since = 0 if owner in self._known else self._store().now()
        with self._lock:
            known = self._known.get(owner)
            news = known is None or (known.queues, known.kinds) != serves or now - known.told >= _OFTEN
            if known is None:
                if len(self._known) >= _MOST:
                    self._forget()
                known = self._known[owner] = _Known(host, *serves, since, now)
            known.queues, known.kinds = serves
            known.room = max(known.room, len(known.jobs) + room)
        if news:
            self._record(owner, known, now)

    def takes(self, owner: str, ids: Iterable[str]) -> None:
        """Note that a worker was given jobs."""
        with self._lock:
            for id_ in ids:
                self._let_go(id_)
                if (known := self._known.get(owner)) is not None:
                    self._holders[id_] = owner
                    known.jobs.add(id_)
            if len(self._holders) >= _MOST:
                self._forget()

    def beats(self, id_: str, now: float) -> None:
        """Note that the holder of a job goes on with it. Blocks."""
        with self._lock:
            owner = self._holders.get(id_)
            known = None if owner is None else self._known.get(owner)
            news = known is not None and now - known.told >= _OFTEN
        if owner is not None and known is not None and news:
            self._record(owner, known, now)

    def settles(self, id_: str) -> None:
        """Note that nobody holds a job any more who came through here."""
        with self._lock:
            self._let_go(id_)

    def _let_go(self, id_: str) -> None:
        known = self._known.get(self._holders.pop(id_, ""))
        if known is not None:
            known.jobs.discard(id_)

    def _forget(self) -> None:
        self._known.clear()
        self._holders.clear()

    def _record(self, owner: str, known: _Known, now: float) -> None:
        known.told = now
        store = self._store()
        seen = store.now()
        store.enlist(
            WorkerRecord(
                owner,
                known.host,
                0,
                known.queues,
                known.kinds,
                known.room,
                known.since,
                seen,
                seen + _STAYS,
                len(known.jobs),
            )
        )
