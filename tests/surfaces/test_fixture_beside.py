"""What the `holdfast` fixture does beside jobs: schedules that code declares fire, and sinks get their events."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import Holdfast
from holdfast.testing.engine import TestHoldfast

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_schedules_that_code_declares_fire_under_the_tests_clock(holdfast: TestHoldfast) -> None:
    ran: list[datetime] = []

    @holdfast.job
    def report() -> None:
        ran.append(holdfast.now)

    holdfast.schedule("hourly", report.prepare(), cron="0 * * * *")
    holdfast.advance(hours=1)
    assert holdfast.run_until_idle() == 1
    holdfast.advance(minutes=30)
    assert holdfast.run_until_idle() == 0
    holdfast.advance(minutes=30)
    assert holdfast.run_until_idle() == 1
    assert ran == [START + timedelta(hours=1), START + timedelta(hours=2)]


def test_a_declared_schedule_that_is_removed_or_paused_stays_so(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def report() -> None: ...

    for name in ("removed", "paused"):
        holdfast.schedule(name, report.prepare(), every=60)
    holdfast.run_until_idle()
    holdfast.schedules.remove("removed")
    holdfast.schedules.pause("paused")
    holdfast.advance(minutes=1)
    assert holdfast.run_until_idle() == 0
    assert [each.name for each in holdfast.schedules.list()] == ["paused"]


def test_schedules_of_an_attached_application_fire_here(holdfast: TestHoldfast) -> None:
    app = Holdfast("memory://")

    @app.job
    def report() -> None: ...

    app.schedule("often", report.prepare(), every=60)
    holdfast.attach(app)
    holdfast.advance(minutes=1)
    assert holdfast.run_until_idle() == 1


def test_sinks_get_their_events_at_the_end_of_a_run(holdfast: TestHoldfast) -> None:
    told: list[str] = []
    app = Holdfast("memory://")
    holdfast.attach(app)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    async def listen(event: dict[str, Any]) -> None:
        told.append(event["name"])

    app.sink("told", listen)
    holdfast.run_until_idle()
    job = add.enqueue(1, 2)
    holdfast.run_until_idle()
    assert told == ["workflow_run_started", "workflow_run_completed"]
    add.using(run_after=60).enqueue(1, 2).cancel()
    asyncio.run(holdfast.arun_until_idle())
    assert told[2:] == ["workflow_run_completed", "job_cancelled"]
    assert job.result() == 3


def test_a_sink_that_refuses_an_event_is_given_it_again_by_the_next_run(holdfast: TestHoldfast) -> None:
    told: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        told.append(event["name"])
        if len(told) == 1:
            raise ConnectionError

    holdfast.sink("told", listen)

    @holdfast.job
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, 2)
    holdfast.run_until_idle()
    assert told == ["workflow_run_started"]
    holdfast.run_until_idle()
    assert told[1:] == ["workflow_run_started", "workflow_run_completed"]
