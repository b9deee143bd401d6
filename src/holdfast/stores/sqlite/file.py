"""An open Holdfast file: one connection that writes, one that reads, each used by one thread at a time.

Every write transaction is `BEGIN IMMEDIATE`, so it never has to be upgraded; reads see one snapshot. A connection must
not cross a fork, so a forked child opens the file anew at its first use. A file that was removed or replaced since it
was opened is refused: what is written to it would be gone.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import apsw

from holdfast.domain.errors import CommitUnknown, StoreUnavailable
from holdfast.port.process import PROCESS
from holdfast.port.shelter import SHELTER
from holdfast.stores.sqlite.connection import connect, translate
from holdfast.stores.sqlite.guests import OwnConnection


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
        self._named = str(self.place)
        opened = os.stat(self._named)  # noqa: PTH116 - asked for every transaction, and a path object takes longer
        self._device, self._inode = opened.st_dev, opened.st_ino
        self._writing = Turn(self, self.writer, "BEGIN IMMEDIATE")
        self._reading = Turn(self, self.reader, "BEGIN")
        self._process = PROCESS.id

    def write(self) -> "Turn":
        """Give a write transaction: `with file.write() as db`."""
        if self._process != PROCESS.id:
            self._after_fork()
        return self._writing

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

    def check_open(self) -> None:
        """Refuse to go on once the file is closed, or another than the one that was opened."""
        if self.closed or not self.is_there():
            raise self.lost()

    def lost(self) -> StoreUnavailable:
        """Say why nobody can go on: the file is closed, or another than the one that was opened."""
        if self.closed:
            return StoreUnavailable(f"The store on {self.path} is closed.")
        remedy = "put it back, or stop all who use it and start again"
        return StoreUnavailable(
            f"{self.path} was removed or replaced while it was open, and nothing was written; {remedy}."
        )

    def is_there(self) -> bool:
        """Tell whether the file is the one that was opened."""
        try:
            found = os.stat(self._named)  # noqa: PTH116 - as above
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def _after_fork(self) -> None:
        self._inherited = (self.writer, self.reader)
        self._open(self.place)


class Turn:
    """A connection's transactions, one at a time.

    A class of its own, and made once, because it is entered for every single enqueue.
    """

    __slots__ = ("_begin", "_db", "_file", "lock")

    def __init__(self, file: OpenFile, db: apsw.Connection, begin: str) -> None:
        self.lock = threading.Lock()
        self._file = file
        self._db = db
        self._begin = begin

    def __enter__(self) -> OwnConnection:
        SHELTER.__enter__()
        self.lock.acquire()
        try:
            self._file.check_open()
            self._db.execute(self._begin)
        except BaseException as error:
            self.lock.release()
            SHELTER.__exit__(None, None, None)
            if isinstance(error, apsw.Error):
                raise translate(error, self._file.path) from error
            raise
        return self._db

    def at_once(self, statements: str, parameters: Sequence[object], *, repeatable: bool = False) -> None:
        """Run a statement that is a transaction of its own; `apsw.ConstraintError` is raised as it is.

        For what can be asked again, whatever became of it, the file is looked for afterwards: a look gives up the
        interpreter's lock, and a thread that runs steps would keep it while the disk could be at work.
        """
        if SHELTER.exposed:
            with SHELTER:
                self._at_once(statements, parameters, repeatable=repeatable)
        else:
            self._at_once(statements, parameters, repeatable=repeatable)

    def _at_once(self, statements: str, parameters: Sequence[object], *, repeatable: bool) -> None:
        with self.lock:
            if self._file.closed or not (repeatable or self._file.is_there()):
                raise self._file.lost()
            try:
                self._db.execute(statements, parameters)
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
                    raise translate(error, self._file.path, committing=True) from error
                raise
            if repeatable and not self._file.is_there():
                msg = f"{self._file.path} was removed or replaced meanwhile; what was written is gone with it."
                raise CommitUnknown(msg)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        except apsw.Error as failure:
            raise translate(failure, self._file.path, committing=True) from failure
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self.lock.release()
            SHELTER.__exit__(None, None, None)
        if isinstance(error, apsw.Error):
            raise translate(error, self._file.path) from error
