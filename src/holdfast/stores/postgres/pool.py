"""Connections to one server: a small pool, opened at first use, that mends itself after a restart or a failover."""

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from holdfast.domain.errors import StoreUnavailable
from holdfast.port.process import PROCESS
from holdfast.port.shelter import SHELTER
from holdfast.stores.postgres.address import SETTINGS, Address
from holdfast.stores.postgres.trouble import AGAIN, broken, translate

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_NAME = "holdfast"
_MOST = 6
_MOST_WARM = 2
_MOST_LENT = 20
_PATIENCE = 5.0
"""Seconds a call waits for a connection."""
_JUST_NOW = 0.05
"""Seconds for which a connection is not looked at again before it is used."""
_TRIES = 5
_COMMITTED = "-c default_transaction_isolation=read\\ committed"
"""Our guards are made for this level. At a stricter one, whoever meets another's change would be refused again and
again, and a server may have been set so for the sake of others."""
_LOCAL = "; ".join(
    ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", *(f"SET LOCAL {name} = '{to}'" for name, to in SETTINGS.items()))
)
"""The settings for one transaction only: behind a pooler there is no session to set them for."""
_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "
    "SET LOCAL jit = 'off'; SET LOCAL statement_timeout = 0; "
    "SET LOCAL enable_seqscan = 'on'; SET LOCAL enable_sort = 'on'"
)


class Ours(psycopg.Connection[Any]):
    """A connection of ours, to be told from others in psycopg's log."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.at_hand: set[bytes] = set()
        """The names of what was prepared on it by hand (`swift`)."""

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Connect, or give one that is `opened` already: the first of a pool."""
        opened: list[Self] = options.pop("opened", [])
        return opened.pop() if opened else super().connect(conninfo, **options)


