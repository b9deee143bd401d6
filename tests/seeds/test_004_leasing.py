"""Seed 004: leases, order, the reaper, the dead letter queue, and at-least-once execution."""

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Job, JobFunction, KeyConflict, Retry
from holdfast.domain.job import JobRecord
from holdfast.port.store import Claim
from tests.seeds.scene import Scene

START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


@pytest.fixture
def work(scene: Scene) -> JobFunction[[int], int]:
    @scene.app.job(retry=Retry.exponential(base=2, jitter=0.1, max_attempts=5), crash_cap=5)
    def work(n: int = 0) -> int:
        return n

    return work


def at(text: str) -> timedelta:
    """Give a time of the record, counted from the start."""
    return datetime.fromisoformat(text) - START


def test_a_claim_leases_a_pending_job(scene: Scene, work: JobFunction[..., int]) -> None:
    job = work.enqueue()
    pending = scene.tell("leasing", job)
    assert (pending["status"], pending["token"], pending["expires_at"]) == ("PENDING", None, None)
    (held,) = scene.claim("worker-1")
    leased = scene.tell("leasing", job)
    assert (leased["status"], leased["started_at"]) == ("LEASED", None)
    assert leased["token"] == str(held.lease)
    assert leased["expires_at"] == leased["available_at"]
    assert at(leased["expires_at"]) == timedelta(seconds=15)
    scene.heartbeat(held)
    running = scene.tell("leasing", job)
    assert (running["status"], at(running["started_at"])) == ("RUNNING", timedelta(0))
    scene.complete(held)
    done = scene.tell("leasing", job)
    assert (done["status"], done["token"], done["expires_at"]) == ("SUCCEEDED", None, None)


def test_a_job_is_claimed_only_once_its_available_at_has_come(scene: Scene, work: JobFunction[..., int]) -> None:
    work.using(run_after=10).enqueue()
    scene.clock.advance(seconds=10, microseconds=-1)
    assert scene.claim("worker-1") == []
    scene.clock.advance(microseconds=1)
    assert len(scene.claim("worker-1")) == 1


def test_only_one_worker_can_claim_a_job(scene: Scene, work: JobFunction[..., int]) -> None:
    scene.app.enqueue_many([work.prepare(n) for n in range(60)])
    apps = [scene.app, *(scene.another() for _ in range(5))]
    start = threading.Barrier(len(apps))
    claimed: list[JobRecord] = []

    def race(number: int) -> None:
        store = apps[number].store
        start.wait()
        while batch := store.claim(Claim(f"worker-{number}", f"lease-{number}", scene.app.settings.lease, 4)):
            assert len(batch) <= 4
            claimed.extend(batch)

    racers = [threading.Thread(target=race, args=(n,)) for n in range(len(apps))]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(claimed) == len({job.id for job in claimed}) == 60
    assert scene.app.counts()["running"] == 60


def test_priority_goes_before_promptness_and_promptness_before_age(scene: Scene, work: JobFunction[..., int]) -> None:
    late = work.using(run_after=2).enqueue()
    first_born = work.using(run_after=1).enqueue()
    second_born = work.using(run_after=1).enqueue()
    urgent_but_late = work.using(priority=9, run_after=3).enqueue()
    unimportant = work.using(priority=-1).enqueue()
    scene.clock.advance(seconds=3)
    order = [urgent_but_late, first_born, second_born, late, unimportant]
    assert [job.id for job in scene.claim("worker-1", 10)] == [str(job.id) for job in order]


def test_different_workers_get_different_jobs_in_one_order(scene: Scene, work: JobFunction[..., int]) -> None:
    jobs = [work.using(priority=priority).enqueue() for priority in (1, 3, 2)]
    got = [scene.claim(f"worker-{n}")[0].id for n in range(3)]
    assert got == [str(jobs[n].id) for n in (1, 2, 0)]


def test_a_failure_goes_back_to_pending_after_an_exponential_delay_with_jitter(scene: Scene) -> None:
    @scene.app.job(retry=Retry.exponential(base=2, jitter=0.1, max_attempts=5))
    def fails() -> None:
        raise TimeoutError

    jobs = [fails.enqueue() for _ in range(20)]
    for delay in (2, 4, 8, 16):
        failed_at = scene.clock.now()
        for job in jobs:
            assert scene.deliver(job) == "claimed"
            assert scene.status("leasing", job) == "FAILED_RETRYABLE"
        waits = [(scene.record(job).available_at - failed_at) / 1_000_000 for job in jobs]
        assert all(delay <= wait <= delay * 1.1 for wait in waits)
        assert len(set(waits)) > 1, "the jitter is added, so that retries do not come all at once"
        scene.clock.advance(seconds=delay * 1.1)
        assert {scene.status("leasing", job) for job in jobs} == {"PENDING"}


def fail_until_dead(scene: Scene, job: Job[Any]) -> int:
    attempts = 0
    while scene.status("leasing", job) != "DLQ":
        (held,) = scene.claim("worker-1", job=job)
        scene.fail(held)
        attempts += 1
        scene.clock.advance(minutes=1)
    return attempts


def test_a_job_that_fails_max_attempts_times_is_in_the_dlq_and_blocks_nobody(
    scene: Scene, work: JobFunction[..., int]
) -> None:
    dead, other = work.using(priority=9).enqueue(), work.enqueue()
    assert fail_until_dead(scene, dead) == 5
    row = scene.tell("leasing", dead)
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("DLQ", 5, 5)
    assert [job.id for job in scene.claim("worker-1", 10)] == [str(other.id)]
    assert scene.app.find(state="dead") == [dead]
    assert [attempt.code for attempt in scene.app.attempts(dead.id)] == ["unavailable"] * 5


