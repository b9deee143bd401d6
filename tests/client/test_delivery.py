"""`app.process`: one delivery of one job, with three outcomes."""

import asyncio
import json
import threading
import uuid
from typing import Any

import pytest

from holdfast import BadEnvelope, Context, Holdfast, JobFunction, JobNotFound, Permanent, Prepared, Retry, Snooze
from holdfast.domain.job import NewJob
from holdfast.port.store import Claim
from holdfast.runtime import delivery, upkeep
from holdfast.testing.clock import ManualClock


@pytest.fixture
def add(app: Holdfast) -> JobFunction[[int], int]:
    @app.job
    def add(a: int) -> int:
        return a

    return add


def test_the_first_delivery_claims_and_the_next_ones_do_nothing(app: Holdfast, add: JobFunction[[int], int]) -> None:
    job = add.enqueue(1)
    envelope = app.envelope(job.id)
    assert app.process(envelope) == "claimed"
    done = app.get(job.id).record
    assert [app.process(envelope) for _ in range(3)] == ["no-op-terminal"] * 3
    assert app.get(job.id).record == done


def test_a_job_that_somebody_else_runs_is_already_claimed(app: Holdfast, add: JobFunction[[int], int]) -> None:
    job = add.enqueue(1)
    app.store.claim(Claim("ada", "lease", app.settings.lease, 1))
    held = app.get(job.id).record
    assert app.process(app.envelope(job.id)) == "already-claimed"
    assert app.get(job.id).record == held


def test_a_delivery_while_the_handler_runs_is_already_claimed(app: Holdfast) -> None:
    answers: list[str] = []

    @app.job
    def nested(ctx: Context) -> None:
        envelope = app.envelope(ctx.job_id)
        other = threading.Thread(target=lambda: answers.append(app.process(envelope)))
        other.start()
        other.join()

    job = nested.enqueue()
    assert app.process(app.envelope(job.id)) == "claimed"
    assert answers == ["already-claimed"]


def test_a_job_that_is_not_due_is_not_run(app: Holdfast, add: JobFunction[[int], int], clock: ManualClock) -> None:
    job = add.using(run_after=60).enqueue(1)
    before = job.record
    assert app.process(app.envelope(job.id)) == "already-claimed"
    assert app.get(job.id).record == before
    clock.advance(seconds=60)
    assert app.process(app.envelope(job.id)) == "claimed"


def test_a_delivery_of_an_attempt_that_is_yet_to_come_is_not_run(app: Holdfast, add: JobFunction[[int], int]) -> None:
    job = add.enqueue(1)
    ahead = {**app.envelope(job.id), "attempt": 2}
    assert app.process(ahead) == "already-claimed"
    assert app.get(job.id).attempt == 0


@pytest.mark.parametrize("shape", [dict, json.dumps, lambda sent: json.dumps(sent).encode()])
def test_an_envelope_may_come_as_a_mapping_as_text_or_as_bytes(
    app: Holdfast, add: JobFunction[[int], int], shape: Any
) -> None:
    envelope = {**app.envelope(add.enqueue(1).id), "priority": "an extension"}
    assert app.process(shape(envelope)) == "claimed"


