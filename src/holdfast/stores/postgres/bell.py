"""Waking idle workers: LISTEN and NOTIFY, debounced, and one worker who looks on behalf of all.

A notification is a hint. A process sends at most a hundred a second, because PostgreSQL lets only one notifying
transaction commit at a time: a lone enqueue sends its own along, and while that is fresh a thread gathers the others.
What nobody was notified of (a job enqueued in a caller's transaction or by plain SQL, one that comes due) is called out
by the worker that leads: it looks a few times a second, so that two hundred idle workers need not. A wake-up that
reaches a crowd is heeded by a few of it.

Behind a pooler that lends sessions by the transaction nothing can be listened for; workers then look by themselves,
the more seldom the longer there was nothing.
"""

import os
import random
import select
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import LiteralString

import psycopg
from psycopg.pq import PGnotify

from holdfast.domain.errors import StoreError
from holdfast.port.process import PROCESS
from holdfast.port.store import UPKEEP
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.pool import Ours, Pool

Due = Callable[[], tuple[list[str], float | None]]
_DEBOUNCE = 0.01
_PATIENCE = 0.005
"""Seconds for which the herald lets others go first: a notification costs less with a job than by itself."""
_LOOK = 0.25
"""Seconds between two looks of the leader."""
_SOON = 0.02
"""Seconds between two looks of the leader when there is news: what was stored just now may come due at any moment."""
_DEAR = 0.1
"""Seconds from which on a look is dear, if it is twice in a row: then a long transaction keeps dead rows in its way."""
_SHARE = 20
"""Dear looks of somebody who is busy are made so seldom that they take up this part of the time."""
_LONGEST_REST = 5.0
"""The most seconds between two looks, however dear they are."""
_IN_VAIN = 2.0
"""Seconds between two calls of the leader for the same queues, if those who come are turned away."""
_ASK = 0.5
"""Seconds between two questions for the lead, whoever of the crowd asks."""
_HEED = 8
"""How many of a crowd heed a wake-up."""
_SOONEST, _LATEST = 0.1, 3.0
"""Seconds between two looks of a worker that cannot listen."""
_ANY = "*"
_AT_ONCE = "."
"""Ends a notification of jobs that may start at once, all of them: where everybody heeds it, nobody need look for what
comes due."""
_LED = "!"
"""Ends a notification by whoever leads, who need not hear of what it called out itself."""
_LONGEST = 7000


