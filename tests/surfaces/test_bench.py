"""`holdfast bench` measures a store of any kind, says so in JSON, and leaves nothing of itself behind."""

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.stores.postgres import address
from tests.surfaces.processes import output, parsed, run, started, until

TINY = ("bench", "--short", "--jobs", "100", "--json")


def schemas(url: str) -> set[str]:
    with psycopg.connect(address.parse(url).conninfo) as db:
        return {name for (name,) in db.execute("SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%'")}


def measured(url: str, cwd: Path, *words: str) -> dict[str, Any]:
    """Run a tiny benchmark; give what it says."""
    done = run(*TINY, *words, "--url", url, cwd=cwd, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "round 1 of 1" in done.stderr
    found: dict[str, Any] = parsed(done.stdout)
    return found


def assert_shape(found: dict[str, Any], processes: set[str]) -> None:
    assert found["sizes"]["jobs"] == 100
    assert found["settings"]["cores"] >= 1
    rates = found["rates"]
    assert all(rate > 0 for rate in rates["enqueue"].values())
    for name in ("drain", "drain_from_start"):
        assert set(rates[name]) == processes
        assert all(rate > 0 for rate in rates[name].values())
    assert all(rates["drain"][n] >= rates["drain_from_start"][n] for n in processes)
    assert all(best["rate"] > 0 and best["batch"] in (100, 500, 1_000) for best in rates["own_floor"].values())
    assert all(spent > 0 for spent in found["cpu_us_per_job"].values())
    assert set(found["ratios"]["drain_to_own_floor"]) == processes
    assert {"threads_to_single", "tasks_to_single"} < set(found["ratios"])
    assert all({"what", "value", "goal", "holds"} == set(goal) for goal in found["goals"])


def test_a_file_is_measured_beside_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database, and nobody looks")
    found = measured(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--processes", "2")
    assert found["engine"] == "sqlite"
    assert_shape(found, {"2"})
    latency = found["latency_ms"]
    assert latency["p50"] <= latency["p95"] <= latency["p99"]
    assert (found["rates"]["floor"], found["wal_per_job"]) == ({"2": None}, {"2": None})
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"]
    assert (tmp_path / "jobs.db").read_bytes() == b"not a database, and nobody looks"


def test_memory_is_measured_within_one_process(tmp_path: Path) -> None:
    found = measured("memory://", tmp_path)
    assert_shape(found, {"1"})
    assert found["latency_ms"] is None


def test_a_database_is_measured_beside_the_users_own_jobs(tmp_path: Path, postgres_url: str) -> None:
    with closing(Holdfast(postgres_url)) as app:
        app.job(name="add")(lambda: None)
        job = app.enqueue("add", {})
        before = schemas(postgres_url)
        found = measured(postgres_url, tmp_path, "--processes", "1")
        assert schemas(postgres_url) == before
        assert (app.get(job.id).state, app.counts().total) == ("queued", 1)
    assert found["engine"] == "postgresql"
    assert_shape(found, {"1"})
    assert {"server_version", "fsync", "synchronous_commit", "shared_buffers"} < set(found["settings"])
    assert found["rates"]["floor"]["1"]["rate"] > 0
    assert all(rate > 0 for rate in found["rates"]["enqueue_floor"].values())
    assert all(ratio > 0 for ratio in found["ratios"]["drain_to_floor"].values())
    assert found["wal_per_job"]["1"] > 0
    assert found["commits_per_job"]["1"] > 0
    assert found["latency_ms"]["p50"] > 0 or found["latency_with_call_ms"]["p50"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, postgres_url: str, number: signal.Signals) -> None:
    before = schemas(postgres_url)
    with started(*TINY, "--url", postgres_url, cwd=tmp_path) as process:
        until(lambda: "drain of 100 jobs" in output(tmp_path, "err"))
        until(lambda: schemas(postgres_url) - before)
        process.send_signal(number)
        assert process.wait(20) == 130
    assert schemas(postgres_url) == before
    assert output(tmp_path) == ""


@pytest.mark.parametrize(
    ("url", "code", "sentence"),
    [
        ("kafka://me:hunter2@broker", 2, "is not a store URL that Holdfast knows"),
        ("postgresql://nobody:hunter2@127.0.0.1:1/none", 1, "cannot be reached"),
        ("sqlite:////nowhere/at/all/jobs.db", 1, "Nothing can be written beside"),
    ],
    ids=["unknown", "down", "no folder"],
)
def test_a_store_that_cannot_be_measured_is_told_in_one_sentence(
    tmp_path: Path, url: str, code: int, sentence: str
) -> None:
    told = run(*TINY, "--url", url, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (code, "")
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1
    assert sentence in told.stderr
    assert "hunter2" not in told.stderr


@pytest.mark.parametrize("words", ["0", "1,,2", "two", "1,65"])
def test_numbers_of_processes_are_checked(tmp_path: Path, words: str) -> None:
    told = run("bench", "--processes", words, cwd=tmp_path)
    assert told.returncode == 2
    assert "is not a list of numbers" in told.stderr