def test_the_dlq_can_be_re_driven_to_pending(scene: Scene, work: JobFunction[..., int]) -> None:
    jobs = [work.enqueue() for _ in range(3)]
    for job in jobs:
        fail_until_dead(scene, job)
    assert scene.app.redrive(jobs[0].id).state == "queued"
    row = scene.tell("leasing", jobs[0])
    assert (row["status"], row["attempts"]) == ("PENDING", 0)
    assert scene.app.redrive(kind="work", error_code="unavailable") == 2
    assert [scene.deliver(job) for job in jobs] == ["claimed"] * 3
    assert {scene.status("leasing", job) for job in jobs} == {"SUCCEEDED"}


def test_re_driving_twice_opens_one_new_generation(scene: Scene, work: JobFunction[..., int]) -> None:
    job = work.enqueue()
    fail_until_dead(scene, job)
    apps = [scene.app, *(scene.another() for _ in range(3))]
    start = threading.Barrier(len(apps))

    def redrive(n: int) -> None:
        start.wait()
        apps[n].redrive(job.id)

    racers = [threading.Thread(target=redrive, args=(n,)) for n in range(len(apps))]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert (job.refresh().generation, job.state) == (2, "queued")


def test_the_reaper_takes_back_zombie_leases_and_only_those(scene: Scene, work: JobFunction[..., int]) -> None:
    zombie, alive = work.enqueue(), work.enqueue()
    scene.claim("dead worker", job=zombie)
    (held,) = scene.claim("live worker", job=alive)
    scene.clock.advance(seconds=15, microseconds=-1)
    assert scene.reap() == 0
    scene.heartbeat(held)
    scene.clock.advance(microseconds=1)
    assert scene.reap() == 1
    row = scene.tell("leasing", zombie)
    assert (row["status"], row["attempts"], row["token"]) == ("PENDING", 1, None)
    assert scene.status("leasing", alive) == "RUNNING"
    assert [job.id for job in scene.claim("another worker", 10)] == [str(zombie.id)]
    assert scene.tell("leasing", zombie)["attempts"] == 2


def test_execution_is_at_least_once_and_the_late_worker_cannot_overwrite(
    scene: Scene, work: JobFunction[..., int]
) -> None:
    job = work.enqueue()
    (partitioned,) = scene.claim("partitioned worker")
    scene.clock.advance(seconds=15)
    scene.reap()
    (second,) = scene.claim("second worker")
    assert second.token > partitioned.token
    before = scene.row(job)
    assert (scene.complete(partitioned), scene.fail(partitioned)) == ("already-claimed", "already-claimed")
    assert scene.row(job) == before
    assert scene.complete(second) == "ok"
    assert scene.status("leasing", job) == "SUCCEEDED"


def test_no_job_is_lost_when_every_worker_crashes(scene: Scene, work: JobFunction[..., int]) -> None:
    jobs = scene.app.enqueue_many([work.prepare(n) for n in range(20)])
    assert len(scene.claim("doomed worker", 20)) == 20
    scene.clock.advance(seconds=15)
    assert scene.reap() == 20
    assert {scene.status("leasing", job) for job in jobs} == {"PENDING"}
    assert len(scene.claim("next worker", 20)) == 20


def test_a_job_that_kills_its_worker_ends_in_the_dlq(scene: Scene, work: JobFunction[..., int]) -> None:
    job = work.enqueue()
    while claimed := scene.claim("doomed worker"):
        scene.heartbeat(claimed[0])
        scene.clock.advance(seconds=15)
        scene.reap()
    assert scene.status("leasing", job) == "DLQ"
    assert [attempt.code for attempt in scene.app.attempts(job.id)] == ["lease_expired"] * 5


def test_a_canceled_job_is_not_claimed(scene: Scene, work: JobFunction[..., int]) -> None:
    job = work.enqueue().cancel()
    assert scene.status("leasing", job) == "CANCELED"
    assert scene.claim("worker-1", 10) == []


def test_a_job_canceled_while_it_runs_is_settled_by_its_worker_or_by_the_reaper(
    scene: Scene, work: JobFunction[..., int]
) -> None:
    asked, lost = work.enqueue(), work.enqueue()
    (held,) = scene.claim("worker-1", job=asked)
    scene.claim("lost worker", job=lost)
    for job in (asked, lost):
        job.cancel()
        assert scene.status("leasing", job) == "LEASED"
    assert scene.heartbeat(held) == "cancel-requested"
    assert scene.fail(held) == "cancel-requested"
    scene.clock.advance(seconds=15)
    scene.reap()
    assert {scene.status("leasing", job) for job in (asked, lost)} == {"CANCELED"}


def test_creation_is_idempotent_by_its_key(scene: Scene, work: JobFunction[..., int]) -> None:
    first = work.using(key="order-7", tenant="acme").enqueue(7)
    again = work.using(key="order-7", tenant="acme").enqueue(7)
    assert (again.id, again.duplicate) == (first.id, True)
    assert scene.tell("leasing", again)["idempotency_key"] == "order-7"
    with pytest.raises(KeyConflict):
        work.using(key="order-7", tenant="acme").enqueue(8)
    assert scene.app.counts().total == 1
