"""Keeping and losing leases: heartbeats, abandoned owners, and what reaping decides."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import lifecycle
from holdfast.domain.job import Cause, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer
from holdfast.port.store import Beat
from holdfast.testing.lab import DELAY, FLAKY, LEASE, RETENTION, Lab


def a_heartbeat_extends_the_lease_as_the_lifecycle_says(lab: Lab) -> None:
    job = lab.running()
    for begun in (False, True, True, False):
        lab.clock.advance(seconds=7)
        assert lab.beat(job, lease=9 * SECOND, begun=begun) is Answer.OK
        expected = lifecycle.beat(job, lease=9 * SECOND, begun=begun, now=lab.clock.now())
        job = lab.read(job)
        assert job == expected


def a_heartbeat_keeps_the_first_time_the_handler_began(lab: Lab) -> None:
    job = lab.running()
    assert lab.beat(job, begun=True) is Answer.OK
    began = lab.clock.now()
    lab.clock.advance(seconds=1)
    assert lab.beat(job, begun=True) is Answer.OK
    assert lab.read(job).begun_at == began


def a_heartbeat_may_still_save_a_lease_that_nobody_reaped(lab: Lab) -> None:
    job = lab.running()
    lab.lapse()
    assert lab.beat(job) is Answer.OK
    assert lab.store.expired(10) == []


def a_heartbeat_tells_of_a_requested_cancellation_and_extends(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.cancel(job, RETENTION))
    lab.clock.advance(seconds=5)
    assert lab.beat(job) is Answer.CANCEL_REQUESTED
    assert lab.read(job).lease_expires_at == lab.clock.now() + LEASE


def a_stale_heartbeat_changes_nothing(lab: Lab) -> None:
    old = lab.running(crash_cap=9)
    lab.lapse()
    [lost] = lab.reap()
    assert lab.beat(old, begun=True) is Answer.ALREADY_CLAIMED
    assert lab.read(old) == lost
    new = lab.take(lost)
    assert lab.beat(old, begun=True) is Answer.ALREADY_CLAIMED
    for token, lease_id in ((new.token, "x"), (new.token + 1, str(new.lease_id)), (old.token, str(new.lease_id))):
        assert lab.store.heartbeat([Beat(new.id, token, lease_id, begun=True)], LEASE) == [Answer.ALREADY_CLAIMED]
    assert lab.read(old) == new
    done = lab.done(lifecycle.complete(new, None, RETENTION))
    assert lab.beat(old) is Answer.NO_OP_TERMINAL
    assert lab.beat(new) is Answer.NO_OP_TERMINAL
    assert lab.read(old) == done


def many_heartbeats_are_answered_one_by_one(lab: Lab) -> None:
    lab.jobs(4)
    jobs = lab.claim(4)
    lab.done(lifecycle.cancel(jobs[1], RETENTION))
    lab.done(lifecycle.complete(jobs[2], None, RETENTION))
    lab.clock.advance(seconds=1)
    beats = [Beat(job.id, job.token, str(job.lease_id), begun=False) for job in jobs]
    beats.insert(2, Beat(lab.ids.take(1)[0], 1, "x", begun=False))
    answers = lab.store.heartbeat(beats, LEASE)
    assert answers == [Answer.OK, Answer.CANCEL_REQUESTED, Answer.ABSENT, Answer.NO_OP_TERMINAL, Answer.OK]


def a_holder_settles_by_its_token_after_heartbeats(lab: Lab) -> None:
    job = lab.running()
    lab.beat(job)
    lab.beat(job)
    assert lab.done(lifecycle.complete(job, None, RETENTION)).version == job.version + 3


def a_lease_is_expired_from_its_last_moment_on(lab: Lab) -> None:
    job = lab.running()
    lab.clock.advance(microseconds=LEASE - 1)
    assert lab.store.expired(10) == []
    lab.clock.advance(microseconds=1)
    assert lab.store.expired(10) == [job]


def expired_lists_no_more_than_asked_for(lab: Lab) -> None:
    lab.jobs(5)
    lab.claim(3)
    lab.clock.advance(seconds=1)
    lab.jobs(2, expires_after=SECOND)
    lab.lapse()
    assert len(lab.store.expired(4)) == 4
    assert len(lab.store.expired(99)) == 5
    assert lab.store.expired(0) == []


def a_lost_lease_is_retried_at_once(lab: Lab) -> None:
    job = lab.running()
    lab.lapse()
    [lost] = lab.reap()
    assert (lost.state, lost.failure_code, lost.attempt, lost.crashes) == (State.RETRYING, "lease_expired", 1, 1)
    assert lost.available_at == lab.clock.now()
    assert [attempt.outcome for attempt in lab.store.attempts(job.id)] == ["reap"]
    assert lab.take(lost).attempt == 2


def the_last_lost_lease_ends_a_job_as_exhausted(lab: Lab) -> None:
    job = lab.running(max_attempts=1)
    lab.done(lifecycle.start(job))
    lab.lapse()
    [dead] = lab.reap()
    assert (dead.state, dead.cause, dead.purge_at) == (State.DEAD, Cause.EXHAUSTED, lab.clock.now() + RETENTION.dead)


def a_crash_loop_is_ended_before_the_attempts_are(lab: Lab) -> None:
    job = lab.job(max_attempts=9, crash_cap=3)
    for crashes in (1, 2, 3):
        claimed = lab.take(job)
        lab.beat(claimed, begun=True)
        lab.lapse()
        [job] = lab.reap()
        assert job.crashes == crashes
    assert (job.state, job.cause, job.attempt) == (State.DEAD, Cause.CRASHED, 3)
    assert len(lab.store.attempts(job.id)) == 3


def a_recorded_failure_ends_the_crash_count(lab: Lab) -> None:
    job = lab.job(max_attempts=9, crash_cap=2)
    lab.take(job)
    lab.lapse()
    [job] = lab.reap()
    job = lab.done(lifecycle.fail(lab.take(job), FLAKY, draw=0, retention=RETENTION))
    assert job.crashes == 0
    lab.clock.advance(microseconds=DELAY)
    lab.take(job)
    lab.lapse()
    assert [lost.state for lost in lab.reap()] == [State.RETRYING]


def a_bystander_of_a_crash_gets_its_attempt_back(lab: Lab) -> None:
    job = lab.job(max_attempts=2, crash_cap=9)
    lab.take(job)
    lab.lapse()
    [job] = lab.reap()
    for _ in range(3):
        lab.take(job)
        lab.lapse()
        [job] = lab.reap()
        assert (job.state, job.attempt, job.crashes) == (State.RETRYING, 1, 1), "its start was never recorded"
    lab.done(lifecycle.start(lab.take(job)))
    lab.lapse()
    [job] = lab.reap()
    assert (job.state, job.cause, job.attempt) == (State.DEAD, Cause.EXHAUSTED, 2)


def a_waiting_job_past_its_time_is_expired_and_reaped(lab: Lab) -> None:
    queued = lab.job(expires_after=SECOND)
    retrying = lab.in_state(State.RETRYING, expires_after=2 * SECOND)
    lab.clock.advance(seconds=2)
    assert sorted(job.id for job in lab.store.expired(10)) == sorted([queued.id, retrying.id])
    for dead in lab.reap():
        assert (dead.state, dead.cause, dead.failure_code) == (State.DEAD, Cause.EXPIRED, "expired")
    assert lab.store.expired(10) == []


def a_created_job_past_its_time_is_left_to_upkeep(lab: Lab) -> None:
    job = lab.job(state=State.CREATED, expires_after=SECOND)
    lab.clock.advance(seconds=2)
    assert lab.store.expired(10) == []
    lab.done(lifecycle.submit(job))
    assert [late.id for late in lab.store.expired(10)] == [job.id]


def a_lost_lease_of_a_cancelled_job_ends_it(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.cancel(job, RETENTION))
    lab.lapse()
    [ended] = lab.reap()
    assert (ended.state, ended.purge_at) == (State.CANCELLED, lab.clock.now() + RETENTION.cancelled)


def abandoning_ends_the_leases_of_that_owner_alone(lab: Lab) -> None:
    lab.jobs(4)
    dead = lab.claim(2, owner="dead")
    alive = lab.claim(1, owner="alive")
    lab.clock.advance(seconds=1)
    expected = [lifecycle.beat(job, lease=0, begun=False, now=lab.clock.now()) for job in dead]
    assert lab.store.abandon("dead") == 2
    assert [lab.read(job) for job in dead] == expected
    assert sorted(lab.store.expired(10)) == sorted(expected)
    assert lab.read(alive[0]) == alive[0]
    assert lab.store.abandon("nobody") == 0


def abandoning_passes_over_what_the_owner_no_longer_holds(lab: Lab) -> None:
    done = lab.done(lifecycle.complete(lab.running(), None, RETENTION))
    failed = lab.in_state(State.RETRYING)
    assert lab.store.abandon("ada") == 0
    assert [lab.read(job) for job in (done, failed)] == [done, failed]


def an_abandoned_owner_that_lives_may_still_settle(lab: Lab) -> None:
    job = lab.running()
    lab.store.abandon("ada")
    assert lab.done(lifecycle.complete(job, None, RETENTION)).state is State.SUCCEEDED
