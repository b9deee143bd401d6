"""`holdfast dev`: a worker and a server that start again whenever the application's code changes.

The parent never imports the application: it looks at the times of its files, and runs both in a child.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.server import DEFAULT_PORT, told
from holdfast.cli.store import masked
from holdfast.cli.target import folder_of, load, parse
from holdfast.cli.worker import Start, Work, set_up_logging, work_options
from holdfast.domain.errors import HoldfastError
from holdfast.runtime.signals import stopping_by_signal
from holdfast.runtime.supervisor import follow_parent, parent_id
from holdfast.server import serve

LOOK = 0.5
"""Seconds between two looks at the files."""
_DRAIN, _RELEASE = 1.0, 3.0
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Times = dict[str, int]


@click.command("dev")
@work_options
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port of the server; 0 takes a free one.",
)
@click.option("--server/--no-server", "served", default=True, show_default=True, help="Whether to run the server too.")
@click.option("--worker-id", hidden=True, help="The name to work under.")
@click.option("--parent-fd", type=int, hidden=True, help="A pipe that closes when the watching process is gone.")
def dev(port: int, worker_id: str | None, parent_fd: int | None, *, served: bool, **work: Any) -> None:
    """Run a worker and the server; both start again when the code changes.

    MODULE:APP names the application, as for `holdfast worker`; every .py file in its folder is watched. The server is
    for whoever is on this machine, and asks for no tokens.
    """
    asked = Work(**work)
    if parent_fd is not None:
        _run(asked, port if served else None, worker_id, parent_fd)
        return
    folder = folder_of(parse(asked.target))
    click.echo(f"watching {folder}; stop with Ctrl-C")
    reader, writer = os.pipe()
    stopped = threading.Event()
    with stopping_by_signal(stopped.set):
        while not stopped.is_set():
            seen = times(folder)
            child = subprocess.Popen(
                _command(asked, port if served else None, reader),
                stdin=subprocess.DEVNULL,
                pass_fds=[reader],
                start_new_session=True,
            )
            try:
                _wait_for_change(child, folder, seen, stopped)
            finally:
                _end(child)
    os.close(writer)
    os.close(reader)


def _command(asked: Work, port: int | None, reader: int) -> list[str]:
    """Give the command line of the child: this command, told that it is one."""
    python, flag, package, _, *rest = asked.command(f"{parent_id()}:dev-{secrets.token_hex(3)}", reader)
    return [python, flag, package, "dev", *rest, *(["--no-server"] if port is None else ["--port", str(port)])]


def _run(asked: Work, port: int | None, worker_id: str | None, parent_fd: int) -> None:
    """Work, and serve, until told to stop."""
    app = load(parse(asked.target))
    set_up_logging(asked.log_level, app, as_json=asked.log_json)
    app.instrument(metrics=True)
    start = Start()
    follow_parent(parent_fd, start.stop)
    with stopping_by_signal(start.stop):
        service = start.open(
            lambda: app.service(queues=asked.queues, concurrency=asked.concurrency, worker_id=worker_id)
        )
        start.hand_over(service.stop)
        click.echo(f"worker {service.id} serves {masked(app.url)}")
        with nullcontext() if port is None else _serving(app, port):
            service.run()


@contextmanager
def _serving(app: Holdfast, port: int) -> Iterator[None]:
    """Serve as long as something else goes on; a machine without the server's packages is told, and works on."""
    try:
        serving = serve(app, port=port, upkeep=False)
    except HoldfastError as error:
        click.echo(f"There is no server: {error}", err=True)
        yield
        return
    told(serving, app)
    try:
        yield
    finally:
        serving.stop()
        serving.join(_RELEASE)


def times(folder: Path) -> Times:
    """Give the time of change of every .py file under a folder, leaving out what is nobody's own code."""
    found: Times = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not Path(place, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)  # noqa: PTH118 - thousands of them, twice a second
                try:
                    found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - the same
                except OSError:
                    continue
    return found


def _wait_for_change(child: "subprocess.Popen[bytes]", folder: Path, seen: Times, stopped: threading.Event) -> None:
    told = False
    while not stopped.wait(LOOK):
        now = times(folder)
        if now != seen:
            changed = sorted(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
            others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            click.echo(f"{Path(changed[0]).name}{others} changed; starting again")
            return
        if not told and child.poll() is not None:
            told = True
            click.echo(f"It ended (exit code {child.returncode}); it starts again at the next change.", err=True)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the child: let it drain for a moment, then give back, then kill."""
    for number, patience in ((signal.SIGTERM, _DRAIN), (signal.SIGTERM, _RELEASE), (signal.SIGKILL, None)):
        if child.poll() is not None:
            return
        child.send_signal(number)
        end = None if patience is None else time.monotonic() + patience
        try:
            child.wait(None if end is None else end - time.monotonic())
        except subprocess.TimeoutExpired:
            continue