class Pool:
    """Runs work on a connection, again if the connection was lost or somebody had to give way.

    Every piece of work can safely be done again (see the port), so a backend that is ended under a call is not the
    caller's trouble.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pooled = False
        """A pooler stands between: no session lasts, so nothing may be prepared and nothing listened for."""
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, bool], ConnectionPool[Connection]] = {}
        """By process, and whether it is the one for heartbeats."""
        self._closed = False
        self._warm: deque[tuple[Connection, float]] = deque()
        """Connections at hand, and when each was last used."""
        self._warm_in = PROCESS.id
        self._waiting = 0
        """How many callers wait for a connection of the pool: none is kept from them for whoever comes next."""
        self._lent: list[Connection] = []
        self._lent_by = PROCESS.id

    def run(
        self, work: Callable[[Connection], T], *, writes: bool = True, snapshot: bool = False, apart: bool = False
    ) -> T:
        """Do a piece of work; `snapshot` lets it see one moment for as long as it takes, and change nothing.

        What is done `apart` has a connection of its own, and waits for nobody: a heartbeat must not.
        """
        if not SHELTER.exposed:
            return self._run(work, writes=writes, snapshot=snapshot, apart=apart)
        with SHELTER:
            return self._run(work, writes=writes, snapshot=snapshot, apart=apart)

    def _run(self, work: Callable[[Connection], T], *, writes: bool, snapshot: bool, apart: bool) -> T:
        failure: psycopg.Error | None = None
        unknown = False
        for attempt in range(_TRIES):
            connection: Connection | None = None
            pool = self._pools.get((PROCESS.id, apart)) or self._open(apart=apart)
            try:
                connection = self._living(pool, apart=apart)
                if not self.pooled and not snapshot:
                    done = work(connection)
                    connection = connection if apart else self._keep(connection)
                    return done
                with connection.transaction():
                    connection.execute(_SNAPSHOT if snapshot else _LOCAL, prepare=False)
                    return work(connection)
            except AGAIN as error:
                failure = error
            except errors.UniqueViolation:
                raise
            except psycopg.Error as error:
                failure = error
                unknown = unknown or (writes and connection is not None and broken(error, connection))
                if not broken(error, connection) or attempt > 0:
                    raise translate(error, self.address, sent=unknown) from error
            finally:
                if connection is not None:
                    pool.putconn(connection)
            if broken(failure, None):
                self._renew(pool)
        assert failure is not None
        raise translate(failure, self.address, sent=unknown) from failure

    def _living(self, pool: ConnectionPool[Connection], *, apart: bool) -> Connection:
        """Take a connection that has not died while it lay idle: what is sent over a dead one might have arrived."""
        while True:
            used_at = float("-inf")
            try:
                own = not apart and self._warm_in == PROCESS.id
                if own:
                    connection, used_at = self._warm.pop()
                else:
                    connection = pool.getconn(_PATIENCE)
            except IndexError:
                connection = self._wait(pool)
            if time.monotonic() - used_at < _JUST_NOW or not _is_dead(connection):
                return connection
            connection.close()
            pool.putconn(connection)

    def _wait(self, pool: ConnectionPool[Connection]) -> Connection:
        with self._lock:
            self._waiting += 1
        try:
            return pool.getconn(_PATIENCE)
        finally:
            with self._lock:
                self._waiting -= 1

    def _keep(self, connection: Connection) -> Connection | None:
        """Keep a connection at hand for the next call, which spares it the way through the pool; or give it back."""
        if self._waiting or len(self._warm) >= _MOST_WARM or self._closed or connection.closed:
            return connection
        if self._warm_in != PROCESS.id:
            self._warm, self._warm_in = deque(), PROCESS.id
        self._warm.append((connection, time.monotonic()))
        return None

    def connect(self) -> Ours:
        """Open a connection of one's own, and see whether a pooler stands between."""
        try:
            made = Ours.connect(self._conninfo(), autocommit=True)
            told = made.execute("SELECT pg_backend_pid()").fetchone()
        except psycopg.Error as error:
            if "startup parameter" in str(error) and not self.pooled:  # what a pooler says to settings for a session
                self.pooled = True
                return self.connect()
            raise translate(error, self.address, sent=False) from error
        self.pooled = self.pooled or told != (made.info.backend_pid,)
        made.prepare_threshold = self._prepares
        return made

    @property
    def guest_conninfo(self) -> str:
        """How a handler's own connection is made: its statements are planned as PostgreSQL likes."""
        if self.pooled:
            return self.address.conninfo
        return self._with_options("-c lock_timeout=60s -c statement_timeout=10min")

    def borrow(self) -> Connection:
        """Lend a connection to a handler until `give_back`."""
        with self._lock:
            while self._lent:
                connection = self._lent.pop()
                if self._lent_by == PROCESS.id and not _is_dead(connection):
                    return connection
        self._pool()
        try:
            threshold = None if self.pooled else 5
            return psycopg.connect(self.guest_conninfo, autocommit=True, prepare_threshold=threshold)
        except psycopg.Error as error:
            raise translate(error, self.address, sent=False) from error

    def give_back(self, connection: Connection) -> None:
        """Take a lent connection back, to lend it again as it was."""
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if not self._closed and idle and len(self._lent) < _MOST_LENT:
                self._lent_by = PROCESS.id
                self._lent.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close every connection of this process."""
        with self._lock:
            self._closed = True
            pool = self._pools.pop((PROCESS.id, False), None)
            hearts = self._pools.pop((PROCESS.id, True), None)
            lent, self._lent = self._lent, []
        if self._lent_by == PROCESS.id:
            for connection in lent:
                connection.close()
        if pool is not None:
            while self._warm and self._warm_in == PROCESS.id:
                pool.putconn(self._warm.pop()[0])
            pool.close(1.0)
        if hearts is not None:
            hearts.close(1.0)

    def _pool(self, *, apart: bool = False) -> ConnectionPool[Connection]:
        pool = self._pools.get((PROCESS.id, apart))
        return pool or self._open(apart=apart)

    def _open(self, *, apart: bool) -> ConnectionPool[Connection]:
        """Open a pool of this process; the first, once a connection has shown that the server lets us in."""
        with self._lock:
            if self._closed:
                msg = f"The store on {self.address.shown} is closed."
                raise StoreUnavailable(msg)
            if pool := self._pools.get((PROCESS.id, apart)):
                return pool
            opened = [] if apart else [self.connect()]
            for name in ("psycopg", "psycopg.pool"):
                logging.getLogger(name).addFilter(_is_not_ours)
            ours: type[Connection] = Ours
            pool = ConnectionPool(
                self._conninfo(),
                connection_class=ours,
                kwargs={"autocommit": True, "prepare_threshold": self._prepares, "opened": opened},
                min_size=len(opened),
                max_size=1 if apart else _MOST,
                timeout=_PATIENCE,
                reconnect_timeout=1.0,
                max_idle=60,
                open=True,
                name=_NAME,
            )
            if opened:
                pool.wait(_PATIENCE)  # whoever comes before it is there would have a second one opened
            self._pools[PROCESS.id, apart] = pool
            return pool

    def _conninfo(self) -> str:
        if self.pooled:
            return self.address.conninfo
        return self._with_options(" ".join((_COMMITTED, *(f"-c {name}={value}" for name, value in SETTINGS.items()))))

    def _with_options(self, ours: str) -> str:
        """Ask for settings of a session; those that the URL asks for come later, and so hold."""
        given = conninfo_to_dict(self.address.conninfo).get("options")
        return make_conninfo(self.address.conninfo, options=f"{ours} {given}" if given else ours)

    @property
    def _prepares(self) -> int | None:
        """How often a statement of ours is sent before it is prepared."""
        return None if self.pooled else 0

    def _renew(self, pool: ConnectionPool[Connection]) -> None:
        """Throw away the connections that died with the one that failed."""
        pool.check()


def _is_dead(connection: Connection) -> bool:
    """Tell whether the other side has closed an idle connection: there is something to read, and it is the end."""
    try:
        news = select.poll()
        news.register(connection.pgconn.socket, select.POLLIN)
        while news.poll(0):
            connection.pgconn.consume_input()
            if connection.pgconn.status != ConnStatus.OK:
                return True
    except (psycopg.Error, OSError, ValueError):
        return True
    return False


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Keep psycopg from logging the troubles of our pool, its connections and their pipelines, each try of each: we
    tell whoever called, once.
    """
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return about != _NAME and not isinstance(getattr(about, "_conn", about), Ours)
