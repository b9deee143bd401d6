"""What only some jobs do: wait for signals, spawn children, undo their steps, keep notes, give up their keys."""

from collections.abc import Callable

import pytest

from holdfast.domain import history, lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import TERMINAL, Cause, Failure, Flow, JobRecord, NewJob, State
from holdfast.domain.moments import DAY, HORIZON, HOUR, MINUTE, SECOND
from holdfast.domain.move import Answer, Held, Move, Seen, Verb
from tests.domain.records import FLAKY, HOPELESS, LEASE, NOW, RETENTION, claimed, in_state, made

LATE = NOW + DAY
CHILD = NewJob("echo", "{}", parent="job-1", credits=2)


def after(job: JobRecord, move: Move, now: int = LATE) -> JobRecord:
    assert lifecycle.holds(job, move)
    return lifecycle.apply(job, move, now)


def suspended(awaits: str | None = "go", heard: int = 0) -> JobRecord:
    job = in_state(State.RUNNING)
    return after(job, lifecycle.suspend(job, "~wait", None, awaits=awaits, heard=heard), NOW)


def undoable(**fields: object) -> JobRecord:
    job = in_state(State.RUNNING, **fields)
    return after(job, lifecycle.checkpoint(job, "charge", "1", undoable=True), NOW)


def ending(move: Callable[[JobRecord], Move], **fields: object) -> JobRecord:
    job = undoable(**fields)
    return after(job, move(job))


def test_a_job_starts_without_a_flow_unless_it_costs_something() -> None:
    assert made().flow is None
    assert made(credits=3, reserved=2).flow == Flow(estimate=3, reserved=2)
    assert lifecycle.flow_of(NewJob("echo", "{}", reserved=0, credits=0)) is None


def test_a_job_keeps_its_parent_and_the_version_of_its_code() -> None:
    job = made(parent="job-0", code_version=7)
    assert (job.parent, job.code_version) == ("job-0", 7)


def test_a_forked_job_starts_behind_the_steps_it_was_given() -> None:
    job = made(steps=(("fetch", "1"), ("~sleep", None), ("ocr", None)), steps_total=3)
    assert (job.step_cursor, job.version) == (2, 1), "a note is no step"


@pytest.mark.parametrize(
    ("unique", "owning"),
    [
        (None, set(State)),
        ("active", set(State) - TERMINAL),
        ("waiting", {State.QUEUED}),
    ],
)
def test_a_key_is_kept_as_long_as_asked_for(unique: str | None, owning: set[State]) -> None:
    new = NewJob("echo", "{}", key="k", unique=unique)
    assert {state for state in State if lifecycle.owns_key(in_state(state), new)} == owning


def test_a_note_is_recorded_beside_the_steps() -> None:
    job = in_state(State.RUNNING)
    move = lifecycle.note(job, "~sleep", '"9"')
    noted = after(job, move)
    assert (move.verb, move.step, move.result) == (Verb.CHECKPOINT, "~sleep", '"9"')
    assert (noted.step_cursor, noted.state, noted.version) == (0, State.RUNNING, job.version + 1)
    asked = job._replace(cancel_requested=True)
    assert lifecycle.answer(asked, move) is Answer.CANCEL_REQUESTED


def test_a_step_may_move_the_cursor_by_any_number() -> None:
    job = in_state(State.RUNNING)
    assert after(job, lifecycle.checkpoint(job, "a", None, advance=0)).step_cursor == 0
    assert after(job, lifecycle.checkpoint(job, "a", None, advance=3)).step_cursor == 3


def test_progress_comes_with_a_heartbeat_and_stays() -> None:
    job = in_state(State.RUNNING)
    told = lifecycle.beat(job, lease=LEASE, begun=True, now=LATE, progress="[0.5,null]")
    assert told.flow == Flow(progress="[0.5,null]")
    quiet = lifecycle.beat(told, lease=LEASE, begun=True, now=LATE)
    assert quiet.flow == told.flow
    assert lifecycle.beat(job, lease=LEASE, begun=True, now=LATE).flow is None


def test_a_suspended_job_gives_back_its_lease_and_its_attempt() -> None:
    job = in_state(State.RUNNING, expires_after=HOUR)
    move = lifecycle.suspend(job, "~wait", '"go"', awaits="go", advance=2)
    waits = after(job, move)
    assert (move.verb, move.step, move.result) == (Verb.SNOOZE, "~wait", '"go"')
    assert (waits.state, waits.attempt, waits.step_cursor) == (State.RETRYING, 0, 2)
    assert (waits.lease_expires_at, waits.available_at) == (None, LATE + HORIZON)
    assert waits.flow == Flow(awaits="go")
    assert waits.expires_at is None, "it has started in time; how long it waits is its own affair"


