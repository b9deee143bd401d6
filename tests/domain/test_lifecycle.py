"""The lifecycle is total: every pair of state and verb is a transition or an IllegalMove."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from holdfast.domain import history, lifecycle, moving
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import MOVING, TERMINAL, WAITING, Cause, Failure, Flow, JobRecord, Retention, State
from holdfast.domain.moments import DAY, MINUTE, SECOND
from holdfast.domain.move import LEGAL, TRANSITIONS, Answer, Held, Move, Seen, Verb
from holdfast.domain.moving import Note
from tests.domain.records import FLAKY, HOPELESS, LEASE, NOW, RETENTION, claimed, in_state, made

LATE = NOW + 10 * DAY

CREATED, QUEUED, RUNNING, RETRYING, SUCCEEDED, DEAD, CANCELLED = State
NO: set[State] = set()

TABLE: dict[Verb, tuple[set[State], ...]] = {
    #                CREATED      QUEUED       RUNNING                      RETRYING     SUCC.  DEAD      CANCELLED
    Verb.CREATE:     (NO,          NO,          NO,                          NO,          NO,    NO,       NO),
    Verb.SUBMIT:     ({QUEUED},    NO,          NO,                          NO,          NO,    NO,       NO),
    Verb.CLAIM:      (NO,          {RUNNING},   NO,                          {RUNNING},   NO,    NO,       NO),
    Verb.START:      (NO,          NO,          {RUNNING},                   NO,          NO,    NO,       NO),
    Verb.HEARTBEAT:  (NO,          NO,          {RUNNING},                   NO,          NO,    NO,       NO),
    Verb.CHECKPOINT: (NO,          NO,          {RUNNING},                   NO,          NO,    NO,       NO),
    Verb.COMPLETE:   (NO,          NO,          {SUCCEEDED},                 NO,          NO,    NO,       NO),
    Verb.FAIL:       (NO,          NO,          {RETRYING, DEAD},            NO,          NO,    NO,       NO),
    Verb.RELEASE:    (NO,          NO,          {RETRYING},                  NO,          NO,    NO,       NO),
    Verb.SNOOZE:     (NO,          NO,          {RETRYING},                  NO,          NO,    NO,       NO),
    Verb.REAP:       (NO,          {DEAD},      {RETRYING, DEAD, CANCELLED}, {RETRYING, DEAD}, NO, NO,     NO),
    Verb.CANCEL:     ({CANCELLED}, {CANCELLED}, {RUNNING, RETRYING, CANCELLED}, {RETRYING, CANCELLED}, NO, NO, NO),
    Verb.REDRIVE:    (NO,          NO,          NO,                          NO,          NO,    {QUEUED}, NO),
    Verb.PURGE:      (NO,          NO,          NO,                          NO,          NO,    NO,       NO),
    Verb.SIGNAL:     (NO,          {QUEUED},    {RUNNING},                   {RETRYING},  NO,    NO,       NO),
    Verb.POSTPONE:   (NO,          {QUEUED},    NO,                          NO,          NO,    NO,       NO),
    Verb.UNDO:       (NO,          NO,          {DEAD, CANCELLED},           NO,          NO,    NO,       NO),
    Verb.HOLD:       ({QUEUED},    {QUEUED},    NO,                          {RETRYING},  NO,    {QUEUED}, NO),
    Verb.LEAVE:      (NO,          {CANCELLED}, NO,                          {CANCELLED}, NO,    NO,       NO),
    Verb.ARRIVE:     (NO,          {QUEUED},    NO,                          {RETRYING},  NO,    NO,       NO),
}  # fmt: skip
"""The states each pair may lead to. A purge leads to no state: the job is gone."""
EXPECTED = {verb: dict(zip(State, row, strict=True)) for verb, row in TABLE.items()}

PURGEABLE = {SUCCEEDED, DEAD, CANCELLED}


def moved(decide: Callable[[JobRecord], Move]) -> Callable[[JobRecord], JobRecord]:
    return lambda job: lifecycle.apply(job, decide(job), LATE)


def purged(job: JobRecord) -> None:
    lifecycle.require(job, Verb.PURGE)
    assert lifecycle.purgeable(job, LATE * 2)


def on_its_way(job: JobRecord) -> JobRecord:
    return job._replace(flow=Flow(ending=MOVING))


ACTS: dict[Verb, list[Callable[[JobRecord], JobRecord | None]]] = {
    Verb.CREATE: [lambda job: lifecycle.require(job, Verb.CREATE)],
    Verb.SUBMIT: [moved(lifecycle.submit)],
    Verb.CLAIM: [lambda job: lifecycle.claim(job, lease_id="x", owner="ada", lease=LEASE, now=LATE)],
    Verb.START: [moved(lifecycle.start)],
    Verb.HEARTBEAT: [lambda job: lifecycle.beat(job, lease=LEASE, begun=True, now=LATE)],
    Verb.CHECKPOINT: [moved(lambda job: lifecycle.checkpoint(job, "s", None))],
    Verb.COMPLETE: [moved(lambda job: lifecycle.complete(job, None, RETENTION))],
    Verb.FAIL: [
        moved(lambda job: lifecycle.fail(job, FLAKY, draw=0.5, retention=RETENTION)),
        moved(lambda job: lifecycle.fail(job, HOPELESS, draw=0.5, retention=RETENTION)),
    ],
    Verb.RELEASE: [moved(lifecycle.release)],
    Verb.SNOOZE: [moved(lambda job: lifecycle.snooze(job, SECOND))],
    Verb.REAP: [moved(lambda job: lifecycle.reap(job, LATE, RETENTION))],
    Verb.CANCEL: [
        moved(lambda job: lifecycle.cancel(job, RETENTION)),
        moved(lambda job: lifecycle.settle_cancel(job, RETENTION)),
    ],
    Verb.REDRIVE: [moved(lifecycle.redrive)],
    Verb.PURGE: [purged],
    Verb.SIGNAL: [moved(lambda job: lifecycle.signal(job, "id", "go", None))],
    Verb.POSTPONE: [moved(lambda job: lifecycle.postpone(job, SECOND))],
    Verb.UNDO: [moved(lambda job: lifecycle.undo(job, RETENTION))],
    Verb.HOLD: [moved(lambda job: moving.hold(job, "here", "there"))],
    Verb.LEAVE: [moved(lambda job: moving.leave(on_its_way(job), "there", MINUTE))],
    Verb.ARRIVE: [moved(lambda job: moving.arrive(on_its_way(job), Note("", "", {"state": job.state, "flow": None})))],
}


def variants(state: State) -> list[JobRecord]:
    """Records of one state that the verbs may tell apart."""
    shapes: list[dict[str, Any]] = [{}, {"expires_after": MINUTE}, {"max_attempts": 1}, {"crash_cap": 1}]
    usable = shapes[:2] if state is State.RETRYING else shapes
    jobs = [in_state(state, **shape) for shape in usable]
    if state is State.RUNNING:
        jobs += [job._replace(cancel_requested=True) for job in jobs]
        jobs += [job._replace(begun_at=NOW) for job in jobs]
    if state in (State.RUNNING, State.RETRYING):
        flows = [Flow(undoes=1), Flow(undoes=1, ending="cancelled"), Flow(undoes=1, ending="dead:exhausted")]
        jobs += [job._replace(flow=flow) for flow in flows for job in jobs[:2]]
    return jobs


def outcomes(verb: Verb, state: State) -> set[State]:
    reached: set[State] = set()
    for job, act in product(variants(state), ACTS[verb]):
        try:
            after = act(job)
        except IllegalMove as refusal:
            final = state in TERMINAL or (lifecycle.undoing(job) and verb in (Verb.CANCEL, Verb.SIGNAL))
            assert refusal.reason == (Answer.NO_OP_TERMINAL if final else Answer.ALREADY_CLAIMED)  # noqa: PT017
        else:
            if after is not None:
                assert after.version == job.version + 1
                reached.add(after.state)
    return reached


def test_the_table_names_every_pair() -> None:
    assert set(EXPECTED) == set(ACTS) == set(LEGAL) == set(Verb)
    assert all(set(row) == set(State) for row in EXPECTED.values())
    assert sum(map(len, EXPECTED.values())) == 7 * 20


@pytest.mark.parametrize(("verb", "state"), list(product(Verb, State)))
def test_every_pair_is_a_transition_or_an_illegal_move(verb: Verb, state: State) -> None:
    assert outcomes(verb, state) == EXPECTED[verb][state]


@pytest.mark.parametrize(("verb", "state"), list(product(Verb, State)))
def test_what_is_legal_is_what_the_table_says(verb: Verb, state: State) -> None:
    possible = state in PURGEABLE if verb is Verb.PURGE else bool(EXPECTED[verb][state])
    assert (state in LEGAL[verb]) == possible
    if not possible:
        with pytest.raises(IllegalMove, match=f"A job that is {state} cannot {verb}"):
            lifecycle.require(in_state(state), verb)


def test_the_transitions_are_those_that_can_be_observed() -> None:
    observed = {(old, new) for row in EXPECTED.values() for old, reached in row.items() for new in reached}
    assert observed == TRANSITIONS


def test_a_running_job_is_never_queued_directly() -> None:
    assert (State.RUNNING, State.QUEUED) not in TRANSITIONS


def test_a_job_starts_with_nothing_behind_it() -> None:
    job = made(delay=SECOND, expires_after=MINUTE)
    assert (job.version, job.generation, job.attempt, job.crashes, job.token) == (1, 1, 0, 0, 0)
    assert (job.available_at, job.expires_at) == (NOW + SECOND, NOW + SECOND + MINUTE)
    assert job.lease is None
    assert job.failure is None


def test_the_time_to_start_by_counts_from_when_the_job_may_start() -> None:
    assert made(run_at=NOW + DAY, expires_after=MINUTE).expires_at == NOW + DAY + MINUTE
    assert made(run_at=NOW - DAY, expires_after=MINUTE).expires_at == NOW + MINUTE


def test_a_claim_counts_the_attempt_and_takes_the_next_token() -> None:
    job = claimed(in_state(State.RETRYING), LATE)
    assert (job.attempt, job.token, job.lease_id, job.begun_at, job.claimed_at) == (2, 2, "lease-2", None, LATE)
    assert job.started_at == NOW
    assert str(job.lease) == "2.lease-2"


@pytest.mark.parametrize(
    ("job", "at"), [(made(delay=1), NOW), (made(expires_after=0), NOW), (made(expires_after=1), NOW + 1)]
)
def test_a_claim_is_never_early_nor_too_late(job: JobRecord, at: int) -> None:
    assert not lifecycle.runnable(job, at)
    with pytest.raises(IllegalMove) as refusal:
        lifecycle.claim(job, lease_id="x", owner="ada", lease=LEASE, now=at)
    assert refusal.value.reason == Answer.ALREADY_CLAIMED


def test_order_is_priority_then_due_time_then_age() -> None:
    jobs = [made(priority=1, delay=9), made(priority=0, delay=1), made(priority=0, delay=2), made(priority=-1)]
    older = jobs[2]._replace(created_at=NOW - 1)
    assert sorted([*reversed(jobs), older], key=lifecycle.order) == [jobs[0], jobs[1], older, jobs[2], jobs[3]]


@pytest.mark.parametrize(
    ("attempt", "failure", "cause"),
    [
        (1, FLAKY, None),
        (2, FLAKY, None),
        (3, FLAKY, Cause.EXHAUSTED),
        (4, FLAKY, Cause.EXHAUSTED),
        (1, HOPELESS, Cause.REJECTED),
        (3, HOPELESS, Cause.REJECTED),
        (1, Failure("expired", "a handler may call its failure so", retryable=True), None),
    ],
)
def test_a_failure_is_retried_until_the_attempts_are_used(attempt: int, failure: Failure, cause: Cause | None) -> None:
    job = in_state(State.RUNNING, max_attempts=3, retry="table:5000000,7000000:0:9000000")._replace(
        attempt=attempt, crashes=2
    )
    move = lifecycle.fail(job, failure, draw=0, retention=RETENTION, traceback="boom")
    after = lifecycle.apply(job, move, LATE)
    assert (after.cause, after.failure, after.attempt, after.crashes) == (cause, failure, attempt, 0)
    if cause is None:
        assert (after.state, after.purge_at, after.finished_at) == (State.RETRYING, None, None)
        assert after.available_at == LATE + (5 if attempt == 1 else 7) * SECOND
    else:
        assert (after.state, after.purge_at, after.finished_at) == (State.DEAD, LATE + RETENTION.dead, LATE)


@pytest.mark.parametrize(
    ("changes", "state", "cause", "attempt", "crashes"),
    [
        ({}, State.RETRYING, None, 1, 1),
        ({"begun_at": NOW}, State.RETRYING, None, 1, 1),
        ({"crashes": 1, "begun_at": NOW}, State.RETRYING, None, 1, 2),
        ({"crashes": 2, "begun_at": NOW}, State.DEAD, Cause.CRASHED, 1, 3),
        ({"crashes": 2}, State.RETRYING, None, 0, 2),
        ({"attempt": 5, "begun_at": NOW}, State.DEAD, Cause.EXHAUSTED, 5, 1),
        ({"attempt": 5, "crashes": 2, "begun_at": NOW}, State.DEAD, Cause.CRASHED, 5, 3),
        ({"attempt": 5}, State.RETRYING, None, 4, 0),
        ({"cancel_requested": True}, State.CANCELLED, None, 1, 0),
        ({"cancel_requested": True, "attempt": 5, "crashes": 2, "begun_at": NOW}, State.CANCELLED, None, 5, 2),
    ],
)
def test_a_lost_lease_is_decided_like_a_failure(
    changes: dict[str, Any], state: State, cause: Cause | None, attempt: int, crashes: int
) -> None:
    job = in_state(State.RUNNING)._replace(**changes)
    after = lifecycle.apply(job, lifecycle.reap(job, LATE, RETENTION), LATE)
    assert (after.state, after.cause, after.attempt, after.crashes) == (state, cause, attempt, crashes)
    assert after.failure_code == (None if state is State.CANCELLED else "lease_expired")
    assert after.lease_id is None
    assert after.lease_expires_at is None
    if state is State.RETRYING:
        assert after.available_at == LATE, "it waited out the lease already"


def test_a_lease_in_force_cannot_be_reaped() -> None:
    job = in_state(State.RUNNING)
    with pytest.raises(IllegalMove, match="still in force"):
        lifecycle.reap(job, NOW + LEASE - 1, RETENTION)
    assert lifecycle.reap(job, NOW + LEASE, RETENTION).state is State.RETRYING


def test_a_waiting_job_is_reaped_only_when_overdue() -> None:
    job = made(expires_after=SECOND)
    with pytest.raises(IllegalMove, match="not overdue"):
        lifecycle.reap(job, NOW + SECOND - 1, RETENTION)
    after = lifecycle.apply(job, lifecycle.reap(job, NOW + SECOND, RETENTION), NOW + SECOND)
    assert (after.state, after.cause, after.failure_code) == (State.DEAD, Cause.EXPIRED, "expired")


@pytest.mark.parametrize("state", sorted(WAITING))
def test_a_waiting_job_is_cancelled_at_once(state: State) -> None:
    job = in_state(state)
    after = lifecycle.apply(job, lifecycle.cancel(job, RETENTION), LATE)
    assert (after.state, after.purge_at, after.cancel_requested) == (State.CANCELLED, LATE + RETENTION.cancelled, True)


def test_a_running_job_keeps_its_lease_when_asked_to_stop() -> None:
    job = in_state(State.RUNNING)
    asked = lifecycle.apply(job, lifecycle.cancel(job, RETENTION), LATE)
    assert (asked.state, asked.lease, asked.purge_at, asked.cancel_requested) == (State.RUNNING, job.lease, None, True)
    settled = lifecycle.apply(asked, lifecycle.settle_cancel(job, RETENTION), LATE)
    assert (settled.state, settled.purge_at) == (State.CANCELLED, LATE + RETENTION.cancelled)


def test_a_redrive_opens_a_new_generation_and_keeps_the_past() -> None:
    dead = in_state(State.DEAD, expires_after=MINUTE)._replace(step_cursor=2, crashes=2, cancel_requested=True)
    again = lifecycle.apply(dead, lifecycle.redrive(dead), LATE)
    assert (again.state, again.generation, again.attempt, again.crashes) == (State.QUEUED, 2, 0, 0)
    assert (again.available_at, again.expires_at, again.finished_at, again.purge_at) == (LATE, None, None, None)
    assert (again.cause, again.failure, again.cancel_requested, again.lease_id) == (None, None, False, None)
    assert (again.step_cursor, again.token, again.version) == (2, dead.token, dead.version + 1)


@pytest.mark.parametrize("decide", [lifecycle.release, lambda job: lifecycle.snooze(job, MINUTE)])
def test_a_give_back_returns_the_attempt(decide: Callable[[JobRecord], Move]) -> None:
    job = in_state(State.RUNNING)._replace(crashes=1)
    move = decide(job)
    after = lifecycle.apply(job, move, LATE)
    assert (after.state, after.attempt, after.crashes, after.available_at) == (
        State.RETRYING,
        0,
        1,
        LATE + (move.delay or 0),
    )
    ended = history.ended_attempt(job, move, LATE)
    assert ended is not None
    assert (ended.outcome, ended.attempt, ended.token) == (move.verb, 1, 1)


def test_a_success_forgets_the_last_failure() -> None:
    job = claimed(in_state(State.RETRYING), LATE)
    after = lifecycle.apply(job, lifecycle.complete(job, "1", RETENTION), LATE)
    assert (after.failure, after.result, after.finished_at, after.purge_at) == (
        None,
        "1",
        LATE,
        LATE + RETENTION.succeeded,
    )
    assert history.ended_attempt(job, lifecycle.complete(job, "1", RETENTION), LATE) is None
    attempt = history.last_attempt(after)
    assert attempt is not None
    assert (attempt.outcome, attempt.attempt, attempt.ended_at) == ("complete", 2, LATE)


def test_a_completion_carries_its_result_and_nothing_else() -> None:
    job = in_state(RUNNING)
    assert lifecycle.complete(job, "1", RETENTION) == Move(
        verb=Verb.COMPLETE,
        id=job.id,
        queue=job.queue,
        guard=Held(job.token, job.lease_id or ""),
        state=SUCCEEDED,
        attempt=job.attempt,
        crashes=0,
        generation=job.generation,
        purge_after=RETENTION.succeeded,
        result="1",
    )


def test_a_step_moves_the_cursor_by_one() -> None:
    job = in_state(State.RUNNING, steps_total=2)
    after = lifecycle.apply(job, lifecycle.checkpoint(job, "fetch", "1"), LATE)
    assert (after.step_cursor, after.state, after.result) == (1, State.RUNNING, None)


def test_a_holder_is_known_by_token_and_lease_id_together() -> None:
    job = in_state(State.RUNNING)
    move = lifecycle.complete(job, None, RETENTION)
    assert lifecycle.holds(job, move)
    for guard in (Held(2, "lease-1"), Held(0, "lease-1"), Held(1, "lease-2"), Held(1, "")):
        assert not lifecycle.holds(job, move._replace(guard=guard))
        assert lifecycle.answer(job, move._replace(guard=guard)) is Answer.ALREADY_CLAIMED
    beaten = lifecycle.beat(job, lease=LEASE, begun=True, now=LATE)
    assert lifecycle.holds(beaten, move), "a holder's guard does not depend on the version"


def test_an_onlooker_is_known_by_the_version_it_saw() -> None:
    job = in_state(State.RUNNING)
    move = lifecycle.cancel(job, RETENTION)
    assert move.guard == Seen(job.version)
    assert lifecycle.holds(job, move)
    beaten = lifecycle.beat(job, lease=LEASE, begun=False, now=LATE)
    assert not lifecycle.holds(beaten, move)
    assert lifecycle.answer(beaten, move) is Answer.ALREADY_CLAIMED


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_refusal_tells_the_final_from_the_taken(state: State) -> None:
    old = lifecycle.complete(in_state(State.RUNNING), None, RETENTION)._replace(guard=Held(9, "x"))
    assert lifecycle.answer(in_state(state), old) is Answer.NO_OP_TERMINAL
    assert lifecycle.answer(None, old) is Answer.ABSENT


def test_a_requested_cancellation_stops_every_move_but_the_end() -> None:
    job = in_state(State.RUNNING)._replace(cancel_requested=True)
    stopped = [
        lifecycle.start(job),
        lifecycle.checkpoint(job, "s", None),
        lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION),
        lifecycle.release(job),
        lifecycle.snooze(job, 0),
    ]
    for move in stopped:
        assert not lifecycle.holds(job, move), move.verb
        assert lifecycle.answer(job, move) is Answer.CANCEL_REQUESTED, move.verb
    for move in (lifecycle.complete(job, None, RETENTION), lifecycle.settle_cancel(job, RETENTION)):
        assert lifecycle.holds(job, move), move.verb


def test_a_holder_recognises_its_own_settlement_and_no_other() -> None:
    job = in_state(State.RUNNING)
    move = lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)
    settled = lifecycle.apply(job, move, LATE)
    assert not lifecycle.holds(settled, move)
    assert lifecycle.answer(settled, move) is Answer.OK
    assert lifecycle.answer(settled, lifecycle.complete(job, None, RETENTION)) is Answer.ALREADY_CLAIMED
    reaped = lifecycle.apply(job, lifecycle.reap(job, LATE, RETENTION), LATE)
    assert lifecycle.answer(reaped, move) is Answer.ALREADY_CLAIMED
    assert lifecycle.answer(claimed(settled, LATE + DAY), move) is Answer.ALREADY_CLAIMED


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_finished_job_is_kept_by_its_retention(state: State) -> None:
    job = in_state(state)
    kept = RETENTION.of(state)
    assert job.purge_at == NOW + kept
    assert not lifecycle.purgeable(job, NOW + kept - 1)
    assert lifecycle.purgeable(job, NOW + kept)


def test_dead_jobs_are_kept_longest() -> None:
    kept = Retention()
    assert kept.of(State.DEAD) > max(kept.of(State.SUCCEEDED), kept.of(State.CANCELLED))


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_what_may_still_move_is_never_purged(state: State) -> None:
    assert not lifecycle.purgeable(in_state(state), LATE * 2)
