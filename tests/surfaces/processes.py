"""Real processes for tests: an application on disk, workers that run it, and waiting that watches but never sleeps."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast import Holdfast

T = TypeVar("T")

APPLICATION = '''
import os
import threading
from pathlib import Path

from holdfast import Holdfast, Permanent

HERE = Path(__file__).parent
app = Holdfast(f"sqlite:///{HERE}/jobs.db", grace=GRACE)


def tell(line: str) -> None:
    with open(HERE / "ledger", "a", encoding="utf-8") as ledger:
        ledger.write(line + "\\n")


@app.job
def add(a: int, b: int) -> int:
    return a + b


@app.job
def hold(name: str) -> str:
    """Run until a file of this name is there."""
    tell(f"{name} {os.getpid()}")
    while not (HERE / name).exists():
        threading.Event().wait(0.01)
    return name


@app.job(run_in="process")
def hold_apart(name: str) -> str:
    """The same in a process of its own; tells that process and its parent."""
    tell(f"{name} {os.getppid()} {os.getpid()}")
    while not (HERE / name).exists():
        threading.Event().wait(0.01)
    return name


@app.job(queue="mail")
def reject(who: str) -> None:
    raise Permanent("no such [bold]user[/bold]", code="nobody")


@app.job(queue="flaky")
def die() -> None:
    os._exit(9)
'''


def write_application(folder: Path, *, grace: float = 5) -> str:
    """Write the application into a folder; give the target that names it."""
    (folder / "shop.py").write_text(APPLICATION.replace("GRACE", str(grace)), encoding="utf-8")
    return f"{folder}/shop.py:app"


def client(folder: Path) -> Holdfast:
    """Open the application's store from the test; its kinds are known here, but not what they do."""
    app = Holdfast(f"sqlite:///{folder}/jobs.db")

    @app.job
    def add(a: int, b: int) -> int:
        raise NotImplementedError

    @app.job
    def hold(name: str) -> str:
        raise NotImplementedError

    @app.job
    def hold_apart(name: str) -> str:
        raise NotImplementedError

    @app.job(queue="mail")
    def reject(who: str) -> None:
        raise NotImplementedError

    @app.job(queue="flaky")
    def die() -> None:
        raise NotImplementedError

    return app


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


def run(*words: str, cwd: Path, timeout: float = 20, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command line to its end."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextmanager
def started(*words: str, cwd: Path, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command line beside the test, writing to files `out` and `err`; the test's end is its end at the latest."""
    with (cwd / "out").open("w") as out, (cwd / "err").open("w") as err:
        process = subprocess.Popen(command(*words), cwd=cwd, env=_environment(environment), stdout=out, stderr=err)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | extra


def until(look: Callable[[], T], *, within: float = 10.0) -> T:
    """Look until there is something to see, and give it."""
    end = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < end, f"nothing was seen within {within} s"
        threading.Event().wait(0.01)
    return seen


def ledger(folder: Path) -> list[list[str]]:
    """Read what handlers told: a name and process ids to a line."""
    path = folder / "ledger"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def told(folder: Path, number: int = 1) -> Callable[[], list[list[str]]]:
    """Look whether handlers have begun this often."""

    def look() -> list[list[str]]:
        lines = ledger(folder)
        return lines if len(lines) >= number else []

    return look


def output(folder: Path, name: str = "out") -> str:
    return (folder / name).read_text()


def alive(pid: int) -> bool:
    """Tell whether a process is there and not just waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def parsed(text: str) -> Any:
    return json.loads(text)
