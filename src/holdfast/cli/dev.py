"""`holdfast dev`: a worker that starts again whenever the application's code changes.

The parent never imports the application: it looks at the times of its files, and runs the worker as a child.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from holdfast.cli.target import folder_of, parse
from holdfast.cli.worker import Work, work_options
from holdfast.runtime.supervisor import parent_id

LOOK = 0.5
"""Seconds between two looks at the files."""
_DRAIN, _RELEASE = 1.0, 3.0
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Times = dict[str, int]


@click.command("dev")
@work_options
def dev(**work: Any) -> None:
    """Run a worker that starts again when the code changes.

    MODULE:APP names the application, as for `holdfast worker`; every .py file in its folder is watched.
    """
    asked = Work(**work)
    folder = folder_of(parse(asked.target))
    click.echo(f"watching {folder}; stop with Ctrl-C")
    reader, writer = os.pipe()
    with _stop_signals() as stopped:
        while not stopped.is_set():
            seen = times(folder)
            child = subprocess.Popen(
                asked.command(f"{parent_id()}:dev-{secrets.token_hex(3)}", reader),
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
            click.echo(
                f"The worker ended (exit code {child.returncode}); it starts again at the next change.", err=True
            )


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


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    stopped = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stopped.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
