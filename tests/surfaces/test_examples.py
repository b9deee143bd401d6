"""The examples do what is said of them: each runs as a program of its own, ends by itself and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, Job

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart.py"


def python(*arguments: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(example: str, **environment: str) -> str:
    return python(str(EXAMPLES / f"{example}.py"), **environment)


def told_of(name: str, output: str) -> list[str]:
    """Give what an example told of one thing, in order."""
    return [line.removeprefix(f"{name}: ") for line in output.splitlines() if line.startswith(f"{name}: ")]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty store."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_the_quickstart_runs_and_drains(url: str) -> None:
    enqueued = run("quickstart", HOLDFAST_URL=url)
    assert [line.split(maxsplit=1)[1] for line in enqueued.splitlines()] == [
        "add queued",
        "welcome queued",
        "notify queued",
    ]

    python("-m", "holdfast", "worker", f"{QUICKSTART}:app", "--until-idle", HOLDFAST_URL=url)

    app = Holdfast(url)
    done = {job.kind: job for job in app.find()}
    assert {kind: (job.state, job.attempt, job.result()) for kind, job in done.items()} == {
        "add": ("succeeded", 1, 5),
        "welcome": ("succeeded", 1, "Welcome, Ada!"),
        "notify": ("succeeded", 2, "delivered at attempt 2"),
    }
    app.close()


def test_the_quickstart_run_twice_welcomes_once(url: str) -> None:
    run("quickstart", HOLDFAST_URL=url)
    assert "welcome was there already" in run("quickstart", HOLDFAST_URL=url)


@pytest.mark.parametrize("example", ["document_pipeline", "daily_summaries", "order_with_undo"])
def test_an_example_leaves_nothing_behind(example: str, tmp_path: Path) -> None:
    assert run(example, TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_document_is_read_again_but_not_fetched_again_and_another_is_rejected(url: str) -> None:
    output = run("document_pipeline", HOLDFAST_URL=url)
    assert told_of("letter.txt", output) == [
        "fetched",
        "read",
        "indexed",
        "succeeded, 4 words; attempts: 1, steps: 3 of 3",
    ]
    assert told_of("minutes.txt", output) == [
        "fetched",
        "the reader is busy; again in a second",
        "read",
        "indexed",
        "succeeded, 5 words; attempts: 2, steps: 3 of 3",
    ]
    assert told_of("photo.raw", output) == [
        "fetched",
        "dead, rejected: unsupported_format; attempts: 1, steps: 1 of 3",
    ]


def test_a_summary_that_is_asked_for_twice_is_made_once(url: str) -> None:
    output = run("daily_summaries", HOLDFAST_URL=url)
    assert told_of("asked for yesterday's", output) == ["3 enqueued, 0 there already"]
    assert told_of("asked for them again", output) == ["0 enqueued, 3 there already"]
    assert [told_of(user, output) for user in ("ada", "grace", "alan")] == [
        ["sent"],
        ["the mailbox does not answer; tried again later", "sent"],
        ["sent"],
    ]
    assert [(job.state, job.attempt) for job in summaries(url)] == [
        ("succeeded", 1),  # ada
        ("queued", 0),
        ("succeeded", 1),  # alan
        ("queued", 0),
        ("succeeded", 2),  # grace
        ("queued", 0),
    ]


def test_summaries_asked_for_by_another_program_are_made_once(url: str) -> None:
    output = "".join(run("daily_summaries", HOLDFAST_URL=url) for _ in range(2))
    made = summaries(url)
    assert len({job.key for job in made}) == len(made)
    assert output.count(": sent\n") == sum(job.state == "succeeded" for job in made)


def summaries(url: str) -> list[Job[str]]:
    """Read all summaries, by user and day."""
    app = Holdfast(url)
    found = app.find(kind="daily_summary")
    app.close()
    return sorted(found, key=lambda job: job.key or "")


def test_an_order_that_cannot_be_shipped_is_refunded(url: str) -> None:
    output = run("order_with_undo", HOLDFAST_URL=url)
    at_rest = "It waits for the signal 'approval', for another 3.0 days at most."
    assert told_of("books", output) == [
        "charged 42.00",
        at_rest,
        "picked the novel",
        "picked the atlas",
        "shipped novel, atlas",
        "succeeded after charge, cool-off, approval, gather, ship",
    ]
    assert told_of("music", output) == [
        "charged 9900.00",
        at_rest,
        "picked the score",
        "picked the piano",
        "nobody carries a piano",
        "refunded 9900.00",
        "dead after charge, cool-off, approval, gather, undo:charge",
    ]
