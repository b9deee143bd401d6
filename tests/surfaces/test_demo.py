"""The demo as a newcomer meets it: it ends by itself, proves its promises, and leaves nothing behind."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from holdfast.demo import FEWEST_JOBS, MOST_JOBS, plan, run
from holdfast.demo.proof import CHECKS
from holdfast.domain.errors import BadInput
from holdfast.domain.job import State

JOBS = 120
SECONDS = 40
RUN = f"from holdfast.demo import run; raise SystemExit(run({JOBS}, live=False))"


def command(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "HOLDFAST_DEMO_SEED": "7"}


def workers_in(folder: Path) -> list[int]:
    """Find the processes whose command line names a file in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"holdfast.demo.worker" in line and os.fsencode(folder) in line:
            found.append(int(process.name))
    return found


def begin(folder: Path) -> subprocess.Popen[str]:
    """Start the demo and let it get to work."""
    demo = subprocess.Popen(command(RUN), env=environment(folder), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    while "two servers" not in demo.stdout.readline():
        assert demo.poll() is None, "the demo ended before it began"
    return demo


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, float]:
    folder = tmp_path_factory.mktemp("demo")
    began = time.monotonic()
    done = subprocess.run(
        command(RUN), env=environment(folder), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout, folder, time.monotonic() - began


def test_it_proves_every_promise_line_by_line(shown: tuple[str, Path, float]) -> None:
    text, _, _ = shown
    assert f"{len(CHECKS)} of {len(CHECKS)} promises kept" in text
    assert re.findall(r"^✓  ([SL]\d+) ", text, re.MULTILINE) == [
        "S1", "S2", "S6", "S8", "S9", "S15", "S17", "S18", "S19", "S26", "L2", "L5", "S36",
    ]  # fmt: skip
    assert "✗" not in text


def test_it_tells_what_happens_while_it_happens(shown: tuple[str, Path, float]) -> None:
    text, _, _ = shown
    for happened in (
        "killed with -9",
        "poison document kills worker",
        "expired: ",
        "taken back",
        "dead letter: webhook:",
    ):
        assert happened in text


def test_every_line_fits_a_terminal_of_80_columns(shown: tuple[str, Path, float]) -> None:
    events_and_table = shown[0].partition("No process")[0]
    assert max(map(len, events_and_table.splitlines())) <= 80


def test_it_ends_by_itself_in_time(shown: tuple[str, Path, float]) -> None:
    assert shown[2] < SECONDS


def test_it_leaves_no_file_and_no_process_behind(shown: tuple[str, Path, float]) -> None:
    assert list(shown[1].iterdir()) == []
    assert workers_in(shown[1]) == []


def test_a_run_that_does_not_finish_exits_with_1_and_says_what_is_missing(tmp_path: Path) -> None:
    code = f"from holdfast.demo import play; play.DEADLINE = 1.0; {RUN}"
    done = subprocess.run(
        command(code), env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "gave up:" in done.stdout
    assert re.search(r"^✗  S1 ", done.stdout, re.MULTILINE)
    assert "HOLDFAST_DEMO_SEED=7 HOLDFAST_DEMO_JOBS=120 make demo" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_hangs_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    hang = "play.Demo._over = lambda self: __import__('threading').Event().wait()"
    code = f"from holdfast.demo import ending, play; ending.LAST_RESORT = 2.0; {hang}; {RUN}"
    done = subprocess.run(
        command(code), env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert "did not end within 2 seconds" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_a_demo_that_is_stopped_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    with begin(tmp_path) as demo:
        demo.send_signal(number)
        assert demo.wait(SECONDS) == 130
    assert list(tmp_path.iterdir()) == []
    assert workers_in(tmp_path) == []


def test_workers_go_when_the_demo_is_killed(tmp_path: Path) -> None:
    with begin(tmp_path) as demo:
        workers = [os.pidfd_open(pid) for pid in workers_in(tmp_path)]
        assert workers
        demo.kill()
    left = set(workers)
    while left:
        gone, _, _ = select.select(left, [], [], SECONDS)
        assert gone, "a worker outlived the demo"
        left -= set(gone)
    for worker in workers:
        os.close(worker)


@pytest.mark.parametrize("jobs", [0, FEWEST_JOBS - 1, MOST_JOBS + 1])
def test_a_number_of_jobs_that_makes_no_demo_is_refused(jobs: int) -> None:
    with pytest.raises(BadInput, match="The demo takes 60 to 2,000 jobs"):
        run(jobs)


def test_an_environment_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEMO_JOBS", "many")
    with pytest.raises(BadInput, match="HOLDFAST_DEMO_JOBS is a whole number, not 'many'"):
        run()


@pytest.mark.parametrize("jobs", [FEWEST_JOBS, JOBS, 400, MOST_JOBS])
def test_the_plan_comes_to_exactly_as_many_jobs_as_asked_for(jobs: int) -> None:
    fates = plan.make(jobs, 7, "2026-11-16").fates()
    assert len(fates) == jobs
    assert {fate.cause for fate in fates.values() if fate.state is State.DEAD} == {"exhausted", "rejected", "crashed"}


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan.make(JOBS, 7, "2026-11-16") == plan.make(JOBS, 7, "2026-11-16")
    assert plan.make(JOBS, 7, "2026-11-16") != plan.make(JOBS, 8, "2026-11-16")


def test_it_serves_its_dashboard_while_it_runs(tmp_path: Path) -> None:
    demo = subprocess.Popen(command(RUN), env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    try:
        address = ""
        while not address:
            line = demo.stdout.readline()
            assert line, "the demo ended before it gave an address"
            address = "".join(re.findall(r"http://127\.0\.0\.1:\d+", line))
        assert "Overview" in httpx.get(address).text
        word = {"word": "", "queue": "webhooks", "verb": "pause"}
        assert httpx.post(f"{address}/queues", data=word, headers={"Origin": address}).status_code == 403
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=SECONDS)
