"""Opening a Holdfast file safely: version gate, durable settings, schema, and errors as sentences.

Uses `apsw`, whose wheel bundles its own SQLite: the one in many Pythons (3.7.0 to 3.51.2) can lose committed writes
when a write-ahead log is
reset. The file is never opened by any other means in this process, because closing any descriptor of it would drop
SQLite's locks.
"""

import os
import random
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import apsw

from holdfast.domain.errors import BadInput, CommitUnknown, StoreError, StoreUnavailable, StoreUnusable
from holdfast.stores import statements

APPLICATION_ID = 0x484F4C44
"""`HOLD`, written into the header of every Holdfast file."""
MIGRATIONS = (
    "0001_jobs.sql",
    "0002_entry.sql",
    "0003_workflows.sql",
    "0004_pages.sql",
    "0005_flow.sql",
    "0006_entries.sql",
    "0007_trips.sql",
    "0008_checkpoints.sql",
    "0009_census.sql",
    "0010_lines.sql",
)
SCHEMA_VERSION = len(MIGRATIONS)
SAFE_SQLITE = 3_051_003
_PATIENCE = 10.0
"""Seconds to wait for another process's write transaction."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0003, 0.003
_NETWORK = re.compile(
    r"^(nfs\d?|cifs|smb\d?|smbfs|ncpfs|afs|9p|ceph|glusterfs|lustre|gfs2?|ocfs2|fuse\.(sshfs|s3fs|gcsfuse|glusterfs|rclone))$"
)


class Patience:
    """Waits for a lock in short, uneven turns.

    SQLite's own way of waiting sleeps longer with each try, up to a tenth of a second, so that one that has waited for
    long is the least likely to be next: beside six busy workers an enqueue once took a whole second.
    """

    def __init__(self) -> None:
        self._pause = threading.Event()
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        """Wait a turn; false once it has taken too long."""
        now = time.monotonic()
        if tries == 0:
            self._since = now
        self._pause.wait(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))  # noqa: S311 - no secret hangs on it
        return now - self._since < _PATIENCE


def path_of(url: str) -> Path:
    """Read the file's path from `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    rest = url.removeprefix("sqlite://")
    if "?" in rest:
        msg = f"A SQLite URL takes no options; {rest.partition('?')[2]!r} was given."
        raise BadInput(msg)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or path in ("", ":memory:"):
        msg = f"{url!r} names no file; write sqlite:///jobs.db, or memory:// for jobs that need not last."
        raise BadInput(msg)
    try:
        found = Path(path).expanduser()
        os.fsencode(found)
    except (RuntimeError, UnicodeEncodeError):  # nobody has this home; no file has this name
        found = None
    if found is None or "\0" in path:
        msg = f"{url!r} is not a name that a file can have; name another one."
        raise BadInput(msg)
    return found


def filesystem_of(path: Path, mounts: str) -> str:
    """Find the type of the filesystem a path lies on, in the text of /proc/mounts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, mount, fs, *_ = line.split(" ")
        point = mount.replace("\\040", " ")
        if len(point) >= len(best) and path.is_relative_to(point):
            best, kind = point, fs
    return kind


def refuse_network(path: Path) -> None:
    """Refuse a filesystem whose locks SQLite cannot trust."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return
    text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    if _NETWORK.match(kind := filesystem_of(path.resolve(), text)):
        msg = f"{path} lies on a network filesystem ({kind}), where SQLite's locks do not hold; use a local disk."
        raise StoreUnusable(msg)


