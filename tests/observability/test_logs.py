"""Logs that name their job, as text and as JSON."""

import json
import logging
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast, Retry
from holdfast.client.logs import FIELDS, JsonFormatter, PlainFormatter, about, handling
from holdfast.domain.redaction import Redaction
from tests.observability.scene import records, write_application
from tests.surfaces.processes import run

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("holdfast.test").makeRecord(
        "holdfast.test", logging.WARNING, "file", 1, message, args, None, extra=extra
    )
    made.created, made.msecs = 1_763_325_600.25, 250.0
    return made


def test_a_json_line_has_time_level_logger_and_message() -> None:
    assert json.loads(JsonFormatter().format(record("%d jobs wait", 3))) == {
        "time": "2025-11-16T20:40:00.250Z",
        "level": "warning",
        "logger": "holdfast.test",
        "message": "3 jobs wait",
    }


def test_a_record_about_a_job_carries_what_names_it() -> None:
    with closing(Holdfast("memory://")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        job = add.using(tenant="acme", trace_id=PARENT).enqueue(1, 2)
        told = json.loads(JsonFormatter().format(record("x", **about(job.record))))
    assert [told[name] for name in FIELDS] == [str(job.id), "add", 0, "acme", TRACE]


def test_what_a_handler_logs_carries_its_job_and_what_others_log_does_not() -> None:
    with closing(Holdfast("memory://")) as app:

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        job = add.enqueue(1, 2)
        with handling(job.record):
            assert json.loads(JsonFormatter().format(record("inside")))["job_id"] == str(job.id)
        assert "job_id" not in json.loads(JsonFormatter().format(record("outside")))


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainFormatter()])
def test_a_secret_in_a_message_or_a_traceback_is_taken_out(formatter: logging.Formatter) -> None:
    made = record("cannot reach postgresql://ada:c4n4ry@db/jobs")
    try:
        raise ValueError("token=c4n4ry")  # noqa: TRY301 - the traceback is what is looked at
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    written = formatter.format(made)
    assert "c4n4ry" not in written
    assert "ValueError" in written


def test_an_application_says_what_else_is_taken_out() -> None:
    formatter = JsonFormatter(Redaction(patterns=("EMP-[0-9]+",)))
    assert json.loads(formatter.format(record("EMP-12 called")))["message"] == "[redacted] called"


def test_a_line_break_in_a_message_does_not_make_a_second_record() -> None:
    assert JsonFormatter().format(record("one\n{two}")).count("\n") == 0


def test_each_failed_attempt_is_logged_with_what_comes_next_and_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(Holdfast("memory://")) as app, caplog.at_level("INFO", "holdfast"):

        @app.job(retry=Retry.fixed(0, retries=1))
        def fail(name: str) -> None:
            raise ConnectionError(name)

        job = fail.using(tenant="acme").enqueue("c4n4ry")
        app.run_worker(until_idle=True)
    first, last = [each for each in caplog.records if each.name == "holdfast.executor"]
    assert (first.levelname, last.levelname) == ("INFO", "WARNING")
    assert first.getMessage().endswith("it runs again in 0 s")
    assert last.getMessage().endswith("it is dead (exhausted)")
    assert {getattr(first, name) for name in ("job_id", "kind", "tenant")} == {str(job.id), "fail", "acme"}
    assert [getattr(each, "attempt", None) for each in (first, last)] == [1, 2]
    assert "c4n4ry" not in caplog.text


def test_a_worker_logs_json_with_the_job_of_its_own_records_and_of_its_handlers(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as app:

        @app.job(queue="mail", retry=Retry.fixed(0, retries=1))
        def greet(name: str) -> None:
            raise NotImplementedError

        job = greet.using(tenant="acme").enqueue("ada")
    done = run("worker", target, "--until-idle", "--log-json", "--log-level", "debug", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = records(done.stderr)
    assert len(told) == len(done.stderr.splitlines()), "every line is JSON"
    about_it = [each for each in told if each.get("job_id") == str(job.id)]
    assert {each["logger"] for each in about_it} == {"holdfast.journal", "holdfast.executor", "shop"}
    assert {each["attempt"] for each in about_it} == {1, 2}
    assert all(set(FIELDS) <= each.keys() for each in about_it)
    assert [each["message"] for each in about_it if each["logger"] == "shop"] == ["greeting somebody"] * 2


def test_every_process_of_several_logs_json(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    done = run("worker", target, "--until-idle", "--log-json", "--log-level", "debug", "--processes", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("{") for line in done.stderr.splitlines())
