"""Seed 003: explicit transitions, three retries a second apart, and errors that are classified."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import IllegalMove, Job, JobFunction, Permanent, Prepared, Retry
from holdfast.domain import lifecycle
from holdfast.domain.dialects import DIALECTS, Either
from holdfast.domain.job import Failure, NewJob, State
from holdfast.domain.move import LEGAL, TRANSITIONS, Verb
from holdfast.runtime import upkeep
from tests.seeds.scene import TRANSIENT, Scene

VALID = {
    ("CREATED", "QUEUED"),
    ("QUEUED", "RUNNING"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "RETRYING"),
    ("RETRYING", "QUEUED"),
    ("QUEUED", "FAILED"),
}
POLICY = Retry.fixed(1, retries=3)
INVALID_DOCUMENT = Failure("invalid_document", "not a document", retryable=False)


class Document(BaseModel):
    pages: int


@pytest.fixture
def process(scene: Scene) -> JobFunction[[int], int]:
    @scene.app.job(retry=POLICY)
    def process(pages: int) -> int:
        return pages

    return process


def created(scene: Scene) -> Job[Any]:
    new = NewJob("process", '{"pages":1}', retry=POLICY.spec, max_attempts=4, state=State.CREATED)
    (job,) = scene.app.enqueue_many([Prepared(new)])
    return job


class Walk:
    """The states a job has been in, in the seed's words, each written down when it changes."""

    def __init__(self, scene: Scene, job: Job[Any]) -> None:
        self._scene = scene
        self._job = job
        self.states = [scene.status("lifecycle", job)]

    def look(self) -> str:
        state = self._scene.status("lifecycle", self._job)
        if state != self.states[-1]:
            self.states.append(state)
        return state


