"""Sentry: each failed attempt once, grouped well, and without what nobody else should read."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

from holdfast import Holdfast, Permanent, Retry, Snooze
from holdfast.runtime import upkeep
from holdfast.runtime.telemetry.sentry import LONGEST_PAYLOAD
from tests.observability.scene import write_application
from tests.observability.sink import Sink, sink
from tests.surfaces.processes import run, until
from tests.workers import LONG, Working

CANARY = "c4n4ry"
REPORTING = """

import sentry_sdk
sentry_sdk.init(dsn=os.environ["SHOP_DSN"], include_local_variables=True, send_default_pii=True)
app.instrument(sentry=True)
"""


@pytest.fixture
def received() -> Iterator[Sink]:
    with sink() as place:
        before = sentry_sdk.get_client()
        sentry_sdk.init(dsn=place.dsn, default_integrations=False, include_local_variables=True)
        yield place
        sentry_sdk.get_client().close(timeout=2.0)
        sentry_sdk.get_global_scope().set_client(before)
    assert place.wrong == []


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with closing(Holdfast("memory://")) as made:
        made.instrument(sentry=True)
        yield made


def events(place: Sink, number: int) -> list[dict[str, Any]]:
    """Give what was received, once it is as much as is expected."""
    sentry_sdk.flush(timeout=5.0)
    until(lambda: len(place.events) >= number)
    assert len(place.events) == number
    return place.events


def test_each_failed_attempt_is_reported_once_with_what_names_it(app: Holdfast, received: Sink) -> None:
    @app.job(queue="mail", retry=Retry.fixed(0, retries=1))
    def greet(name: str, password: str) -> None:
        raise ConnectionError(f"no answer: token={password}, mail {name}@example.org")

    job = greet.using(tenant="acme").enqueue("ada", CANARY)
    app.run_worker(until_idle=True)
    first, last = events(received, 2)
    for number, event in enumerate((first, last), 1):
        assert event["tags"] == {
            "job_id": str(job.id),
            "kind": "greet",
            "queue": "mail",
            "attempt": str(number),
            "tenant": "acme",
            "error_code": "connection_error",
        }
        assert event["fingerprint"] == ["greet", "connection_error", "ConnectionError"]
        [value] = event["exception"]["values"]
        assert value["type"] == "ConnectionError"
        assert value["value"] == "no answer: token=[redacted], mail [redacted]"
        frame = value["stacktrace"]["frames"][-1]
        assert (frame["function"], "vars" in frame) == ("greet", False)
        assert event["contexts"]["job"]["payload"] == {"name": "ada", "password": "[redacted]"}
        assert event["transaction"] == "greet"
    assert [event["contexts"]["job"]["state"] for event in (first, last)] == ["retrying", "dead"]
    assert CANARY.encode() not in received.raw


def test_what_is_no_failure_is_not_reported(app: Holdfast, received: Sink) -> None:
    slept: list[int] = []

    @app.job
    def nap(n: int) -> int:
        if not slept:
            slept.append(n)
            raise Snooze(0)
        return n

    @app.job
    def refuse(n: int) -> None:
        raise Permanent("nothing of that sort is here", code="nobody")

    nap.enqueue(1)
    refuse.enqueue(1)
    app.run_worker(until_idle=True)
    [event] = events(received, 1)
    assert event["fingerprint"] == ["refuse", "nobody", "Permanent"]


def test_a_timeout_is_reported_without_an_exception(app: Holdfast, received: Sink) -> None:
    @app.job(timeout=0.05, retry=Retry.fixed(0, retries=0))
    def stuck(n: int) -> None:
        while True:
            threading.Event().wait(0.01)

    stuck.enqueue(1)
    app.run_worker(until_idle=True)
    [event] = events(received, 1)
    assert event["fingerprint"] == ["stuck", "timeout", "timeout"]
    assert event["exception"]["values"][0]["value"] == "the attempt took longer than its timeout"


def test_a_lost_lease_is_reported_by_whoever_takes_the_job_back_and_the_late_failure_is_not(
    received: Sink, working: Working, tmp_path: Path
) -> None:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db", lease=60)) as app:
        app.instrument(sentry=True)
        go = threading.Event()
        runs: list[int] = []

        @app.job
        def hold(n: int) -> None:
            runs.append(n)
            if len(runs) == 1:
                go.wait(LONG)
                raise ValueError(n)

        hold.enqueue(1)
        with working(app) as service:
            until(lambda: service.busy == 1)
            app.store.abandon(service.id)
            assert upkeep.reap(app.store, app.settings, app.telemetry.watch) == 1
            go.set()
            until(lambda: app.counts()["succeeded"])
        [event] = events(received, 1)
        assert event["tags"]["error_code"] == "lease_expired"


def test_a_delivery_reports_like_a_worker(app: Holdfast, received: Sink) -> None:
    @app.job
    def fail(n: int) -> None:
        raise ValueError(n)

    app.process(app.envelope(fail.enqueue(1).id))
    [event] = events(received, 1)
    assert event["tags"]["kind"] == "fail"


def test_an_exception_that_cannot_be_printed_and_a_huge_payload_are_reported_all_the_same(
    app: Holdfast, received: Sink
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @app.job(retry=Retry.fixed(0, retries=0))
    def fail(text: str) -> None:
        raise Mute

    fail.enqueue("x" * (LONGEST_PAYLOAD + 1))
    app.run_worker(until_idle=True)
    [event] = events(received, 1)
    assert event["contexts"]["job"]["payload"].endswith("characters")
    assert event["fingerprint"][2] == "Mute"


def test_without_an_initialised_sentry_nothing_happens(app: Holdfast) -> None:
    @app.job(retry=Retry.fixed(0, retries=0))
    def fail(n: int) -> None:
        raise ValueError(n)

    job = fail.enqueue(1)
    app.run_worker(until_idle=True)
    assert job.refresh().state == "dead"


def test_a_worker_process_reports_and_what_it_logs_and_holds_stays_its_own(tmp_path: Path) -> None:
    with sink() as place:
        target = write_application(tmp_path, REPORTING)
        with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as client:

            @client.job(queue="mail", retry=Retry.fixed(0, retries=1))
            def greet(name: str) -> None:
                raise NotImplementedError

            @client.job(run_in="process", retry=Retry.fixed(0, retries=0))
            def apart(name: str) -> None:
                raise NotImplementedError

            greet.enqueue("token=c4n4ry")
            apart.enqueue("secret: c4n4ry")
        done = run("worker", target, "--until-idle", cwd=tmp_path, SHOP_DSN=place.dsn)
        assert done.returncode == 0, done.stderr
    assert place.wrong == []
    assert sorted((event["tags"]["kind"], event["tags"]["attempt"]) for event in place.events) == [
        ("apart", "1"),
        ("greet", "1"),
        ("greet", "2"),
    ]
    [other] = [event for event in place.events if event["tags"]["kind"] == "apart"]
    assert other["fingerprint"] == ["apart", "runtime_error", "runtime_error"]
    assert "RuntimeError: apart from secret: [redacted]" in other["extra"]["traceback"]
    assert not any(event.get("breadcrumbs", {}).get("values") for event in place.events)
    assert b"c4n4ry" not in place.raw