def connect(path: Path) -> apsw.Connection:
    """Open the file (making it, for its owner only, if it is not there) with durable settings and a schema we know."""
    if apsw.SQLITE_VERSION_NUMBER < SAFE_SQLITE:
        msg = f"SQLite {apsw.sqlite_lib_version()} can lose committed writes; install apsw 3.51.3 or later."
        raise StoreUnusable(msg)
    with _making(path):
        refuse_network(path)
    create(path)
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return _open(path)
        except apsw.BusyError as error:
            # Another process is making the file at this moment; SQLite does not wait for that by itself.
            if time.monotonic() > end:
                raise translate(error, path) from error
            threading.Event().wait(_LONGEST_PAUSE)
        except apsw.Error as error:
            raise translate(error, path) from error


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_handler(Patience())
        _recognise(connection, path)
        if connection.pragma("journal_mode") != "wal":
            connection.pragma("journal_mode", "wal")
        for name, value in (
            ("synchronous", "FULL"),
            ("mmap_size", 0),
            ("cache_size", -16384),
            ("journal_size_limit", 67_108_864),
        ):
            connection.pragma(name, value)
        # Else SQLite compiles a statement anew whenever other values are bound to it, which takes longer than most do.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        migrate(connection)
    except BaseException:
        connection.close(True)
        raise
    return connection


def migrate(connection: apsw.Connection) -> int:
    """Apply the migrations that are still missing, each file once, whichever process comes first; give their number."""
    if connection.pragma("user_version") == SCHEMA_VERSION:
        return 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        have = int(connection.pragma("user_version"))
        for file in MIGRATIONS[have:]:
            connection.execute(statements.script("holdfast.stores.sqlite.migrations", file))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", SCHEMA_VERSION)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # not after a commit, nor where SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise
    return SCHEMA_VERSION - have


def copy(source: apsw.Connection, path: Path) -> None:
    """Copy a database, page by page, into an empty file."""
    target = apsw.Connection(str(path))
    try:
        with target.backup("main", source, "main") as pages:
            while not pages.done:
                pages.step(1000)
    finally:
        target.close()


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, if there is none yet."""
    with _making(path):
        is_folder = path.is_dir()
    if is_folder:
        msg = f"{path} is a folder; a store URL names a file in it."
        raise StoreUnusable(msg)
    if not path.parent.is_dir():
        msg = f"The folder {path.parent} does not exist; make it first, or name a file elsewhere."
        raise StoreUnusable(msg)
    with _making(path), suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))


@contextmanager
def _making(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be made: {error.strerror}."
        raise StoreUnavailable(msg) from error


def _recognise(connection: apsw.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # one look: another process may be making the file at this moment
    version = int(connection.pragma("user_version"))
    ours = connection.pragma("application_id") == APPLICATION_ID
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    connection.execute("COMMIT")
    if not ours and (version or tables):
        msg = f"{path} is a SQLite database, but not a Holdfast one; name another file."
        raise StoreUnusable(msg)
    if version > SCHEMA_VERSION:
        versions = f"schema {version}, and this one knows {SCHEMA_VERSION}"
        msg = f"{path} was written by a newer Holdfast ({versions}); upgrade Holdfast to use it."
        raise StoreUnusable(msg)


@contextmanager
def sentences(path: Path, *, committing: bool = False) -> Iterator[None]:
    """Turn SQLite's errors into ours. While committing, an I/O error leaves the outcome unknown."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path, committing=committing) from error


def translate(error: apsw.Error, path: Path, *, committing: bool = False) -> StoreError:
    """Say in one sentence what SQLite's error means for the user."""
    match error:
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreUnusable(
                f"{path} is not a Holdfast database, or it is damaged; name another file or restore a backup."
            )
        case apsw.FullError():
            return StoreUnavailable(f"The disk that holds {path} is full; nothing was written.")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(f"{path} cannot be written: the file or its folder is read-only.")
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path} cannot be opened; check that the file and its folder can be read and written."
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"{path} stayed locked by another process for {_PATIENCE:g} s; nothing was written."
            )
        case apsw.IOError() if committing:
            return CommitUnknown(f"The disk failed while committing to {path}; the change is either whole or absent.")
        case apsw.IOError():
            return StoreUnavailable(f"The disk failed while using {path}; nothing was written.")
        case _:
            return StoreError(f"SQLite refused: {error}.")