def test_successful_processing(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = created(scene)
    walk = Walk(scene, job)
    scene.clock.advance(seconds=5)
    upkeep.resubmit(scene.app.store)
    walk.look()
    (held,) = scene.claim("worker-1")
    walk.look()
    scene.complete(held)
    walk.look()
    assert walk.states == ["CREATED", "QUEUED", "RUNNING", "SUCCEEDED"]


def test_failure_with_successful_retry(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    walk = Walk(scene, job)
    for last in (False, True):
        (held,) = scene.claim("worker-1")
        walk.look()
        assert (scene.complete if last else scene.fail)(held) == "ok"
        walk.look()
        scene.clock.advance(seconds=1)
        walk.look()
    assert walk.states == ["QUEUED", "RUNNING", "RETRYING", "QUEUED", "RUNNING", "SUCCEEDED"]
    assert scene.tell("lifecycle", job)["retryCount"] == 1


def test_failure_exhausting_retries(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    walk = Walk(scene, job)
    counted = []
    while walk.look() not in {"FAILED", "SUCCEEDED"}:
        (held,) = scene.claim("worker-1")
        walk.look()
        counted.append(scene.tell("lifecycle", job)["retryCount"])
        scene.fail(held)
        walk.look()
        scene.clock.advance(seconds=1)
    again = ["RUNNING", "RETRYING", "QUEUED"]
    assert walk.states == ["QUEUED", *again * 3, "RUNNING", "FAILED"]
    assert counted == [0, 1, 2, 3]
    assert scene.claim("worker-1") == []


def test_non_retryable_failure(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    walk = Walk(scene, job)
    (held,) = scene.claim("worker-1")
    walk.look()
    scene.fail(held, INVALID_DOCUMENT)
    walk.look()
    assert walk.states == ["QUEUED", "RUNNING", "FAILED"]
    assert scene.tell("lifecycle", job)["retryCount"] == 0


def test_a_queued_job_fails_by_cancellation_or_when_its_time_is_up(
    scene: Scene, process: JobFunction[[int], int]
) -> None:
    cancelled, expired = process.enqueue(1), process.using(expires_after=1).enqueue(1)
    walks = [Walk(scene, cancelled), Walk(scene, expired)]
    cancelled.cancel()
    scene.clock.advance(seconds=1)
    scene.reap()
    for walk in walks:
        walk.look()
        assert walk.states == ["QUEUED", "FAILED"]


def words(state: State) -> set[str]:
    """Every word the seed has for a state."""
    word = DIALECTS["lifecycle"].statuses[state]
    return {word.then, word.otherwise} if isinstance(word, Either) else {word}


def test_every_transition_there_is_follows_the_seeds_table() -> None:
    """Time alone makes RETRYING read QUEUED, so a store's own steps are the rest; redrive is an operator's verb, and
    a job that stays in its state (it was sent a signal, put off, or goes on running) makes no transition.
    """
    for old, new in TRANSITIONS - {(State.DEAD, State.QUEUED)} - {(state, state) for state in State}:
        told = {(a, b) for a in words(old) for b in words(new) if a != b}
        assert told & (VALID | {("CREATED", "FAILED"), ("RETRYING", "FAILED")}), (old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (State.QUEUED, State.CREATED),
        (State.RUNNING, State.CREATED),
        (State.SUCCEEDED, State.QUEUED),
        (State.RUNNING, State.QUEUED),
        (State.CREATED, State.RUNNING),
        (State.CANCELLED, State.QUEUED),
        *((end, new) for end in (State.SUCCEEDED, State.CANCELLED) for new in State),
    ],
)
def test_no_invalid_transition_is_in_the_table(old: State, new: State) -> None:
    assert (old, new) not in TRANSITIONS


def test_invalid_transitions_are_refused_and_change_nothing(scene: Scene, process: JobFunction[[int], int]) -> None:
    retention = scene.app.settings.retention
    verbs: dict[Verb, Any] = {
        Verb.SUBMIT: lifecycle.submit,
        Verb.START: lifecycle.start,
        Verb.COMPLETE: lambda job: lifecycle.complete(job, None, retention),
        Verb.FAIL: lambda job: lifecycle.fail(job, TRANSIENT, draw=0, retention=retention),
        Verb.RELEASE: lifecycle.release,
        Verb.CANCEL: lambda job: lifecycle.cancel(job, retention),
        Verb.REDRIVE: lifecycle.redrive,
    }
    succeeded = process.enqueue(1)
    scene.deliver(succeeded)
    for job in (created(scene), process.enqueue(1), succeeded, process.enqueue(1).cancel()):
        record = scene.record(job)
        before = scene.row(job)
        for verb, decide in verbs.items():
            if record.state not in LEGAL[verb]:
                with pytest.raises(IllegalMove, match=f"A job that is {record.state} cannot {verb}"):
                    decide(record)
        assert scene.row(job) == before


def test_a_created_job_must_go_through_queued(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = created(scene)
    assert scene.claim("worker-1", 10) == []
    assert scene.deliver(job) == "already-claimed"
    assert scene.status("lifecycle", job) == "CREATED"


def test_a_lost_worker_leads_to_retrying_and_never_straight_back_to_queued(
    scene: Scene, process: JobFunction[[int], int]
) -> None:
    job = process.enqueue(1)
    scene.claim("worker-1")
    scene.clock.advance(seconds=15)
    scene.reap()
    assert scene.record(job).state is State.RETRYING
    assert scene.tell("lifecycle", job)["errorType"] == "RETRYABLE"


@pytest.mark.parametrize(
    "error", [ConnectionError(), TimeoutError(), OSError("queue overload"), RuntimeError()], ids=repr
)
def test_retryable_failures_are_retried(scene: Scene, error: Exception) -> None:
    @scene.app.job(retry=POLICY)
    def process() -> None:
        raise error

    job = process.enqueue()
    scene.deliver(job)
    row = scene.tell("lifecycle", job)
    assert (row["state"], row["errorType"], row["completedAt"]) == ("RETRYING", "RETRYABLE", None)
    assert re.match(r"\w+: \w+ raised in process, line \d+ of \w+\.py", row["lastError"])


def test_non_retryable_failures_are_not(scene: Scene) -> None:
    @scene.app.job(retry=POLICY, permanent=(ValueError,))
    def process(document: Document, what: str) -> Any:
        match what:
            case "unsupported format":
                raise Permanent(what, code="unsupported_format")
            case "configuration error":
                raise ValueError(what)
            case _:
                return "x" * scene.app.max_payload

    whats = {
        "unsupported format": "unsupported_format",
        "configuration error": "value_error",
        "resource limits exceeded": "bad_result",
    }
    jobs = {process.enqueue(Document(pages=1), what): code for what, code in whats.items()}
    jobs[scene.app.enqueue_many([Prepared(NewJob("process", '{"document": {"pages": "many"}}'))])[0]] = "bad_payload"
    for job, code in jobs.items():
        assert scene.deliver(job) == "claimed"
        row = scene.tell("lifecycle", job)
        assert (row["state"], row["errorType"], row["retryCount"]) == ("FAILED", "TERMINAL", 0)
        assert row["lastError"].startswith(f"{code}: ")
        assert row["completedAt"] is not None
        assert scene.deliver(job) == "no-op-terminal"


def test_the_backoff_is_a_fixed_second(scene: Scene, process: JobFunction[[int], int]) -> None:
    process.enqueue(1)
    for _ in range(3):
        (held,) = scene.claim("worker-1")
        scene.fail(held)
        scene.clock.advance(milliseconds=999)
        assert scene.claim("worker-1") == []
        scene.clock.advance(milliseconds=1)
    assert len(scene.claim("worker-1")) == 1


def test_every_job_carries_its_metadata(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    created_at = "2026-01-01T00:00:00.000000+00:00"
    assert scene.tell("lifecycle", job) == {
        "jobId": str(job.id),
        "state": "QUEUED",
        "createdAt": created_at,
        "startedAt": None,
        "completedAt": None,
        "retryCount": 0,
        "maxRetries": 3,
        "lastError": None,
        "errorType": None,
    }
    scene.clock.advance(seconds=1)
    (held,) = scene.claim("worker-1")
    scene.fail(held)
    failed = scene.tell("lifecycle", job)
    assert failed["startedAt"] == "2026-01-01T00:00:01.000000+00:00"
    assert failed["lastError"] == "unavailable: the other side did not answer"
    scene.clock.advance(seconds=1)
    (held,) = scene.claim("worker-1")
    scene.complete(held)
    done = scene.tell("lifecycle", job)
    assert (done["lastError"], done["errorType"]) == (None, None)
    assert (done["jobId"], done["createdAt"], done["startedAt"]) == (str(job.id), created_at, failed["startedAt"])
    assert done["completedAt"] == "2026-01-01T00:00:02.000000+00:00"


def test_no_duplicate_processing_once_running(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    (held,) = scene.claim("worker-1")
    for _ in range(10):
        scene.clock.advance(seconds=10)
        assert scene.heartbeat(held) == "ok"
        assert (scene.reap(), scene.claim("worker-2", 10), scene.deliver(job)) == (0, [], "already-claimed")


def test_terminal_states_are_permanent(scene: Scene, process: JobFunction[[int], int]) -> None:
    done, failed = process.enqueue(1), process.enqueue(1)
    scene.deliver(done)
    (held,) = scene.claim("worker-1")
    scene.fail(held, INVALID_DOCUMENT)
    before = scene.row(done), scene.row(failed)
    scene.clock.advance(days=1)
    for job in (done, failed):
        assert scene.deliver(job) == "no-op-terminal"
        scene.app.cancel(job.id)
    assert (scene.claim("worker-2", 10), scene.reap()) == ([], 0)
    assert (scene.row(done), scene.row(failed)) == before


def test_no_job_is_orphaned_however_often_its_worker_dies(scene: Scene, process: JobFunction[[int], int]) -> None:
    job = process.enqueue(1)
    deaths = 0
    while claimed := scene.claim("worker-1"):
        deaths += 1
        scene.heartbeat(claimed[0])
        scene.clock.advance(seconds=15)
        scene.reap()
    assert scene.status("lifecycle", job) == "FAILED"
    assert deaths == 3
