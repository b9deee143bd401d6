"""`holdfast schedules`, for people and for programs, and what it says when it is used wrongly."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.main import program
from holdfast.client.inserter import Inserter
from holdfast.port.clock import SystemClock
from holdfast.port.store import ScheduleRecord
from holdfast.runtime.firing import fire
from tests.surfaces.processes import client, run, write_application


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application on disk, whose store is the one that the environment chooses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    return write_application(tmp_path)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """The same store, which is there."""
    with closing(client(tmp_path)) as opened:
        opened.counts()
        yield opened


def ask(*words: str) -> Result:
    return CliRunner().invoke(program, ("schedules", *words))


def done(*words: str) -> str:
    result = ask(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def answered(*words: str) -> Any:
    return json.loads(done(*words, "--json"))


def refused(code: int, *words: str) -> str:
    """Ask for something that cannot be done; give the one sentence that says so."""
    told = ask(*words)
    assert (told.exit_code, told.stdout) == (code, ""), told.output
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1, told.stderr
    assert told.stderr.rstrip().endswith((".", "?")), told.stderr
    return told.stderr


def add(target: str, name: str = "sums", *words: str) -> str:
    return done("add", target, name, "add", "--payload", '{"a": 1, "b": 2}', *(words or ("--cron", "0 3 * * *")))


def test_a_schedule_is_added_and_listed(app: Holdfast, target: str) -> None:
    told = add(target, "sums", "--cron", "0 3 * * *", "--tz", "Europe/Prague", "--catch-up", "once")
    assert told.startswith("The schedule 'sums' is added and fires next at 20")
    add(target, "often", "--every", "90", "--queue", "mail")
    heading, often, sums = done("list").splitlines()
    assert heading.split() == ["SCHEDULE", "KIND", "FIRES", "CATCH-UP", "NEXT", "LAST"]
    assert "every 90 s" in often
    assert "0 3 * * * (Europe/Prague)" in sums
    listed = answered("list")
    assert [each["name"] for each in listed] == ["often", "sums"]
    next_at = datetime.fromisoformat(listed[1].pop("next_at"))
    assert next_at - datetime.now(UTC) < timedelta(days=1, hours=1)
    assert listed[1] == {
        "name": "sums",
        "kind": "add",
        "cron": "0 3 * * *",
        "every": None,
        "tz": "Europe/Prague",
        "catch_up": "once",
        "last_at": None,
        "paused": False,
    }
    assert (listed[0]["every"], listed[0]["cron"]) == (90.0, None)


def test_an_added_schedule_fires_jobs_that_the_application_runs(app: Holdfast, target: str, tmp_path: Path) -> None:
    added = json.loads(add(target, "often", "--every", "60", "--queue", "sums", "--priority", "7", "--json"))
    due = datetime.fromisoformat(added["next_at"])
    insert = Inserter(app.store, SystemClock()).insert
    assert fire(app.store, insert, round(due.timestamp() * 1_000_000)) == 1
    (job,) = app.find()
    assert (job.kind, job.queue, job.record.priority, job.record.trigger) == ("add", "sums", 7, "schedule")
    assert answered("list")[0]["last_at"] == due.isoformat()


def test_a_schedule_is_run_now(app: Holdfast, target: str, tmp_path: Path) -> None:
    add(target)
    before = answered("list")
    told = done("run", "sums")
    assert told.endswith(" is queued in the queue 'default'.\n")
    again = answered("run", "sums")
    assert (again["kind"], again["queue"], again["state"]) == ("add", "default", "queued")
    assert {str(job.id) for job in app.find()} == {told.split()[0], again["id"]}
    assert answered("list") == before
    assert run("worker", target, "--until-idle", cwd=tmp_path).returncode == 0
    assert [job.result() for job in app.find()] == [3, 3]


def test_a_schedule_is_paused_and_resumed(app: Holdfast, target: str) -> None:
    add(target)
    assert done("pause", "sums") == "The schedule 'sums' is paused.\n"
    assert answered("pause", "sums")["paused"] is True
    assert "paused" in done("list")
    assert done("resume", "sums").startswith("The schedule 'sums' fires next at 20")
    assert answered("resume", "sums")["paused"] is False


def test_a_schedule_is_removed(app: Holdfast, target: str) -> None:
    add(target)
    add(target, "more")
    assert done("remove", "sums") == "The schedule 'sums' is removed.\n"
    assert answered("remove", "more") == {"name": "more", "removed": True}
    assert done("list") == "There are no schedules: none was added, and no worker has stored one.\n"
    assert answered("list") == []


@pytest.mark.parametrize("call", ["pause", "resume", "run", "remove"])
def test_a_schedule_that_is_not_there_is_missed_by_name(app: Holdfast, call: str) -> None:
    assert "There is no schedule 'gone'" in refused(1, call, "gone")


WRONG = [
    ((), "either cron= or every=, and neither was given"),
    (("--cron", "* * * * *", "--every", "5"), "and both were given"),
    (("--cron", "99 * * * *"), "is not a cron line (bad minute)"),
    (("--cron", "0 0 30 2 *"), "never fires"),
    (("--cron", "0 3 * * *", "--tz", "Europe/Prag"), "is not a time zone"),
    (("--every", "0.5"), "one second or more"),
    (("--every", "nan"), "a number of seconds"),
    (("--every", "often"), "is not a valid float"),
    (("--every", "5", "--catch-up", "some"), "is not one of"),
    (("--every", "5", "--queue", ""), "A queue is"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda value: " ".join(value)[:40])
def test_a_wrong_schedule_is_refused_and_not_stored(
    app: Holdfast, target: str, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(2, "add", target, "sums", "add", "--payload", '{"a":1,"b":2}', *words)
    assert answered("list") == []


def test_a_schedule_is_checked_by_the_application(app: Holdfast, target: str) -> None:
    assert "No handler is registered for the kind 'nothing'" in refused(
        2, "add", target, "x", "nothing", "--every", "5"
    )
    assert "field 'a'" in refused(2, "add", target, "x", "add", "--payload", '{"a":"?","b":2}', "--every", "5")
    assert "add: " in refused(2, "add", target, "x", "add", "--payload", "{", "--every", "5")
    assert "does not name an application" in refused(2, "add", "shop", "x", "add", "--every", "5")
    add(target)
    assert "There is a schedule 'sums' already" in refused(
        2, "add", target, "sums", "add", "--payload", '{"a":1,"b":2}', "--every", "5"
    )


CALLS = [("list",), ("pause", "x"), ("resume", "x"), ("run", "x"), ("remove", "x")]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    before = sorted(tmp_path.iterdir())
    assert "There is no database at" in refused(1, *words)
    assert "lives inside one process" in refused(2, *words, "--url", "memory://")
    assert sorted(tmp_path.iterdir()) == before


def test_adding_does_not_make_a_store_either(tmp_path: Path, target: str) -> None:
    assert "There is no database at" in refused(
        1, "add", target, "x", "hold", "--payload", '{"name":"x"}', "--every", "5"
    )
    assert not (tmp_path / "jobs.db").exists()


def test_what_another_version_stored_is_one_sentence_and_can_be_removed(app: Holdfast) -> None:
    app.store.save_schedule(ScheduleRecord("later", '{"from":"the future"}', 0), None)
    assert "this version cannot read" in refused(1, "list")
    assert done("remove", "later") == "The schedule 'later' is removed.\n"


def test_a_name_from_the_store_cannot_steer_a_terminal(app: Holdfast) -> None:
    app.schedules.add("plain", app.prepare("hold", {"name": "x"}), every=5)
    (record,) = app.store.schedules()
    app.store.save_schedule(record._replace(name="\x1b[31mred"), None)
    assert "\x1b" not in done("list")
