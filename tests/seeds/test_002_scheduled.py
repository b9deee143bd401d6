"""Seed 002: typed handlers, locks that expire, exponential backoff, dead letters and a deduplication index."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import BadPayload, Job, JobFunction, JobHandler, KeyConflict, Retry
from tests.seeds.scene import Scene

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Retry.exponential(base=60, max_attempts=5)


class SummaryPayload(BaseModel):
    user_id: str
    day: str


class DailySummaryHandler(JobHandler):
    """Sends nothing, or fails for the user called `trouble`."""

    sent: list[SummaryPayload]

    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        return SummaryPayload

    def handle(self, payload: SummaryPayload) -> None:
        if payload.user_id == "trouble":
            raise ConnectionError("slack is down")
        self.sent.append(payload)


@pytest.fixture
def daily_summary(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> JobFunction[..., Any]:
    monkeypatch.setattr(DailySummaryHandler, "sent", [], raising=False)
    return scene.app.register("daily_summary", DailySummaryHandler, retry=POLICY)


def summary(user: str = "ada", day: str = "2026-01-01") -> SummaryPayload:
    return SummaryPayload(user_id=user, day=day)


def scheduled_for(scene: Scene, job: Job[Any]) -> timedelta:
    """Say when a job is scheduled for, counted from now."""
    at = datetime.fromisoformat(scene.tell("scheduled", job)["scheduled_for"])
    return at - START - timedelta(microseconds=scene.clock.now() - int(START.timestamp()) * 1_000_000)


def test_the_record_has_the_table_schema(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    job = daily_summary.using(run_at=START + timedelta(hours=7)).enqueue(summary())
    record = scene.tell("scheduled", job)
    assert record == {
        "PK": "job",
        "SK": f"scheduled#2026-01-01T07:00:00.000000+00:00#{job.id}",
        "job_type": "daily_summary",
        "payload": '{"user_id":"ada","day":"2026-01-01"}',
        "scheduled_for": "2026-01-01T07:00:00.000000+00:00",
        "status": "pending",
        "locked_by": None,
        "lock_expires_at": None,
        "attempts": 0,
        "last_error": None,
        "created_at": "2026-01-01T00:00:00.000000+00:00",
        "completed_at": None,
    }


def test_scheduled_for_matches_the_timestamp_of_the_sk_through_every_retry(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    job = daily_summary.enqueue(summary("trouble"))
    for _ in range(5):
        record = scene.tell("scheduled", job)
        assert record["SK"] == f"scheduled#{record['scheduled_for']}#{job.id}"
        scene.deliver(job)
        scene.clock.advance(hours=1)


def test_each_job_type_maps_to_a_handler_and_payloads_are_parsed_by_its_model(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    job = scene.app.enqueue("daily_summary", {"user_id": "ada", "day": "2026-01-01"})
    assert scene.deliver(job) == "claimed"
    assert DailySummaryHandler.sent == [summary()]
    with pytest.raises(BadPayload, match="daily_summary: field 'day': Field required"):
        scene.app.enqueue("daily_summary", {"user_id": "ada"})
    assert scene.app.counts().total == 1


def test_pending_in_progress_completed(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    job = daily_summary.enqueue(summary())
    walk = [scene.status("scheduled", job)]
    (held,) = scene.claim("worker-1")
    walk.append(scene.status("scheduled", job))
    scene.clock.advance(seconds=5)
    scene.complete(held)
    walk.append(scene.status("scheduled", job))
    assert walk == ["pending", "in_progress", "completed"]
    assert scene.tell("scheduled", job)["completed_at"] == "2026-01-01T00:00:05.000000+00:00"


def test_failures_back_off_exponentially_from_60_seconds_and_end_in_dead_letter(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    job = daily_summary.enqueue(summary("trouble"))
    for attempts, delay in enumerate((60, 120, 240, 480), start=1):
        assert scene.deliver(job) == "claimed"
        record = scene.tell("scheduled", job)
        assert (record["status"], record["attempts"]) == ("failed", attempts)
        assert record["last_error"].startswith("connection_error: ConnectionError raised in handle, line ")
        assert scheduled_for(scene, job) == timedelta(seconds=delay)
        scene.clock.advance(seconds=delay - 1)
        assert scene.deliver(job) == "already-claimed"
        scene.clock.advance(seconds=1)
    assert scene.deliver(job) == "claimed"
    record = scene.tell("scheduled", job)
    assert (record["status"], record["attempts"], record["completed_at"]) == ("dead_letter", 5, None)
    scene.clock.advance(days=1)
    assert scene.claim("worker-1", 10) == []


def test_dead_letter_jobs_are_retained_for_audit(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    dead, done = daily_summary.enqueue(summary("trouble")), daily_summary.enqueue(summary())
    for _ in range(5):
        scene.deliver(dead)
        scene.clock.advance(hours=1)
    scene.deliver(done)
    scene.clock.advance(days=30)
    assert scene.purge() == 1
    assert scene.status("scheduled", dead) == "dead_letter"
    history = scene.app.attempts(dead.id)
    assert [attempt.attempt for attempt in history] == [1, 2, 3, 4, 5]
    assert all("slack is down" in (attempt.traceback or "") for attempt in history)


def test_an_identical_logical_job_is_not_rescheduled(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    once_a_day = daily_summary.using(key="scheduled-job#summary#ada#2026-01-01", run_after=3600)
    first = once_a_day.enqueue(summary())
    before = scene.row(first)
    again = once_a_day.enqueue(summary())
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(KeyConflict):
        once_a_day.enqueue(summary(day="2026-01-02"))
    assert (scene.row(first), scene.app.counts().total) == (before, 1)
    tomorrow = daily_summary.using(key="scheduled-job#summary#ada#2026-01-02").enqueue(summary(day="2026-01-02"))
    assert not tomorrow.duplicate


def test_the_index_is_believed_while_its_job_is_present(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    once_a_day = daily_summary.using(key="scheduled-job#summary#ada#2026-01-01")
    first = once_a_day.enqueue(summary())
    scene.deliver(first)
    assert once_a_day.enqueue(summary()).duplicate
    scene.clock.advance(days=7)
    scene.purge()
    anew = once_a_day.enqueue(summary())
    assert (anew.duplicate, anew.id != first.id) == (False, True)
    assert list(scene.app.store.check()) == []


def test_due_jobs_are_processed_in_ascending_scheduled_order(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    delays = [50, 10, 40, 20, 30, 90]
    jobs = {delay: daily_summary.using(run_after=delay).enqueue(summary()) for delay in delays}
    keys = [scene.tell("scheduled", jobs[delay])["SK"] for delay in sorted(delays)]
    assert keys == sorted(keys), "the order of the sort keys is the order in time"
    scene.clock.advance(seconds=60)
    due = scene.claim("worker-1", 25)
    assert [job.id for job in due] == [str(jobs[delay].id) for delay in sorted(delays)[:5]]


def test_a_poll_takes_no_more_than_its_limit(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    scene.app.enqueue_many([daily_summary.prepare(summary(str(n))) for n in range(30)])
    assert [len(scene.claim("worker-1", 25)) for _ in range(3)] == [25, 5, 0]


def test_a_lock_names_its_worker_and_keeps_others_out_until_it_expires(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    job = daily_summary.enqueue(summary())
    scene.claim("worker-1")
    record = scene.tell("scheduled", job)
    assert (record["locked_by"], record["lock_expires_at"]) == ("worker-1", "2026-01-01T00:00:15.000000+00:00")
    scene.clock.advance(seconds=14)
    scene.reap()
    assert scene.claim("worker-2") == []
    assert scene.tell("scheduled", job)["locked_by"] == "worker-1"


def test_a_worker_may_extend_its_lease_while_it_runs(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    job = daily_summary.enqueue(summary())
    (held,) = scene.claim("worker-1")
    for _ in range(20):
        scene.clock.advance(seconds=10)
        scene.heartbeat(held)
        scene.reap()
        assert scene.claim("worker-2") == []
    assert scene.tell("scheduled", job)["lock_expires_at"] == "2026-01-01T00:03:35.000000+00:00"
    assert scene.complete(held) == "ok"


def test_after_a_crash_another_worker_reclaims_the_expired_job(
    scene: Scene, daily_summary: JobFunction[..., Any]
) -> None:
    job = daily_summary.enqueue(summary())
    (crashed,) = scene.claim("worker-1")
    scene.clock.advance(seconds=15)
    scene.reap()
    (held,) = scene.claim("worker-2")
    record = scene.tell("scheduled", job)
    assert (record["status"], record["locked_by"], record["attempts"]) == ("in_progress", "worker-2", 2)
    assert scene.complete(crashed) == "already-claimed"
    assert scene.complete(held) == "ok"


def test_a_cancelled_job_is_ignored(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    job = daily_summary.using(run_after=60).enqueue(summary()).cancel()
    scene.clock.advance(seconds=60)
    assert (scene.claim("worker-1", 25), scene.deliver(job)) == ([], "no-op-terminal")
    assert scene.status("scheduled", job) == "cancelled"
    assert DailySummaryHandler.sent == []


def test_the_payload_is_a_json_blob_as_it_was_given(scene: Scene, daily_summary: JobFunction[..., Any]) -> None:
    job = daily_summary.enqueue(summary("Zoë ☃"))
    blob = scene.tell("scheduled", job)["payload"]
    assert json.loads(blob) == {"user_id": "Zoë ☃", "day": "2026-01-01"}