def test_a_job_that_sleeps_waits_for_no_signal() -> None:
    job = in_state(State.RUNNING)
    asleep = after(job, lifecycle.suspend(job, "~sleep", None, delay=MINUTE))
    assert (asleep.available_at, asleep.flow) == (LATE + MINUTE, None)


def test_children_are_counted_with_the_move_that_spawns_them() -> None:
    job = in_state(State.RUNNING)
    move = lifecycle.suspend(job, "~gather", None, awaits="children", children=(("c-1", CHILD), ("c-2", CHILD)))
    assert move.charged
    assert after(job, move).flow == Flow(awaits="children", children=2)
    free = lifecycle.suspend(job, "~gather", None, children=(("c-1", CHILD._replace(credits=0)),))
    assert not free.charged


def test_a_signal_that_is_awaited_wakes_its_job_and_no_other_does() -> None:
    waits = suspended("go")
    woken = after(waits, lifecycle.signal(waits, "s-1", "go", "1"))
    assert (woken.available_at, woken.flow) == (LATE, Flow(awaits="go", signals=1))
    other = after(waits, lifecycle.signal(waits, "s-1", "stop", None))
    assert (other.available_at, other.flow) == (waits.available_at, Flow(awaits="go", signals=1))


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.RETRYING])
def test_a_signal_that_nobody_awaits_is_only_kept(state: State) -> None:
    job = in_state(state)
    move = lifecycle.signal(job, "s-1", "go", '{"by":"ada"}')
    told = after(job, move)
    assert move.signal == ("s-1", "go", '{"by":"ada"}')
    assert move.guard == Seen(job.version)
    assert told == job._replace(
        version=job.version + 1,
        updated_at=LATE,
        flow=Flow(signals=1),
        lease_id=job.lease_id if state is State.RUNNING else None,
    )
    assert history.ended_attempt(job, move, LATE) is None


def test_a_job_that_is_asked_to_stop_can_still_be_sent_a_signal() -> None:
    job = in_state(State.RUNNING)._replace(cancel_requested=True)
    told = after(job, lifecycle.signal(job, "s-1", "go", None))
    assert told.cancel_requested


@pytest.mark.parametrize("state", [State.CREATED, *sorted(TERMINAL)])
def test_a_signal_for_a_job_that_cannot_hear_it_is_refused(state: State) -> None:
    with pytest.raises(IllegalMove, match=f"A job that is {state} cannot signal"):
        lifecycle.signal(in_state(state), "s-1", "go", None)


def test_a_signal_sent_before_the_job_waits_for_it_is_heard_late() -> None:
    job = in_state(State.RUNNING)
    told = after(job, lifecycle.signal(job, "s-1", "go", None))
    waits = after(told, lifecycle.suspend(job, "~wait", None, awaits="go"))
    assert waits.available_at == LATE, "the job looked before the signal came, so it must look again"
    knew = claimed(waits, LATE)
    again = after(knew, lifecycle.suspend(knew, "~wait", None, awaits="go", heard=1))
    assert again.available_at == LATE + HORIZON


def test_what_a_job_awaited_is_over_once_it_waits_for_something_else() -> None:
    job = claimed(suspended("go"), NOW + HORIZON)
    assert job.flow == Flow(awaits="go")
    failed = after(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    assert failed.flow is None
    told = after(failed, lifecycle.signal(failed, "s-1", "go", None))
    assert told.available_at == failed.available_at, "a backoff is not cut short"


def test_a_postponed_job_waits_from_now() -> None:
    job = made(delay=SECOND)
    move = lifecycle.postpone(job, MINUTE)
    put_off = after(job, move)
    assert (put_off.state, put_off.available_at, move.guard) == (State.QUEUED, LATE + MINUTE, Seen(1))
    assert put_off.flow is None


FAILURES: dict[str, tuple[Callable[[JobRecord], Move], str]] = {
    "rejected": (lambda job: lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION), "dead:rejected"),
    "exhausted": (
        lambda job: lifecycle.fail(job._replace(attempt=5), FLAKY, draw=0, retention=RETENTION),
        "dead:exhausted",
    ),
    "crashed": (
        lambda job: lifecycle.reap(job._replace(crashes=2, begun_at=NOW), LATE, RETENTION),
        "dead:crashed",
    ),
    "cancelled": (lambda job: lifecycle.settle_cancel(job, RETENTION), "cancelled"),
    "lost": (lambda job: lifecycle.reap(job._replace(cancel_requested=True), LATE, RETENTION), "cancelled"),
}


