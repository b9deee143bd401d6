"""Requests that wait: for work to claim, or for a job to end. None of them holds a thread.

One thread listens to the store for all who wait for work. A ring lets the first of each group (those who wait for the
same) look; whoever finds something lets the next one look as well, so that one job does not wake a hundred
callers. Whoever waits for a job's end is told by one loop that reads all such jobs together.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.domain.errors import StoreError
from holdfast.domain.job import TERMINAL, JobRecord
from holdfast.domain.moments import SECOND
from holdfast.port.store import Store
from holdfast.server.pulse import Pulse

log = logging.getLogger("holdfast.server")
LISTENING, WATCHING = "listening", "watching"
_LOOK, _AGAIN = 1.0, 0.5
"""The longest that the listener goes without looking; and how long it lets a job be that is due and not taken."""
_FIRST_GLANCE, _LAST_GLANCE = 0.01, 0.25
"""How soon a job is read again by whoever waits for its end, at first and later."""
_TROUBLE = 1.0


class Group(NamedTuple):
    """Those who wait for the same: work of these queues (or all), of one tenant (or any)."""

    queues: tuple[str, ...] | None
    tenant: str | None = None


class Stand:
    """One request's place among those who wait for work."""

    __slots__ = ("group", "rung")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rung = asyncio.Event()


class Doorbell:
    """Lets requests wait for work. All but `_listen` belongs to the event loop."""

    def __init__(self, store: Callable[[], Store], pulse: Pulse) -> None:
        self._store = store
        self._pulse = pulse
        self._groups: dict[Group, deque[Stand]] = {}
        self._listener: threading.Thread | None = None
        self.closed = False

    def stand(self, group: Group) -> Stand:
        """Wait in line. Whoever does so before looking for work misses no ring."""
        stand = Stand(group)
        self._groups.setdefault(stand.group, deque()).append(stand)
        if self._listener is None and not self.closed:
            loop = asyncio.get_running_loop()
            self._listener = threading.Thread(target=self._listen, args=(loop,), name="holdfast-doorbell", daemon=True)
            self._listener.start()
        return stand

    def leave(self, stand: Stand) -> None:
        """Wait no longer; a ring that was heard and not answered goes to the next in line."""
        line = self._groups.get(stand.group)
        if line is None:
            return
        with suppress(ValueError):
            line.remove(stand)
        if not line:
            del self._groups[stand.group]
        elif stand.rung.is_set():
            self.pass_on(stand.group)

    def answer(self, stand: Stand) -> None:
        """Take the ring, to look once more; and go to the end of the line."""
        stand.rung.clear()
        line = self._groups.get(stand.group)
        if line is not None and len(line) > 1:
            line.remove(stand)
            line.append(stand)

    def pass_on(self, group: Group) -> None:
        """Let the next in line look: there may be more."""
        for stand in self._groups.get(group, ()):
            if not stand.rung.is_set():
                stand.rung.set()
                return

    def close(self) -> None:
        """Let everybody go."""
        self.closed = True
        for line in self._groups.values():
            for stand in line:
                stand.rung.set()

    def _ring(self) -> None:
        for group in self._groups:
            self.pass_on(group)

    def _queues(self) -> list[str] | None:
        asked = [group.queues for group in list(self._groups)]
        return None if None in asked else sorted({name for names in asked for name in names or ()})

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._groups and not self.closed:
            try:
                rung = self._heard(self._store())
                self._pulse.beat(LISTENING)
            except StoreError as error:
                log.warning("nobody can be told of new work: %s", error)
                threading.Event().wait(_TROUBLE)
                continue
            if rung:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._ring)
        self._pulse.rest(LISTENING)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._restart, loop)

    def _heard(self, store: Store) -> bool:
        """Wait for a ring, or until a job comes due; tell whether there may be something to claim."""
        queues = self._queues()
        due = store.next_due(queues)
        left = _LOOK if due is None else (due - store.now()) / SECOND
        pause = _AGAIN if left <= 0 else min(left, _LOOK)
        return store.wait(queues, pause) or (due is not None and left <= pause)

    def _restart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen again if somebody came while the listener was leaving."""
        self._listener = None
        if self._groups and not self.closed:
            self._listener = threading.Thread(target=self._listen, args=(loop,), name="holdfast-doorbell", daemon=True)
            self._listener.start()


class Watch:
    """Lets requests wait for jobs to end."""

    def __init__(self, store: Callable[[], Store], pulse: Pulse) -> None:
        self._store = store
        self._pulse = pulse
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Those who wait, by the job's id."""
        self._task: asyncio.Task[None] | None = None
        self._pause = _FIRST_GLANCE
        self.closed = False

    async def ended(self, id_: str, timeout: float) -> None:
        """Wait until a job has ended or is gone, or for so many seconds; whoever waits reads the job again."""
        if self.closed:
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id_, []).append(told)
        self._pause = _FIRST_GLANCE
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._glance())
        try:
            await asyncio.wait({told}, timeout=timeout)
        finally:
            self._leave(id_, told)

    def close(self) -> None:
        """Let everybody go."""
        self.closed = True
        self._tell(list(self._waiting))

    def _leave(self, id_: str, told: "asyncio.Future[None]") -> None:
        others = [each for each in self._waiting.pop(id_, ()) if each is not told]
        if others:
            self._waiting[id_] = others

    async def _glance(self) -> None:
        while self._waiting and not self.closed:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.5, _LAST_GLANCE)
            ids = list(self._waiting)
            try:
                found = await asyncio.to_thread(self._read, ids)
            except StoreError:
                self._tell(ids)  # whoever waits asks the store, and hears of its trouble
                continue
            self._pulse.beat(WATCHING)
            self._tell([id_ for id_, job in zip(ids, found, strict=True) if _over(job)])
        self._pulse.rest(WATCHING)

    def _read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        return self._store().read(ids)

    def _tell(self, ids: Sequence[str]) -> None:
        for told in (each for id_ in ids for each in self._waiting.pop(id_, ())):
            if not told.done():
                told.set_result(None)


def _over(job: JobRecord | None) -> bool:
    return job is None or job.state in TERMINAL