def test_a_delivery_of_nothing_is_told_so(app: Holdfast, add: JobFunction[[int], int]) -> None:
    envelope = {**app.envelope(add.enqueue(1).id), "job_id": str(uuid.UUID(int=7))}
    with pytest.raises(JobNotFound, match="There is no job 00000000-0000-0000-0000-000000000007"):
        app.process(envelope)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": 2}, "The envelope has version 2; only version 1 is understood"),
        ({"v": "1"}, "The envelope has version '1'"),
        ({"job_id": "7"}, "The envelope's job_id must be a UUID, not '7'"),
        ({"attempt": 0}, "The envelope's attempt must be a whole number of at least 1, not 0"),
        ({"attempt": True}, "The envelope's attempt must be a whole number"),
        ({"max_attempts": "5"}, "The envelope's max_attempts must be a whole number"),
        ({"trigger_type": "cron"}, "The envelope's trigger_type 'cron' is unknown"),
        ({"workspace_id": None}, "The envelope's workspace_id must be text"),
    ],
    ids=repr,
)
def test_an_envelope_that_is_wrong_in_a_field_changes_nothing(
    app: Holdfast, add: JobFunction[[int], int], change: dict[str, Any], said: str
) -> None:
    job = add.enqueue(1)
    with pytest.raises(BadEnvelope, match=said):
        app.process({**app.envelope(job.id), **change})
    assert app.get(job.id).record == job.record


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        (b"\xff", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ("{}", "The envelope lacks v, job_id, workspace_id, trigger_type, attempt and max_attempts"),
        ("[" * 100_000, "is not JSON"),
        (5, "is not a JSON object"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_envelope_is_refused(app: Holdfast, body: Any, said: str) -> None:
    with pytest.raises(BadEnvelope, match=said):
        app.process(body)


def test_every_outcome_of_a_handler_is_recorded(app: Holdfast, clock: ManualClock) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raised: dict[str, BaseException] = {
        "timeout_error": TimeoutError("secret"),
        "unprintable": Unprintable(),
        "system_exit": SystemExit(1),
        "keyboard_interrupt": KeyboardInterrupt(),
        "bad_document": Permanent("not a document", code="bad_document"),
        "value_error": ValueError("secret"),
        "none": Snooze(30),
    }

    @app.job(permanent=(ValueError,), retry=Retry.fixed(1))
    def work(code: str) -> None:
        raise raised[code]

    outcomes = {}
    for code in raised:
        job = work.enqueue(code)
        assert app.process(app.envelope(job.id)) == "claimed"
        job.refresh()
        outcomes[code] = (job.state, job.cause, job.attempt, job.failure and job.failure.code)
        assert "secret" not in repr(job.failure)
    assert outcomes == {
        "timeout_error": ("retrying", None, 1, "timeout_error"),
        "unprintable": ("retrying", None, 1, "unprintable"),
        "system_exit": ("retrying", None, 1, "system_exit"),
        "keyboard_interrupt": ("retrying", None, 1, "keyboard_interrupt"),
        "bad_document": ("dead", "rejected", 1, "bad_document"),
        "value_error": ("dead", "rejected", 1, "value_error"),
        "none": ("retrying", None, 0, None),
    }


def test_a_result_that_is_no_json_is_a_failure(app: Holdfast) -> None:
    @app.job
    def bad() -> object:
        return object()

    job = bad.enqueue()
    app.process(app.envelope(job.id))
    assert (job.refresh().state, job.cause, job.failure and job.failure.code) == ("dead", "rejected", "bad_result")


def test_an_async_handler_runs_too(app: Holdfast) -> None:
    @app.job
    async def later(a: int) -> int:
        return await asyncio.sleep(0, a)

    job = later.enqueue(7)
    assert app.process(app.envelope(job.id)) == "claimed"
    assert job.result() == 7


def test_a_kind_nobody_knows_waits_for_a_deployment_and_then_is_rejected(app: Holdfast, clock: ManualClock) -> None:
    (job,) = app.enqueue_many([Prepared(NewJob("elsewhere", "{}"))])
    assert app.process(app.envelope(job.id)) == "claimed"
    assert (job.refresh().state, job.attempt) == ("retrying", 0)
    clock.advance(seconds=60)
    assert app.process(app.envelope(job.id)) == "claimed"
    assert (job.refresh().state, job.cause, job.failure and job.failure.code) == ("dead", "rejected", "unknown_kind")


def test_a_delivery_whose_worker_was_too_slow_settles_nothing(
    app: Holdfast, clock: ManualClock, add: JobFunction[[int], int]
) -> None:
    @app.job
    def slow(ctx: Context) -> None:
        clock.advance(seconds=15)
        upkeep.reap(app.store, app.settings)
        app.store.claim(Claim("bob", "another lease", app.settings.lease, 1, id=str(ctx.job_id)))

    job = slow.enqueue()
    assert app.process(app.envelope(job.id)) == "claimed"
    assert (job.refresh().state, job.attempt) == ("running", 2)
    assert job.lease is not None
    assert job.lease.owner == "bob"


def test_a_job_that_kills_whoever_processes_it_is_found_out(
    app: Holdfast, clock: ManualClock, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "settle", lambda *_: None)
    job = add.enqueue(1)
    for _ in range(10):
        app.process(app.envelope(job.id))
        clock.advance(seconds=15)
        upkeep.reap(app.store, app.settings)
    assert (job.refresh().state, job.cause) == ("dead", "crashed")