class Bell:
    """The bell of one store object. Threads and connections are made at first use, and anew after a fork."""

    def __init__(self, pool: Pool, schema: str, due: Due, busy: Callable[[], bool], full: Callable[[], bool]) -> None:
        self._pool = pool
        self._schema = schema
        self._channel = f"holdfast_{schema}"
        self._due = due
        self._busy = busy
        """Tells whether we take jobs ourselves: then we also see what comes due."""
        self._full = full
        """Tells whether we were turned away, as others would be."""
        self._name = os.urandom(8).hex()
        self._lock = threading.Lock()
        self._pid = 0
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = PROCESS.id
        self._ears: Ours | None = None
        self._hearer: int | None = None
        """The thread that heard a call over it, until it listens again or has used it."""
        self._overheard = deque[PGnotify]()
        """Calls that came over it and have not been read yet."""
        self._unread = False
        """The first of them, or of those to come, has been answered already."""
        self._trusting = False
        """The last call was for us, so the next one will be."""
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._pending: set[str] = set()
        self._later = False
        """Something of what is pending may come due later."""
        self._rung = threading.Event()
        self._herald: threading.Thread | None = None
        self._crowd = 1
        self._led_until: dict[str, float] = {}
        self._leads_until = 0.0
        self._next_look = self._last_look = 0.0
        self._called_out: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
        """When we last called on everybody's behalf, and for which queues."""
        self._took = self._rest = 0.0
        """How long the last look took, and how long to rest between two because they are dear."""
        self._again = _SOON
        """Seconds after which to look whether those who were called have taken what there is; ever more of them."""
        self._quiet_since = time.monotonic()
        self._called = 0.0
        self._deaf_until = 0.0

    def ring(self, queues: Collection[str], *, later: bool = True) -> None:
        """Wake whoever waits for one of these queues, soon; `later` says that a job of theirs may come due later."""
        if not queues or self._closed:
            return
        if self._pid != PROCESS.id:
            self._after_fork()
        if self._later >= later and self._pending.issuperset(queues):
            return  # whoever takes that set sends it from now on, and so after what we stored
        with self._lock:
            self._pending = self._pending.union(queues)
            self._later = self._later or later
            if self._herald is None:
                self._herald = threading.Thread(target=self._carry, name="holdfast-herald", daemon=True)
                self._herald.start()
        self._rung.set()

    def turn(self, queue: str, *, later: bool) -> dict[str, str] | None:
        """Give the notification to send along with what is being stored; none while the last one is fresh.

        It calls for all who have rung meanwhile: in a steady stream of jobs the herald finds nothing left to carry.
        """
        if self._closed or self._pid != PROCESS.id or self._still_fresh() > 0:
            return None
        pending, also_later = self._take()
        return self._message({queue, *pending}, _mark(later=later or also_later))

    def missed(self, call: dict[str, str]) -> None:
        """Take back a notification that was not sent after all."""
        self.ring(call["message"].split("\n")[:-1])

    def _take(self) -> tuple[set[str], bool]:
        """Take what is pending."""
        with self._lock:
            queues, self._pending = self._pending, set()
            later, self._later = self._later, False
            return queues, later

    def _still_fresh(self, patience: float = 0.0) -> float:
        """Tell for how many seconds the last notification is fresh; none, and the next one is the caller's to send."""
        with self._lock:
            left = self._called + _DEBOUNCE + patience - time.monotonic()
            if left <= 0:
                self._called = time.monotonic()
            return max(0.0, left)

    def ring_own(self) -> None:
        """Wake this store object's own waiters only."""
        with suppress(OSError):
            self._wake.send(b"!")

    def told_leader(self, role: str, *, leads: bool, term: float, crowd: int) -> None:
        """Learn whether we lead, and then look on everybody's behalf; or else when to ask again.

        The more there are, the less often each asks: somebody soon does.
        """
        now = time.monotonic()
        self._crowd = max(1, crowd)
        if leads:
            self._led_until.pop(role, None)
            if role == UPKEEP:
                self._leads_until = now + term
        else:
            self._led_until[role] = now + max(term, crowd * _ASK) * random.uniform(0.8, 1.2)  # noqa: S311

    def knows_leader(self, role: str) -> bool:
        """Tell whether somebody else leads, as far as is known."""
        return time.monotonic() < self._led_until.get(role, 0.0)

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until rung for one of these queues, or until the timeout."""
        self._after_fork()
        self._hearer = None
        end = time.monotonic() + timeout
        while True:
            ears = self._listen()
            now = time.monotonic()
            if self._closed:
                return False
            self._rest_no_longer_than_busy()
            leads = now < self._leads_until
            if leads and now >= self._next_look and self._look(queues):
                return True
            until = min(end, self._next_look) if leads else end
            if ears is None:
                until = min(until, now + self._pause(now))
            heard = self._hear(ears, queues, max(0.0, until - now))
            now = time.monotonic()
            if heard:
                self._quiet_since = now
                return True
            if now >= end:
                return False
            if ears is None:
                return True

    def close(self) -> None:
        """Carry what is left to carry, and stop listening."""
        herald, self._closed = self._herald, True
        self._rung.set()
        if herald is not None and herald.is_alive() and self._pid == PROCESS.id:
            herald.join(0.5)
        self.ring_own()
        with self._lock, suppress(psycopg.Error):
            if self._ears is not None and self._pid == PROCESS.id:
                self._ears.close()
        self._wake.close()
        self._woken.close()

    def _after_fork(self) -> None:
        if self._pid != PROCESS.id:
            self._lock = threading.Lock()
            self._reset()

    def _pause(self, now: float) -> float:
        """How long to go without looking, for a worker that cannot listen."""
        return min(_LATEST, max(_SOONEST, (now - self._quiet_since) / 10))

    def _listen(self) -> Ours | None:
        """Give the connection that listens, if there can be one."""
        now = time.monotonic()
        if self._ears is not None or self._closed or now < self._deaf_until:
            return self._ears
        if self._pool.pooled:
            return None
        try:
            ears = self._pool.connect()
            if self._pool.pooled:  # as it turns out
                ears.close()
                return None
            ears.execute(self._sql("listen"))
            ears.pgconn.notify_handler = self._overheard.append  # for calls that come with the answer to a claim
        except (StoreError, psycopg.Error):
            self._deaf_until = now + 1.0
            return None
        self._ears = ears
        return ears

    def _hear(self, ears: Ours | None, queues: Sequence[str] | None, timeout: float) -> bool:
        if ears is not None and (self._overheard or self._unread):
            return self._read(ears, queues)
        listening = select.poll()
        listening.register(self._woken, select.POLLIN)
        try:
            if ears is not None:
                listening.register(ears.pgconn.socket, select.POLLIN)
            ready = {number for number, _ in listening.poll(timeout * 1000)}
        except (OSError, ValueError, psycopg.Error):
            return self._deafened()
        if self._woken.fileno() in ready:
            with suppress(OSError):
                self._woken.recv(1024)
            return True
        if ears is None or not ready:
            return False
        if self._trusting:
            self._hearer, self._unread = threading.get_ident(), True
            return True
        return self._read(ears, queues)

    def _read(self, ears: Ours, queues: Sequence[str] | None) -> bool:
        """Read the calls that have come; tell whether one is for us that has not been answered."""
        try:
            ears.pgconn.consume_input()
            while note := ears.pgconn.notifies():
                self._overheard.append(note)
        except psycopg.Error:
            return self._deafened()
        rung = False
        while self._overheard:
            message = self._overheard.popleft().extra.decode()
            self._look_after(message)
            heeded = self._heed(message, queues)
            self._trusting = heeded and self._crowd <= _HEED
            rung = rung or (heeded and not self._unread)
            self._unread = False
        self._unread = False
        if rung:
            self._hearer = threading.get_ident()
        return rung

    def nearest(self) -> Ours | None:
        """Give the connection that a call came over, for the claim that answers it, to the thread that heard it: the
        server's process behind it is awake.
        """
        if self._hearer != threading.get_ident():
            return None
        self._hearer = None
        return self._ears

    def _look_after(self, message: str) -> None:
        """Look soon because of another's notification: for what comes due, or, if only a few of us heed it, for what
        none of them has taken by then.
        """
        if message.endswith(_LED):
            return
        self._again = _SOON
        soon = self._last_look + max(_SOON, self._rest)
        if not message.endswith(_AT_ONCE):
            self._next_look = min(self._next_look, soon)
        elif self._crowd > _HEED:
            self._next_look = min(self._next_look, max(soon, time.monotonic() + _SOON))

    def _deafened(self) -> bool:
        """The connection is gone: what was called meanwhile was missed, so look at once, and listen anew."""
        if self._ears is not None:
            with suppress(psycopg.Error):
                self._ears.close()
        self._ears, self._hearer, self._unread = None, None, False
        self._overheard.clear()
        return not self._closed

    def _heed(self, message: str, queues: Sequence[str] | None) -> bool:
        """Tell whether a notification is for us."""
        called, _, nonce = message.rpartition("\n")
        if called != _ANY and queues is not None and set(queues).isdisjoint(called.split("\n")):
            return False
        return zlib.crc32(f"{nonce}{self._name}".encode()) * self._crowd < _HEED << 32

    def _look(self, queues: Sequence[str] | None) -> bool:
        """Look for work on everybody's behalf; call out what there is, and tell whether it is for us too."""
        self._last_look = time.monotonic()
        self._next_look = self._last_look + _LOOK
        try:
            found, due_in = self._due()
        except StoreError:
            return False
        self._learn_cost(time.monotonic() - self._last_look)
        self._next_look = self._last_look + max(_LOOK, self._rest)
        if due_in is not None:
            soonest = max(self._rest / _SHARE, _SOON if found else 0.0)
            self._next_look = min(self._next_look, time.monotonic() + max(due_in, soonest))
        if not found:
            self._again = _SOON
            return False
        if self._crowd > 1:
            self._next_look = min(self._next_look, self._last_look + max(self._again, self._rest))
            self._again = min(_LOOK, 2 * self._again)
            self._call_out(frozenset(found))
        return queues is None or not set(queues).isdisjoint(found)

    def _call_out(self, found: frozenset[str]) -> None:
        """Call whoever is idle; seldom, if those who come are turned away: two hundred hear each call."""
        at, called = self._called_out
        if self._last_look - at >= _IN_VAIN or not found <= called or not self._full():
            self._called_out = self._last_look, found
            self._call(found, _LED)

    def _learn_cost(self, seconds: float) -> None:
        dear = min(seconds, self._took)
        self._took = seconds
        self._rest = min(dear * _SHARE, _LONGEST_REST) if dear > _DEAR and self._busy() else 0.0

    def _rest_no_longer_than_busy(self) -> None:
        """Look as often as ever once we are idle: nothing else would see what comes due then."""
        if self._rest and not self._busy():
            self._rest = 0.0
            self._next_look = min(self._next_look, self._last_look + _LOOK)

    def _carry(self) -> None:
        """Send what is pending, and then rest for a moment: whoever rings meanwhile shares the next notification."""
        while True:
            self._rung.wait()
            self._rung.clear()
            while self._pending and (left := self._still_fresh(_PATIENCE)):
                time.sleep(left)
            queues, later = self._take()
            if queues:
                self._call(queues, _mark(later=later))
            if self._closed:
                return

    def _call(self, queues: Collection[str], mark: str) -> None:
        """Send a notification, which nobody need wait for the disk for."""
        parameters = self._message(queues, mark)
        with suppress(StoreError):
            self._pool.run(lambda db: db.execute(self._sql("notify"), parameters), writes=False)

    def _message(self, queues: Collection[str], mark: str) -> dict[str, str]:
        names = "\n".join(sorted(queues))
        nonce = os.urandom(4).hex() + mark
        return {"channel": self._channel, "message": f"{names if len(names.encode()) < _LONGEST else _ANY}\n{nonce}"}

    def _sql(self, name: str) -> LiteralString:
        return sql.statement(self._schema, name)


def _mark(*, later: bool) -> str:
    return "" if later else _AT_ONCE
