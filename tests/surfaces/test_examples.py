"""The examples do what the README says of them."""

import os
import subprocess
import sys
from pathlib import Path

from holdfast import Holdfast

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def python(url: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "HOLDFAST_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_runs_and_drains(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'quickstart.db'}"
    enqueued = python(url, str(QUICKSTART))
    assert [line.split(maxsplit=1)[1] for line in enqueued.splitlines()] == [
        "add queued",
        "welcome queued",
        "notify queued",
    ]

    python(url, "-m", "holdfast", "worker", f"{QUICKSTART}:app", "--until-idle")

    app = Holdfast(url)
    done = {job.kind: job for job in app.find()}
    assert {kind: (job.state, job.attempt, job.result()) for kind, job in done.items()} == {
        "add": ("succeeded", 1, 5),
        "welcome": ("succeeded", 1, "Welcome, Ada!"),
        "notify": ("succeeded", 2, "delivered at attempt 2"),
    }
    app.close()


def test_the_quickstart_run_twice_welcomes_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'quickstart.db'}"
    python(url, str(QUICKSTART))
    assert "welcome was there already" in python(url, str(QUICKSTART))