@pytest.mark.parametrize(("move", "end"), FAILURES.values(), ids=list(FAILURES))
def test_a_job_with_steps_to_undo_does_not_end_before_they_are(move: Callable[[JobRecord], Move], end: str) -> None:
    job = ending(move)
    assert (job.state, job.attempt, job.crashes, job.available_at) == (State.RETRYING, 0, 0, LATE)
    assert (job.finished_at, job.purge_at, job.cause, job.cancel_requested) == (None, None, None, False)
    assert job.flow == Flow(undoes=1, ending=end)
    assert lifecycle.undoing(job)
    held = claimed(job, LATE)
    undo = lifecycle.undo(held, RETENTION)
    over = after(held, undo, LATE + HOUR)
    state, _, cause = end.partition(":")
    assert (over.state, over.cause) == (State(state), Cause(cause) if cause else None)
    assert (over.finished_at, over.purge_at) == (LATE + HOUR, LATE + HOUR + RETENTION.of(over.state))
    assert over.cancel_requested == (over.state is State.CANCELLED)
    assert over.flow is None
    assert lifecycle.answer(over, undo) is Answer.OK, "asked again"


def test_a_waiting_job_with_steps_to_undo_is_cancelled_by_way_of_undoing_them() -> None:
    job = undoable()
    waits = after(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    told = after(waits, lifecycle.cancel(waits, RETENTION))
    assert (told.state, told.flow) == (State.RETRYING, Flow(undoes=1, ending="cancelled"))
    assert lifecycle.runnable(told, LATE)


def test_an_overdue_job_with_steps_to_undo_can_still_be_claimed_for_that() -> None:
    job = undoable(expires_after=HOUR)
    waits = after(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION), NOW)
    told = after(waits, lifecycle.reap(waits, LATE, RETENTION))
    assert told.flow == Flow(undoes=1, ending="dead:expired")
    assert lifecycle.runnable(told, LATE)
    held = claimed(told, LATE)
    over = after(held, lifecycle.undo(held, RETENTION))
    assert (over.state, over.cause, over.failure_code) == (State.DEAD, Cause.EXPIRED, "expired")


def test_a_job_without_steps_to_undo_ends_at_once() -> None:
    job = in_state(State.RUNNING)._replace(flow=Flow(signals=1))
    dead = after(job, lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
    assert (dead.state, dead.flow) == (State.DEAD, Flow(signals=1))


def test_a_success_undoes_nothing() -> None:
    job = undoable()
    won = after(job, lifecycle.complete(job, None, RETENTION))
    assert (won.state, won.flow) == (State.SUCCEEDED, Flow(undoes=1))


def test_a_failure_while_undoing_is_tried_again_and_ends_as_dead_at_last() -> None:
    job = claimed(ending(FAILURES["cancelled"][0], max_attempts=2), LATE)
    again = after(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    assert (again.state, again.flow) == (State.RETRYING, Flow(undoes=1, ending="cancelled"))
    held = claimed(again, again.available_at)
    dead = after(held, lifecycle.fail(held, FLAKY, draw=0, retention=RETENTION))
    assert (dead.state, dead.cause, dead.flow) == (State.DEAD, Cause.EXHAUSTED, Flow(undoes=1, ending="cancelled"))
    redriven = after(dead, lifecycle.redrive(dead))
    assert lifecycle.undoing(redriven), "a redrive goes on with what was left undone"
    assert redriven.failure == FLAKY, "what it died of is not overcome"


def test_nobody_can_cancel_or_signal_a_job_that_is_being_undone() -> None:
    job = ending(FAILURES["rejected"][0])
    for each in (job, claimed(job, LATE)):
        with pytest.raises(IllegalMove, match="being undone cannot cancel") as refusal:
            lifecycle.cancel(each, RETENTION)
        assert refusal.value.reason == Answer.NO_OP_TERMINAL
        with pytest.raises(IllegalMove, match="being undone cannot signal") as refusal:
            lifecycle.signal(each, "s", "go", None)
        assert refusal.value.reason == Answer.NO_OP_TERMINAL


def test_only_a_job_that_is_ending_can_undo() -> None:
    for job in (in_state(State.RUNNING), undoable()):
        assert not lifecycle.undoing(job)
        with pytest.raises(IllegalMove, match="not ending cannot undo"):
            lifecycle.undo(job, RETENTION)


def test_the_moves_of_one_who_undoes_yield_to_nothing() -> None:
    held = claimed(ending(FAILURES["rejected"][0]), LATE)
    moves = [
        lifecycle.note(held, "~undo:charge", None),
        lifecycle.fail(held, Failure("flaky", "", retryable=True), draw=0, retention=RETENTION),
        lifecycle.release(held),
    ]
    assert [move.yields for move in moves] == [False] * 3
    assert lifecycle.undo(held, RETENTION).guard == Held(held.token, held.lease_id or "")
