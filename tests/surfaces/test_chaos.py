"""`holdfast chaos` on a store of any kind that processes can share: faults happen at work, every promise is proved, and
nothing is left behind.
"""

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.surfaces.processes import command, output, parsed, run, started, until
from tests.surfaces.test_bench import schemas

SHORT = ("chaos", "--jobs", "60", "--workers", "2", "--kills", "1", "--freezes", "1", "--seed", "7")
PROMISES = [
    "S1", "S2", "S6", "S8", "S9", "S14", "S15", "S17", "S18", "S19", "S20", "S21", "S22", "S23", "S26", "L2", "S36",
]  # fmt: skip


def workers_in(folder: Path) -> list[int]:
    """Find the processes whose command line names a file in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"holdfast.chaos.worker" in line and os.fsencode(folder) in line:
            found.append(int(process.name))
    return found


def is_frozen(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def assert_proved(found: dict[str, Any]) -> None:
    assert found["verdict"] == "holds", found
    assert [each["promise"] for each in found["promises"] if each["holds"]] == PROMISES
    counts = found["counts"]
    assert (counts["jobs"], counts["kills"], counts["freezes"]) == (60, 1, 1)
    assert sorted(fault["fault"] for fault in found["faults"]) == ["freeze", "kill"]
    assert all(fault["jobs"] for fault in found["faults"])
    assert counts["taken_over"] >= 2
    assert counts["run_again"] >= 1
    assert counts["refused"] + counts["let_go"] >= 1


def test_a_file_is_put_to_the_test_beside_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database, and nobody looks")
    done = run(
        *SHORT, "--json", "--url", f"sqlite:///{tmp_path}/jobs.db", cwd=tmp_path, timeout=90, TMPDIR=str(tmp_path)
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert_proved(parsed(done.stdout))
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"]
    assert (tmp_path / "jobs.db").read_bytes() == b"not a database, and nobody looks"
    assert workers_in(tmp_path) == []


def test_a_database_is_put_to_the_test_beside_the_users_own_jobs(tmp_path: Path, postgres_url: str) -> None:
    with closing(Holdfast(postgres_url)) as app:
        app.job(name="add")(lambda: None)
        job = app.enqueue("add", {})
        before = schemas(postgres_url)
        done = run(*SHORT, "--json", "--url", postgres_url, cwd=tmp_path, timeout=90, TMPDIR=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert schemas(postgres_url) == before
        assert (app.get(job.id).state, app.counts().total) == ("queued", 1)
    assert_proved(parsed(done.stdout))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_does_not_finish_in_time_ends_with_1_and_says_what_is_missing(tmp_path: Path) -> None:
    code = "from holdfast.chaos import run; run.deadline = lambda orders: 2; from holdfast.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *SHORT],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert "gave up:" in done.stdout
    assert re.search(r"^✗  S1 ", done.stdout, re.MULTILINE)
    assert "The same plan again: holdfast chaos --seed 7 --jobs 60 --workers 2 --kills 1 --freezes 1" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, postgres_url: str, number: signal.Signals) -> None:
    (folder := tmp_path / "temporary").mkdir()
    before = schemas(postgres_url)
    with started(*SHORT, "--url", postgres_url, cwd=tmp_path, TMPDIR=str(folder)) as process:
        until(lambda: schemas(postgres_url) - before)
        until(lambda: workers_in(folder))
        process.send_signal(number)
        assert process.wait(20) == 130
    assert schemas(postgres_url) == before
    assert (list(folder.iterdir()), workers_in(folder)) == ([], [])
    assert "Traceback" not in output(tmp_path, "err")


def test_workers_go_when_the_run_is_killed_even_if_they_lie_frozen(tmp_path: Path) -> None:
    (folder := tmp_path / "temporary").mkdir()
    words = ("chaos", "--jobs", "60", "--kills", "0", "--freezes", "1")
    with subprocess.Popen(
        command(*words), stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(folder)}
    ) as killed:
        until(lambda: any(map(is_frozen, workers_in(folder))), within=20)
        workers = [os.pidfd_open(pid) for pid in workers_in(folder)]
        killed.kill()
    left = set(workers)
    while left:
        gone, _, _ = select.select(left, [], [], 20)
        assert gone, "a worker outlived the run"
        left -= set(gone)
    for worker in workers:
        os.close(worker)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--url", "memory://"), "memory:// lives inside one process"),
        (("--url", "kafka://me:hunter2@broker"), "is no store that a chaos run can be made on"),
        (("--url", "dynamodb://jobs"), "dynamodb:// is a store that a chaos run cannot be made on"),
        (("--url", "jobs.db"), "is no store that a chaos run can be made on"),
        (("--jobs", "-1"), "-1 is not in the range"),
        (("--kills", "-1"), "-1 is not in the range"),
        (("--freezes", "-1"), "-1 is not in the range"),
        (("--workers", "1"), "1 is not in the range"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--jobs", "many"), "'many' is not a valid integer range"),
        (("--jobs", "50"), "8 faults at work need at least 80 jobs, not 50"),
        (("--jobs", "5", "--kills", "0", "--freezes", "0"), "need at least 20 jobs"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_wrong_use_is_told_in_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    told = run("chaos", *words, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1
    assert sentence in told.stderr
    assert "hunter2" not in told.stderr


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://nobody:hunter2@127.0.0.1:1/none", "cannot be reached"),
        ("sqlite:////nowhere/at/all/jobs.db", "Nothing can be written beside"),
    ],
    ids=["down", "no folder"],
)
def test_a_store_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path, url: str, sentence: str) -> None:
    told = run("chaos", "--url", url, cwd=tmp_path)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert sentence in told.stderr
    assert "hunter2" not in told.stderr
