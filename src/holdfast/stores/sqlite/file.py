"""An open Holdfast file: one connection that writes, one that reads, each used by one thread at a time.

Every write transaction is `BEGIN IMMEDIATE`, so it never has to be upgraded; reads see one snapshot. A connection must
not cross a fork, so a forked child opens the file anew at its first use. A file that was removed or replaced since it
was opened is refused: what is written to it would be gone.
"""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import apsw

from holdfast.domain.errors import CommitUnknown, StoreUnavailable
from holdfast.port.process import PROCESS
from holdfast.port.shelter import SHELTER
from holdfast.stores.sqlite.connection import connect, translate
from holdfast.stores.sqlite.guests import OwnConnection

_HAS_MOVED = apsw.SQLITE_FCNTL_HAS_MOVED


class OpenFile:
    """Two connections to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._open(path)

    def _open(self, path: Path) -> None:
        self.writer = connect(path)
        # What undoes a statement that fails half-way would be written to a file once it is larger than 16 pages.
        self.writer.pragma("temp_store", "MEMORY")
        self.reader = connect(path)
        self.place = path.absolute()
        """Where it lies, whatever folder the process is in later on."""
        self._writing = Turn(self, self.writer, "BEGIN IMMEDIATE")
        self._reading = Turn(self, self.reader, "BEGIN")
        self._process = PROCESS.id

    def write(self) -> "Turn":
        """Give a write transaction: `with file.write() as db`."""
        if self._process != PROCESS.id:
            self._after_fork()
        return self._writing

    def at_once(self, statement: str, values: Sequence[object], *, repeatable: bool = False) -> None:
        """Write by one statement that is a transaction of its own; `apsw.ConstraintError` is raised as it is.

        For what can be asked again, whatever became of it, the file is looked for afterwards: a look gives up the
        interpreter's lock, and a thread that runs steps would keep it while the disk could be at work.
        """
        if self._process != PROCESS.id:
            self._after_fork()
        writer, turn, exposed = self.writer, self._writing, bool(SHELTER.exposed)
        if exposed:
            SHELTER.__enter__()
        try:
            with turn.lock:
                if self.closed:
                    raise self.lost()
                if not repeatable:
                    writer.file_control("main", _HAS_MOVED, turn.flag)
                    if turn.moved.value:
                        raise self.lost()
                try:
                    writer.execute(statement, values)
                except BaseException as error:
                    self._undo(error)
                    raise
                if repeatable and not turn.is_there():
                    msg = f"{self.path} was removed or replaced meanwhile; what was written is gone with it."
                    raise CommitUnknown(msg)
        finally:
            if exposed:
                SHELTER.__exit__(None, None, None)

    def _undo(self, error: BaseException) -> None:
        """Leave nothing of a statement that failed, and raise what its error means if that is not said by itself."""
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")
        if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
            raise translate(error, self.path, committing=True) from error

    def read(self) -> "Turn":
        """Give a snapshot to read from: `with file.read() as db`."""
        if self._process != PROCESS.id:
            self._after_fork()
        return self._reading

    def close(self) -> None:
        """Close both connections, once nobody uses them."""
        with self._writing.lock, self._reading.lock:
            self.closed = True
            self.reader.close()
            self.writer.close()

    def lost(self) -> StoreUnavailable:
        """Say why nobody can go on: the file is closed, or another than the one that was opened."""
        if self.closed:
            return StoreUnavailable(f"The store on {self.path} is closed.")
        remedy = "put it back, or stop all who use it and start again"
        return StoreUnavailable(
            f"{self.path} was removed or replaced while it was open, and nothing was written; {remedy}."
        )

    def _after_fork(self) -> None:
        self._inherited = (self.writer, self.reader)
        self._open(self.place)


class Turn:
    """A connection's transactions, one at a time.

    A class of its own, and made once, because it is entered for every single enqueue.
    """

    __slots__ = ("_begin", "_db", "_file", "flag", "lock", "moved")

    def __init__(self, file: OpenFile, db: apsw.Connection, begin: str) -> None:
        self.lock = threading.RLock()
        """Knows which thread has it, and so whether it must be given back."""
        self._file = file
        self._db = db
        self._begin = begin
        self.moved = ctypes.c_int()
        """Where SQLite notes, when it is asked, whether the file is another than the one that was opened."""
        self.flag = ctypes.addressof(self.moved)

    def is_busy(self) -> bool:
        """Tell whether another thread is at it now."""
        try:
            return not self.lock.acquire(blocking=False)
        finally:
            with suppress(RuntimeError):  # it was not taken
                self.lock.release()

    def is_there(self) -> bool:
        """Tell whether the file is the one that was opened."""
        self._db.file_control("main", _HAS_MOVED, self.flag)
        return not self.moved.value

    def _check(self) -> None:
        if self._file.closed or not self.is_there():
            raise self._file.lost()

    def __enter__(self) -> OwnConnection:
        SHELTER.__enter__()
        try:
            self.lock.acquire()
            self._check()
            self._db.execute(self._begin)
            return self._db  # here, so that nothing comes between, not even a signal
        except BaseException as error:
            self._give_back()
            SHELTER.__exit__(None, None, None)
            if isinstance(error, apsw.Error):
                raise translate(error, self._file.path) from error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        except apsw.Error as failure:
            raise translate(failure, self._file.path, committing=True) from failure
        finally:
            try:
                self._roll_back()
            finally:
                self.lock.release()
                SHELTER.__exit__(None, None, None)
        if isinstance(error, apsw.Error):
            raise translate(error, self._file.path) from error

    def _give_back(self) -> None:
        """Undo as much of entering as was done: a signal can interrupt the main thread between any two steps."""
        if self.lock.acquire(blocking=False):  # no other thread has it
            self._roll_back()
            self.lock.release()
        with suppress(RuntimeError):  # it was not taken yet
            self.lock.release()

    def _roll_back(self) -> None:
        if not self._file.closed and self._db.in_transaction:
            self._db.execute("ROLLBACK")
