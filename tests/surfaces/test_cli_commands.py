"""Every command on a store that has seen some life, for people and for programs."""

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from holdfast import Context, Holdfast, Permanent, Retry, __version__
from holdfast.cli.main import program
from holdfast.domain.job import State
from holdfast.domain.moments import HOUR, SECOND
from holdfast.port.store import Claim, WorkerRecord
from tests.surfaces.processes import command, until

SECRET = "kept out of listings"


def shop(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    @app.job(queue="mail")
    def reject(who: str) -> None:
        msg = "no such [bold]user[/bold]"
        raise Permanent(msg, code="nobody")

    @app.job(queue="web", retry=Retry.fixed(0, retries=1))
    def flaky() -> None:
        raise ConnectionError

    @app.job(queue="web", retry=Retry.fixed(0, retries=3))
    def sometimes(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError

    return app


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """A store with jobs in most states, chosen by HOLDFAST_URL."""
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    with closing(shop(f"sqlite:///{tmp_path}/jobs.db")) as opened:
        opened.enqueue_many([opened.prepare("add", {"a": n, "b": n}) for n in range(5)])
        opened.enqueue_many([opened.prepare("reject", {"who": SECRET}) for _ in range(3)])
        opened.enqueue("flaky", {})
        opened.run_worker(until_idle=True)
        opened.enqueue("add", {"a": 1, "b": 1}, run_after=3600)
        yield opened


def ask(*words: str, input: str | None = None) -> Result:  # noqa: A002 - click's own word
    return CliRunner().invoke(program, words, input=input)


def done(*words: str) -> str:
    result = ask(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def listed(*words: str) -> Any:
    return json.loads(done(*words, "--json"))


def ids(app: Holdfast, **filters: str) -> list[str]:
    return [str(job.id) for job in app.find(**filters)]  # type: ignore[arg-type]


def test_the_version_is_told() -> None:
    assert done("--version") == f"holdfast {__version__}\n"


@pytest.mark.parametrize("words", [(), ("jobs",), ("queues",), ("dead",), ("worker",), ("check",), ("demo",), ("dev",)])
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    assert done(*words, "--help").startswith("Usage: ")


def test_the_program_explains_itself_to_whoever_asks_for_nothing() -> None:
    assert done() == done("--help")


def test_help_needs_neither_a_store_nor_a_table() -> None:
    code = "import sys, holdfast.cli.main; print({name.partition('.')[0] for name in sys.modules} & {'apsw', 'rich'})"
    told = subprocess.run([command()[0], "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "environment", "jobs", "live"),
    [((), {}, 400, True), (("--no-live",), {"HOLDFAST_DEMO_JOBS": "7"}, 7, False), (("--jobs", "9"), {}, 9, True)],
)
def test_the_demo_is_started_with_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], environment: dict[str, str], jobs: int, live: bool
) -> None:
    asked: list[tuple[int, bool]] = []

    def run(jobs: int, live: bool) -> int:
        asked.append((jobs, live))
        return 3

    monkeypatch.setattr("holdfast.demo.run", run)
    monkeypatch.delenv("HOLDFAST_DEMO_JOBS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ask("demo", *words).exit_code == 3
    assert asked == [(jobs, live)]


def test_jobs_are_listed_newest_first_with_whole_ids(app: Holdfast) -> None:
    lines = done("jobs", "list").splitlines()
    assert lines[0].split() == ["ID", "STATE", "KIND", "QUEUE", "ATTEMPT", "CREATED", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == ids(app)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("--state", "dead"), 4),
        (("--kind", "reject"), 3),
        (("--queue", "web"), 1),
        (("--tenant", "nobody"), 0),
        (("--error-code", "nobody"), 3),
        (("--key", "none"), 0),
        (("-n", "2"), 2),
    ],
)
def test_jobs_are_chosen_by_filters(app: Holdfast, words: tuple[str, ...], number: int) -> None:
    assert len(listed("jobs", "list", *words)) == number


def test_a_listing_goes_on_where_the_page_before_ended(app: Holdfast) -> None:
    first = [job["id"] for job in listed("jobs", "list", "-n", "4")]
    rest = [job["id"] for job in listed("jobs", "list", "--before", first[-1])]
    assert first + rest == ids(app)


def test_a_listing_longer_than_a_page_is_whole(app: Holdfast) -> None:
    app.enqueue_many([app.prepare("add", {"a": n, "b": n}) for n in range(1500)])
    assert len({job["id"] for job in listed("jobs", "list", "-n", "1400")}) == 1400
    assert len(listed("jobs", "list", "-n", "9999")) == 1510


def test_an_empty_listing_says_so(app: Holdfast) -> None:
    assert done("jobs", "list", "--kind", "none") == "There are no such jobs.\n"
    assert listed("jobs", "list", "--kind", "none") == []


def test_programs_get_every_field_with_times_they_can_read(app: Holdfast) -> None:
    job = listed("jobs", "list", "--kind", "reject")[0]
    assert job["failure"] == {"code": "nobody", "message": "no such [bold]user[/bold]", "retryable": False}
    assert (job["state"], job["cause"], job["attempt"], job["lease"]) == ("dead", "rejected", 1, None)
    for name in ("created_at", "available_at", "finished_at", "purge_at"):
        assert datetime.fromisoformat(job[name]).tzinfo is not None


def test_payloads_and_results_are_shown_only_if_asked_for(app: Holdfast) -> None:
    for words in (("jobs", "list"), ("dead", "list"), ("jobs", "list", "--json"), ("dead", "list", "--json")):
        assert SECRET not in done(*words)
        assert SECRET in done(*words, "--payload")
    (id_,) = ids(app, kind="add", state="succeeded")[:1]
    assert "result" not in listed("jobs", "show", id_)
    assert listed("jobs", "show", id_, "--payload")["result"] == 8
    assert '{"a":4,"b":4}' in done("jobs", "show", id_, "--payload")


def test_one_job_is_shown_with_its_attempts(app: Holdfast) -> None:
    (id_,) = ids(app, kind="flaky")
    told = done("jobs", "show", id_)
    assert id_ in told
    assert "connection_error" in told
    assert "Traceback" not in told
    assert "Traceback" in done("jobs", "show", id_, "--traceback")
    job = listed("jobs", "show", id_)
    assert [(each["attempt"], each["outcome"]) for each in job["attempts"]] == [(1, "fail"), (2, "fail")]
    assert "traceback" not in job["attempts"][0]
    assert job["steps"] == []


def test_what_is_stored_cannot_steer_a_terminal(app: Holdfast) -> None:
    app.enqueue("reject", {"who": "\x1b[2J\u009b31m\u202e"})
    assert "\x1b" not in done("jobs", "list", "--payload")
    assert "\u009b" not in done("jobs", "list", "--payload")


def test_why_a_job_waits_is_told(app: Holdfast) -> None:
    (waiting,) = ids(app, state="queued")
    assert done("jobs", "why", waiting).startswith("It is not due yet")
    told = listed("jobs", "why", waiting)
    assert (told["id"], told["state"], told["reason"]) == (waiting, "queued", "not-due")


def test_a_waiting_job_is_cancelled_and_a_finished_one_is_not(app: Holdfast) -> None:
    (waiting,) = ids(app, state="queued")
    assert done("jobs", "cancel", waiting) == f"{waiting} is cancelled.\n"
    assert done("jobs", "cancel", waiting) == f"{waiting} is cancelled.\n"
    (over,) = ids(app, state="succeeded")[:1]
    refused = ask("jobs", "cancel", over)
    assert refused.exit_code == 1
    assert refused.stdout == f"{over} had ended before: succeeded; nothing was changed.\n"


def test_a_running_job_is_asked_to_stop(app: Holdfast) -> None:
    app.enqueue("add", {"a": 1, "b": 2})
    [job] = app.store.claim(Claim("ada", "lease", HOUR, 1))
    assert "its worker has been asked to stop" in done("jobs", "cancel", job.id)
    assert listed("jobs", "show", job.id)["lease"]["owner"] == "ada"
    assert "cancelling" in done("jobs", "list")
    assert "held by ada" in done("jobs", "show", job.id)


def test_a_dead_job_is_redriven_once(app: Holdfast) -> None:
    (id_,) = ids(app, kind="flaky")
    assert done("jobs", "redrive", id_) == f"{id_} is queued as generation 2.\n"
    again = ask("jobs", "redrive", id_, "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)[0]["generation"] == 2
    assert app.get(id_).generation == 2


def test_queues_are_listed_paused_and_resumed(app: Holdfast) -> None:
    assert "QUEUE" in done("queues", "list")
    assert done("queues", "pause", "mail", "new").splitlines() == [
        "The queue 'mail' is paused.",
        "The queue 'new' is paused (it holds no jobs yet).",
    ]
    told = {queue["queue"]: queue for queue in listed("queues", "list")}
    assert told["mail"] == {
        "queue": "mail", "paused": True, "workers": 0, "jobs": {state.value: 0 for state in State} | {"dead": 3},
    }  # fmt: skip
    assert (told["new"]["paused"], told["web"]["paused"]) == (True, False)
    assert listed("queues", "resume", "mail") == [{"queue": "mail", "paused": False}]
    assert app.paused() == {"new"}


def test_dead_jobs_are_listed_with_what_they_died_of(app: Holdfast) -> None:
    told = done("dead", "list")
    assert "exhausted" in told
    assert "no such [bold]user[/bold]" in told
    assert len(listed("dead", "list", "--queue", "mail")) == 3


def test_dead_jobs_are_redriven_by_a_filter_after_asking(app: Holdfast) -> None:
    asked = ask("dead", "redrive", "--kind", "reject", input="n\n")
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert "Redrive 3 dead jobs? [y/N]" in asked.stderr
    assert app.counts()["dead"] == 4
    assert ask("dead", "redrive", "--kind", "reject", input="y\n").stdout == "3 jobs redriven.\n"
    assert app.counts()["dead"] == 1
    assert listed("dead", "redrive", "--error-code", "connection_error", "--yes") == {"redriven": 1}
    assert done("dead", "redrive", "--all") == "There are no such dead jobs.\n"


def test_dead_jobs_are_redriven_if_nobody_can_be_asked(app: Holdfast) -> None:
    asked = ask("dead", "redrive", "--all", input="")
    assert (asked.exit_code, asked.stdout) == (0, "4 jobs redriven.\n")
    assert app.counts()["dead"] == 0


def test_an_interrupt_is_not_taken_for_the_silence_of_a_script(app: Holdfast, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command("dead", "redrive", "--all"), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            asked += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, b"")
    assert app.counts()["dead"] == 4


def test_a_new_store_is_made_by_migrate(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert "to be applied: 0001_jobs.sql, 0002_entry.sql" in done("migrate", "--plan", "--url", url)
    assert not (tmp_path / "new.db").exists()
    assert "applied 0001_jobs.sql" in done("migrate", "--url", url)
    assert "nothing is to be done" in done("migrate", "--url", url)
    told = listed("migrate", "--url", url)
    assert (told["version"], told["pending"], told["applied"]) == (told["latest"], [], [])
    assert done("jobs", "list", "--url", url) == "There are no such jobs.\n"
    assert done("queues", "list", "--url", url).startswith("There are no queues yet")


def test_a_backup_is_a_store_of_its_own(app: Holdfast, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert listed("backup", str(copy))["bytes"] == copy.stat().st_size
    assert listed("jobs", "list", "--url", f"sqlite:///{copy}") == listed("jobs", "list")
    assert done("check", "--url", f"sqlite:///{copy}").endswith("Nothing is wrong.\n")


def test_a_healthy_store_is_found_to_be_so(app: Holdfast) -> None:
    told = done("check")
    assert "10 jobs (1 queued, 5 succeeded, 4 dead)" in told
    assert told.endswith("Nothing is wrong.\n")
    report = listed("check")
    assert report["clean"]
    assert report["states"]["dead"] == 4
    assert {each["findings"] for each in report["promises"]} == {0}


def spoil(app: Holdfast, sql: str) -> None:
    """Change the file behind Holdfast's back."""
    path = app.url.removeprefix("sqlite:///")
    with closing(apsw.Connection(path)) as db:
        db.execute("DROP TRIGGER job_terminal_is_final")
        db.execute(sql)


@pytest.mark.parametrize(
    ("sql", "promise"),
    [
        ("UPDATE job SET cause = NULL WHERE state = 'dead'", "S14"),
        ("UPDATE job SET finished_at = NULL WHERE kind = 'flaky'", "S15"),
        ("UPDATE job SET attempt = 1 WHERE kind = 'flaky'", "S18"),
        ("DELETE FROM attempt", "S26"),
        ("UPDATE tally SET jobs = jobs + 1 WHERE state = 'dead'", "S36"),
        ("UPDATE job SET ready = NULL WHERE state = 'queued'", "L3"),
    ],
)
def test_what_was_changed_behind_our_back_is_found(app: Holdfast, sql: str, promise: str) -> None:
    spoil(app, sql)
    told = ask("check", "--json")
    report = json.loads(told.stdout)
    assert told.exit_code == 1
    assert not report["clean"]
    assert promise in {finding["promise"] for finding in report["findings"]}
    assert promise in {each["promise"] for each in report["promises"] if each["findings"]}
    people = ask("check")
    assert people.exit_code == 1
    assert report["findings"][0]["text"] in people.stdout


def test_many_findings_are_counted_but_not_all_shown(app: Holdfast) -> None:
    app.enqueue_many([app.prepare("add", {"a": n, "b": n}) for n in range(70)])
    spoil(app, "UPDATE job SET attempt = 1 WHERE state = 'queued'")
    report = json.loads(ask("check", "--json").stdout)
    assert report["number_of_findings"] > 70
    assert len(report["findings"]) == 50
    assert "the first 50" in ask("check").stdout


def test_an_orphan_counts_only_if_a_worker_was_there_to_see_to_it(app: Holdfast) -> None:
    app.enqueue("add", {"a": 1, "b": 2})
    [job] = app.store.claim(Claim("ada", "lease", SECOND, 1))
    spoil(app, f"UPDATE job SET lease_expires_at = lease_expires_at - {HOUR} WHERE state = 'running'")
    assert "L3 is left out" in done("check")
    now = app.store.now()
    app.store.enlist(WorkerRecord("bob", "here", 1, None, (), 1, now - HOUR, now, now + HOUR, 0))
    told = ask("check")
    assert told.exit_code == 1
    assert job.id in told.stdout
    assert ask("check", "--patience", "7200").exit_code == 0


def test_a_store_at_work_gives_no_false_alarm(app: Holdfast) -> None:
    app.enqueue_many([app.prepare(kind, {}) for kind in ("flaky", "sometimes") for _ in range(400)])
    service = app.service(concurrency=8)
    worker = threading.Thread(target=service.run, kwargs={"until_idle": True})
    worker.start()
    looks = 0
    while worker.is_alive():
        told = ask("check", "--json")
        assert told.exit_code == 0, told.stdout
        looks += 1
    worker.join()
    assert looks > 1
    assert app.counts()["dead"] == 404


def test_nobody_minds_a_reader_that_leaves(app: Holdfast) -> None:
    app.enqueue_many([app.prepare("add", {"a": n, "b": n}) for n in range(500)])
    for words in (("jobs", "list", "-n", "500", "--json"), ("queues", "list")):
        reader, writer = os.pipe()
        os.close(reader)
        told = subprocess.run(command(*words), stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert told.stderr == b""


def test_a_terminal_gets_a_table_with_whole_ids(app: Holdfast) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command("jobs", "list"), stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = bytearray()

        def read() -> bool:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                return True
            seen.extend(part)
            return not part

        until(read)
        assert process.wait() == 0
    os.close(ours)
    assert all(id_ in seen.decode() for id_ in ids(app))
