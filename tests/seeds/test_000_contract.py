"""Seed 000: the orchestrator's job contract: its record, statuses, message, backoff, idempotency and retention."""

import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from holdfast import BadEnvelope, Context, Holdfast, Job, JobFunction, KeyConflict, Permanent, Retry, retention
from holdfast.domain.dialects import dialect
from holdfast.domain.job import State
from tests.seeds.scene import Scene

BACKOFF = Retry.table(30, 120, 600, 1800, max_attempts=5)
CORE_FIELDS = [
    "job_id",
    "workspace_id",
    "user_id",
    "workflow_id",
    "trigger_type",
    "status",
    "attempts",
    "max_attempts",
    "step_cursor",
    "steps_total",
    "credits_estimate",
    "credits_reserved",
    "credits_spent",
    "idempotency_key",
    "last_error_code",
    "last_error_message",
    "created_at",
    "updated_at",
    "started_at",
    "completed_at",
    "ttl_at",
]
ENVELOPE = [
    "v",
    "job_id",
    "workspace_id",
    "trigger_type",
    "attempt",
    "max_attempts",
    "trace_id",
    "idempotency_key",
]


@pytest.fixture
def ingest(scene: Scene) -> JobFunction[[str], str]:
    @scene.app.job(retry=BACKOFF)
    def ingest(document: str) -> str:
        return document

    return ingest


@pytest.fixture
def broken(scene: Scene) -> JobFunction[[], None]:
    @scene.app.job(retry=BACKOFF)
    def broken() -> None:
        raise ConnectionError("jane.doe@example.com did not answer")

    return broken


