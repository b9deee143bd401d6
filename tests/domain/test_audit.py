"""The auditor believes every record that the lifecycle leaves behind, and none that it could not have."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain import audit, history, lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import CLAIMABLE, AttemptRecord, Failure, Flow, JobRecord, NewJob, Retention, State
from holdfast.domain.moments import HOUR, MINUTE, SECOND, Micros
from holdfast.domain.move import Move

NOW: Micros = 1_800_000_000 * SECOND
RETENTION = Retention(HOUR, HOUR, HOUR)
FLAKY = Failure("flaky", "the line was dropped", retryable=True)
HOPELESS = Failure("hopeless", "no such document", retryable=False)
LATE = Failure(lifecycle.EXPIRED, "too late", retryable=True)
LEASE: Micros = 10 * SECOND


class Life(NamedTuple):
    """A job with its ended attempts and the time it is."""

    job: JobRecord
    ended: tuple[AttemptRecord, ...]
    now: Micros

    def after(self, move: Move) -> "Life":
        record = history.ended_attempt(self.job, move, self.now)
        return Life(lifecycle.apply(self.job, move, self.now), self.ended + ((record,) if record else ()), self.now)


def checkpoint(life: Life, draw: float) -> Move | None:
    job = life.job
    if job.step_cursor >= job.steps_total or lifecycle.undoing(job):
        return None
    spend = round(draw * 3)
    return lifecycle.checkpoint(job, f"step {job.step_cursor}", None, undoable=draw > 0.5, spend=spend)


def complete(life: Life, draw: float) -> Move | None:
    if life.job.step_cursor < life.job.steps_total or lifecycle.undoing(life.job):
        return None
    return lifecycle.complete(life.job, '"done"', RETENTION)


def settle(life: Life, draw: float) -> Move | None:
    return None if lifecycle.undoing(life.job) else lifecycle.settle_cancel(life.job, RETENTION)


def fails(failure: Failure) -> Callable[[Life, float], Move]:
    return lambda life, draw: lifecycle.fail(life.job, failure, draw=draw, retention=RETENTION)


MOVES: dict[str, Callable[[Life, float], Move | None]] = {
    "submit": lambda life, _: lifecycle.submit(life.job),
    "start": lambda life, _: lifecycle.start(life.job),
    "checkpoint": checkpoint,
    "complete": complete,
    "flaky": fails(FLAKY),
    "hopeless": fails(HOPELESS),
    "late": fails(LATE),
    "release": lambda life, _: lifecycle.release(life.job),
    "snooze": lambda life, _: lifecycle.snooze(life.job, SECOND),
    "reap": lambda life, _: lifecycle.reap(life.job, life.now, RETENTION),
    "cancel": lambda life, _: lifecycle.cancel(life.job, RETENTION),
    "settle": settle,
    "redrive": lambda life, _: lifecycle.redrive(life.job),
    "undoable": lambda life, _: lifecycle.checkpoint(life.job, "charge", None, undoable=True),
    "note": lambda life, _: lifecycle.note(life.job, "~note", None),
    "suspend": lambda life, _: lifecycle.suspend(life.job, "~wait", None, delay=SECOND, awaits="go"),
    "signal": lambda life, _: lifecycle.signal(life.job, f"s{life.job.version}", "go", None),
    "postpone": lambda life, _: lifecycle.postpone(life.job, SECOND),
    "undo": lambda life, _: lifecycle.undo(life.job, RETENTION),
}
WRITES: dict[str, Callable[[JobRecord, Micros], JobRecord]] = {
    "claim": lambda job, now: lifecycle.claim(job, lease_id=f"l{job.token}", owner="ada", lease=LEASE, now=now),
    "beat": lambda job, now: lifecycle.beat(job, lease=LEASE, begun=True, now=now),
    "abandon": lambda job, now: lifecycle.beat(job, lease=0, begun=False, now=now),
}


def step(life: Life, verb: str, draw: float) -> Life:
    """Do one thing to a job as a store would; what is refused changes nothing."""
    if verb in WRITES:
        return life._replace(job=WRITES[verb](life.job, life.now))
    move = MOVES[verb](life, draw)
    return life if move is None or not lifecycle.holds(life.job, move) else life.after(move)


VERBS = [*(MOVES.keys() - {"undoable"}), *WRITES, "claim", "claim", "claim", "flaky", "reap", "checkpoint", "undo"]
news = st.builds(
    NewJob,
    kind=st.just("echo"),
    payload=st.just("{}"),
    retry=st.sampled_from(["fixed:1000000:0:9000000", "exponential:500000:0.5:9000000"]),
    max_attempts=st.integers(1, 4),
    crash_cap=st.integers(1, 3),
    delay=st.sampled_from([0, SECOND]),
    expires_after=st.sampled_from([None, None, 5 * SECOND]),
    steps_total=st.integers(0, 2),
    state=st.sampled_from([State.QUEUED, State.CREATED]),
    credits=st.just(2),
    reserved=st.sampled_from([0, 2]),
    steps=st.just(()),
)
ticks = st.sampled_from([0, 0, 1, SECOND, 2 * SECOND, 11 * SECOND, -SECOND // 2])
days = st.lists(st.tuples(st.sampled_from(VERBS), ticks, st.floats(0, 0.99)), max_size=60)


@given(news, days)
@settings(max_examples=600, deadline=None)
def test_no_order_of_moves_leaves_a_record_that_the_auditor_doubts(
    new: NewJob, moves: list[tuple[str, Micros, float]]
) -> None:
    life = Life(lifecycle.create("job", new, NOW), (), NOW)
    for verb, tick, draw in moves:
        life = life._replace(now=life.now + tick)
        try:
            life = step(life, verb, draw)
        except IllegalMove:
            continue
        assert audit.violations(life.job, life.ended, life.now, patience=HOUR) == [], (verb, life)
        assert audit.expects_history(life.job) == bool(life.ended)


def lived(*verbs: str, **fields: Any) -> Life:
    life = Life(lifecycle.create("job", NewJob("echo", "{}", retry="fixed:0:0:0")._replace(**fields), NOW), (), NOW)
    for verb in verbs:
        life = step(life._replace(now=life.now + SECOND), verb, 0)
    return life


QUEUED = lived()
CREATED = lived(state=State.CREATED)
RUNNING = lived("claim", "beat")
RETRYING = lived("claim", "flaky")
SUCCEEDED = lived("claim", "flaky", "claim", "complete")
REJECTED = lived("claim", "hopeless")
EXHAUSTED = lived("claim", "flaky", "claim", "flaky", max_attempts=2)
CRASHED = lived("claim", "start", "abandon", "reap", crash_cap=1)
CANCELLED = lived("cancel")
PAID = lived("claim", "hopeless", credits=3, reserved=3)
FORKED = lived(steps=(("fetch", "1"),), steps_total=2)
LIVES = (QUEUED, CREATED, RUNNING, RETRYING, SUCCEEDED, REJECTED, EXHAUSTED, CRASHED, CANCELLED, PAID, FORKED)

FLAKY_FIELDS = {f"failure_{name}": value for name, value in FLAKY._asdict().items()}
BAD: list[tuple[str, str, Life, dict[str, Any]]] = [
    ("S15", "finished without a time", SUCCEEDED, {"finished_at": None}),
    ("S15", "never to be removed", REJECTED, {"purge_at": None}),
    ("S15", "waiting, yet finished", QUEUED, {"finished_at": NOW}),
    ("S15", "waiting, yet to be removed", QUEUED, {"purge_at": NOW}),
    ("S15", "written after the end", SUCCEEDED, {"updated_at": NOW + HOUR}),
    ("S15", "removed before the end", SUCCEEDED, {"purge_at": NOW}),
    ("S14", "dead without a cause", REJECTED, {"cause": None}),
    ("S14", "alive with a cause", RETRYING, {"cause": "rejected"}),
    ("S14", "dead of something unknown", REJECTED, {"cause": "boredom"}),
    ("S14", "a result before the end", RUNNING, {"result": "1"}),
    ("S14", "a generation before the first", QUEUED, {"generation": 0}),
    ("S14", "created twice", CREATED, {"version": 2}),
    ("S14", "fewer writes than moves", RETRYING, {"version": 2}),
    ("S14", "a failure that was overcome", SUCCEEDED, FLAKY_FIELDS),
    ("S8", "running without an end to the lease", RUNNING, {"lease_expires_at": None}),
    ("S8", "running for nobody", RUNNING, {"lease_owner": None}),
    ("S8", "a lease on a waiting job", RETRYING, {"lease_expires_at": NOW}),
    ("S8", "won without a lease", SUCCEEDED, {"lease_id": None}),
    ("S8", "started but never claimed", QUEUED, {"started_at": NOW}),
    ("S8", "claimed but never started", RETRYING, {"started_at": None}),
    ("S18", "more attempts than allowed", RUNNING, {"attempt": 6, "token": 6, "version": 12}),
    ("S18", "fewer attempts than none", RETRYING, {"attempt": -1}),
    ("S18", "more attempts than claims", RETRYING, {"attempt": 2}),
    ("S18", "waiting with no attempt left", RETRYING, {"attempt": 1, "max_attempts": 1}),
    ("S18", "running an attempt nobody counted", RUNNING, {"attempt": 0}),
    ("S18", "a fresh start that is not fresh", QUEUED, {"attempt": 1, "token": 1}),
    ("S18", "alive after too many crashes", RETRYING, {"crashes": 3}),
    ("S18", "more crashes than attempts", RUNNING, {"crashes": 1}),
    ("S18", "a crash that was not forgiven", SUCCEEDED, {"crashes": 1}),
    ("S19", "retried what may not be", RETRYING, {"failure_retryable": False}),
    ("S26", "half a failure", RETRYING, {"failure_message": None}),
    ("S26", "dead of nothing", REJECTED, {"failure_code": None, "failure_message": None, "failure_retryable": None}),
    ("S26", "exhausted too early", EXHAUSTED, {"max_attempts": 5}),
    ("S26", "rejected what could be retried", REJECTED, {"failure_retryable": True}),
    ("S26", "crashed without a crash", CRASHED, {"crashes": 0}),
    ("S26", "expired of something else", REJECTED, {"cause": "expired"}),
    ("S26", "the last attempt tells of something else", EXHAUSTED, {"failure_code": "other"}),
    ("S26", "a claim that left no trace", RETRYING, {"token": 2, "version": 9}),
    ("S18", "an attempt that does not follow", RETRYING, {"attempt": 0}),
    ("S16", "cancelled unasked", CANCELLED, {"cancel_requested": False}),
    ("S16", "cancelled but still waiting", RETRYING, {"cancel_requested": True}),
    ("S17", "claimed before it was due", RUNNING, {"available_at": NOW + HOUR}),
    ("S20", "a cursor past the end", RUNNING, {"step_cursor": 3, "steps_total": 2, "version": 99}),
    ("S20", "won with steps to go", SUCCEEDED, {"steps_total": 2}),
    ("S28", "credits set aside for a dead job", PAID, {"flow": Flow(reserved=1)}),
    ("S28", "less than nothing set aside", QUEUED, {"flow": Flow(reserved=-1)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("promise", "life", "change"),
    [(promise, life, change) for promise, _, life, change in BAD],
    ids=[name for _, name, _, _ in BAD],
)
def test_a_record_that_nothing_leads_to_is_found(promise: str, life: Life, change: dict[str, Any]) -> None:
    assert audit.violations(life.job, life.ended, life.now) == []
    found = audit.violations(life.job._replace(**change), life.ended, life.now)
    assert promise in {each for each, _ in found}, found
    assert all(sentence.endswith(".") for _, sentence in found)


def test_every_rule_has_a_record_that_breaks_it() -> None:
    assert {promise for promise, _, _, _ in BAD} | {"L3"} == set(audit.PROMISES)


def test_an_attempt_counted_out_of_order_is_found() -> None:
    first, second = EXHAUSTED.ended
    found = audit.violations(EXHAUSTED.job, (first, second._replace(attempt=1)), EXHAUSTED.now)
    assert [promise for promise, _ in found] == ["S18", "S18"]


def test_a_history_that_was_not_read_is_not_judged() -> None:
    job = RETRYING.job._replace(token=2, version=9)
    assert audit.violations(job, None, NOW) == []


ORPHANS: dict[str, Callable[[], Life]] = {
    "a lost lease": lambda: RUNNING,
    "an unanswered cancellation": lambda: lived("claim", "cancel"),
    "an unsubmitted job": lambda: CREATED,
    "an expired job": lambda: lived(expires_after=SECOND),
}


@pytest.mark.parametrize("orphan", ORPHANS.values(), ids=list(ORPHANS))
def test_an_orphan_is_found_once_upkeep_has_had_its_time(orphan: Callable[[], Life]) -> None:
    life = orphan()
    later = life.now + HOUR
    assert [promise for promise, _ in audit.violations(life.job, life.ended, later)] == ["L3"]
    assert audit.violations(life.job, life.ended, life.now + SECOND) == []
    assert audit.violations(life.job, life.ended, later, watched_since=None) == []
    assert audit.violations(life.job, life.ended, later, watched_since=later - MINUTE) == []
    assert audit.violations(life.job, life.ended, later, patience=2 * HOUR) == []


def test_a_backlog_is_no_orphan() -> None:
    for life in LIVES:
        if life.job.state in CLAIMABLE:
            assert audit.violations(life.job, life.ended, life.now + 1000 * HOUR) == []


UNDONE = {
    "rejected": lived("claim", "undoable", "hopeless", "claim", "undo"),
    "exhausted": lived(
        "claim", "flaky", "claim", "undoable", "flaky", "claim", "flaky", "claim", "undo", max_attempts=2
    ),
    "cancelled": lived("claim", "undoable", "snooze", "cancel", "claim", "undo"),
    "undoing": lived("claim", "undoable", "hopeless", "claim", "flaky"),
    "stuck": lived("claim", "undoable", "settle", "claim", "hopeless"),
    "redriven": lived("claim", "undoable", "hopeless", "claim", "hopeless", "redrive", "claim", "undo"),
}


@pytest.mark.parametrize("life", UNDONE.values(), ids=list(UNDONE))
def test_a_job_that_undid_its_steps_is_believed(life: Life) -> None:
    assert life.ended
    assert audit.violations(life.job, life.ended, life.now) == []


def test_a_count_that_began_anew_without_a_reason_is_found() -> None:
    first, second = EXHAUSTED.ended
    ended = (first, second._replace(attempt=1), second._replace(token=3, attempt=2))
    job = EXHAUSTED.job._replace(token=3, version=9)
    assert [promise for promise, _ in audit.violations(job, ended, EXHAUSTED.now)] == ["S18"]