def since_start(text: str) -> float:
    return (datetime.fromisoformat(text) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds()


def test_the_item_has_the_core_fields(scene: Scene, ingest: JobFunction[[str], str]) -> None:
    options: dict[str, Any] = {"tenant": "ws-1", "user": "user-7", "trigger": "file_drop", "key": "drop:7"}
    item = scene.tell("contract", ingest.using(**options).enqueue("a.pdf"))
    assert list(item) == CORE_FIELDS
    assert str(UUID(item["job_id"])) == item["job_id"]
    assert item["created_at"] == item["updated_at"] == "2026-01-01T00:00:00.000000+00:00"
    assert {name: item[name] for name in CORE_FIELDS[1:14]} == {
        "workspace_id": "ws-1",
        "user_id": "user-7",
        "workflow_id": "ingest",
        "trigger_type": "file_drop",
        "status": "queued",
        "attempts": 0,
        "max_attempts": 5,
        "step_cursor": 0,
        "steps_total": 0,
        "credits_estimate": 0,
        "credits_reserved": 0,
        "credits_spent": 0,
        "idempotency_key": "drop:7",
    }
    assert [item[name] for name in CORE_FIELDS[14:16] + CORE_FIELDS[18:]] == [None] * 5


@pytest.mark.parametrize("trigger", ["manual", "schedule", "webhook", "file_drop"])
def test_every_trigger_type_is_kept(scene: Scene, ingest: JobFunction[[str], str], trigger: str) -> None:
    job = ingest.using(trigger=trigger).enqueue("a.pdf")
    assert scene.tell("contract", job)["trigger_type"] == scene.app.envelope(job.id)["trigger_type"] == trigger


def test_max_attempts_is_5_by_default(scene: Scene) -> None:
    @scene.app.job
    def plain() -> None: ...

    assert scene.tell("contract", plain.enqueue())["max_attempts"] == 5


def test_the_status_model_has_the_seeds_seven_words() -> None:
    told = {state: dialect("contract").statuses[state] for state in State}
    assert told == {
        State.CREATED: "pending",
        State.QUEUED: "queued",
        State.RUNNING: "running",
        State.RETRYING: "failed",
        State.SUCCEEDED: "completed",
        State.DEAD: "dead",
        State.CANCELLED: "canceled",
    }


def test_a_run_goes_from_queued_over_running_to_completed(scene: Scene) -> None:
    seen: list[str] = []

    @scene.app.job
    def ingest(ctx: Context) -> None:
        scene.clock.advance(seconds=5)
        seen.append(scene.status("contract", scene.app.get(ctx.job_id)))

    job = ingest.enqueue()
    scene.clock.advance(seconds=1)
    assert scene.deliver(job) == "claimed"
    item = scene.tell("contract", job)
    assert (seen, item["status"], item["attempts"]) == (["running"], "completed", 1)
    assert (since_start(item["started_at"]), since_start(item["completed_at"])) == (1, 6)
    assert item["updated_at"] == item["completed_at"]


def test_a_failure_increments_attempts_and_may_be_retried(scene: Scene, broken: JobFunction[[], None]) -> None:
    job = broken.enqueue()
    scene.deliver(job)
    item = scene.tell("contract", job)
    assert (item["status"], item["attempts"], item["completed_at"]) == ("failed", 1, None)
    assert item["last_error_code"] == "connection_error"
    first_picked_up = item["started_at"]
    scene.clock.advance(seconds=30)
    scene.deliver(job)
    again = scene.tell("contract", job)
    assert (again["attempts"], again["started_at"]) == (2, first_picked_up)


def test_the_last_error_is_short_and_without_personal_data(scene: Scene, broken: JobFunction[[], None]) -> None:
    job = broken.enqueue()
    scene.deliver(job)
    item = scene.tell("contract", job)
    assert "jane.doe" not in item["last_error_code"] + item["last_error_message"]
    assert len(item["last_error_message"]) <= 200
    story = scene.app.attempts(job.id)[0].traceback or ""
    assert "ConnectionError" in story, "where it went wrong is in the attempt's record"
    assert "jane.doe" not in story


def test_backoff_follows_the_table(scene: Scene) -> None:
    @scene.app.job(retry=Retry.table(30, 120, 600, 1800, max_attempts=8))
    def fails() -> None:
        raise TimeoutError

    job = fails.enqueue()
    for delay in (30, 120, 600, 1800, 1800, 1800, 1800):
        assert scene.deliver(job) == "claimed"
        scene.clock.advance(seconds=delay - 1)
        assert scene.deliver(job) == "already-claimed"
        scene.clock.advance(seconds=1)
    assert scene.deliver(job) == "claimed"
    assert scene.status("contract", job) == "dead"


def test_max_attempts_make_a_job_dead(scene: Scene, broken: JobFunction[[], None]) -> None:
    job = broken.enqueue()
    walk = []
    for _ in range(5):
        scene.deliver(job)
        walk.append((scene.status("contract", job), scene.tell("contract", job)["attempts"]))
        scene.clock.advance(minutes=30)
    assert walk == [("failed", 1), ("failed", 2), ("failed", 3), ("failed", 4), ("dead", 5)]
    item = scene.tell("contract", job)
    assert item["completed_at"] is not None
    assert item["last_error_code"] == "connection_error"
    assert scene.deliver(job) == "no-op-terminal"


def test_a_poison_job_is_dead_at_once(scene: Scene) -> None:
    @scene.app.job(retry=BACKOFF)
    def poison() -> None:
        raise Permanent("unreadable", code="unreadable")

    job = poison.enqueue()
    scene.deliver(job)
    item = scene.tell("contract", job)
    assert (item["status"], item["attempts"], item["last_error_code"]) == ("dead", 1, "unreadable")


def test_the_envelope_has_eight_fields_and_the_record_holds_the_rest(
    scene: Scene, ingest: JobFunction[[str], str]
) -> None:
    options: dict[str, Any] = {"tenant": "ws-1", "trigger": "webhook", "key": "drop:7", "trace_id": "trace-1"}
    job = ingest.using(**options).enqueue("secret.pdf")
    envelope = scene.app.envelope(job.id)
    assert list(envelope) == ENVELOPE
    assert envelope == {
        "v": 1,
        "job_id": str(job.id),
        "workspace_id": "ws-1",
        "trigger_type": "webhook",
        "attempt": 1,
        "max_attempts": 5,
        "trace_id": "trace-1",
        "idempotency_key": "drop:7",
    }
    assert "secret.pdf" not in str(envelope)


def test_the_envelopes_attempt_is_1_based_and_counts_on(scene: Scene, broken: JobFunction[[], None]) -> None:
    job = broken.enqueue()
    attempts = []
    for _ in range(3):
        attempts.append(scene.app.envelope(job.id)["attempt"])
        scene.deliver(job)
        scene.clock.advance(minutes=30)
    assert attempts == [1, 2, 3]


def test_the_body_may_be_extended_but_not_of_another_version(scene: Scene, ingest: JobFunction[[str], str]) -> None:
    job = ingest.enqueue("a.pdf")
    before = scene.row(job)
    for version in (0, 2, "1", None):
        with pytest.raises(BadEnvelope, match="only version 1 is understood"):
            scene.deliver(job, v=version)
    assert scene.row(job) == before
    assert scene.deliver(job, priority=9) == "claimed"


def test_the_idempotency_key_avoids_duplicates(scene: Scene, ingest: JobFunction[[str], str]) -> None:
    first = ingest.using(key="run-7", tenant="ws-1").enqueue("a.pdf")
    again = ingest.using(key="run-7", tenant="ws-1").enqueue("a.pdf")
    assert (again.id, again.duplicate) == (first.id, True)
    assert not ingest.using(key="run-7", tenant="ws-2").enqueue("a.pdf").duplicate
    before = scene.row(first)
    with pytest.raises(KeyConflict, match="with another payload; nothing was enqueued"):
        ingest.using(key="run-7", tenant="ws-1").enqueue("b.pdf")
    assert (scene.row(first), scene.app.counts().total) == (before, 2)


def test_a_conditional_write_lets_one_of_many_creators_win(scene: Scene, ingest: JobFunction[[str], str]) -> None:
    apps = [scene.app, *(scene.another() for _ in range(7))]
    for app in apps:
        app.job(ingest.function)
    start = threading.Barrier(len(apps))
    made: list[Job[Any]] = []

    def create(app: Holdfast) -> None:
        start.wait()
        made.append(app.enqueue("ingest", {"document": "a.pdf"}, key="run-7"))

    creators = [threading.Thread(target=create, args=(app,)) for app in apps]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join()
    assert len({job.id for job in made}) == 1
    assert sorted(job.duplicate for job in made) == [False, *[True] * 7]
    assert scene.app.counts().total == 1


@pytest.mark.parametrize("end", ["completed", "dead", "canceled"])
def test_a_message_for_a_terminal_job_is_an_idempotent_no_op(
    scene: Scene, ingest: JobFunction[[str], str], end: str
) -> None:
    job = ingest.enqueue("a.pdf")
    match end:
        case "completed":
            scene.deliver(job)
        case "dead":
            (held,) = scene.claim("worker-1")
            for _ in range(4):
                scene.fail(held)
                scene.clock.advance(minutes=30)
                (held,) = scene.claim("worker-1")
            scene.fail(held)
        case _:
            job.cancel()
    assert scene.status("contract", job) == end
    before = scene.row(job)
    scene.clock.advance(hours=1)
    assert [scene.deliver(job), scene.deliver(job, attempt=1)] == ["no-op-terminal", "no-op-terminal"]
    assert scene.row(job) == before


def test_a_terminal_job_sets_ttl_at_and_is_kept_until_then(scene: Scene) -> None:
    app = scene.another()
    app.settings = Holdfast("memory://", retention=retention(succeeded=3600, cancelled=7200, dead=86_400)).settings

    @app.job(name="run")
    def run(well: bool) -> None:
        if not well:
            raise Permanent

    completed, canceled, dead = app.enqueue_many([run.prepare(True), run.prepare(True), run.prepare(False)])
    assert scene.tell("contract", completed)["ttl_at"] is None
    canceled.cancel()
    for job in (completed, dead):
        assert app.process(app.envelope(job.id)) == "claimed"
    now = scene.clock.now() // 1_000_000
    told = [scene.tell("contract", job)["ttl_at"] - now for job in (completed, canceled, dead)]
    assert told == [3600, 7200, 86_400]
    kept = []
    for hours in (0, 1, 1, 21, 1):
        scene.clock.advance(hours=hours)
        scene.purge()
        kept.append(app.counts().total)
    assert kept == [3, 2, 1, 1, 0]


def test_retention_frees_the_key_and_forgets_the_history(scene: Scene, broken: JobFunction[[], None]) -> None:
    job = broken.using(key="run-7").enqueue()
    for _ in range(5):
        scene.deliver(job)
        scene.clock.advance(minutes=30)
    scene.clock.advance(days=90)
    assert scene.purge() == 1
    assert scene.app.store.attempts(str(job.id)) == []
    assert not broken.using(key="run-7").enqueue().duplicate
