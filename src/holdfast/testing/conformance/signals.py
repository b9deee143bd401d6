"""Signals and those who wait for them: kept in order, counted once, never lost, and nobody woken by another's."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import TERMINAL, Flow, JobRecord, SignalRecord, State
from holdfast.domain.moments import DAY, HORIZON, SECOND
from holdfast.domain.move import Answer
from holdfast.testing.lab import DELAY, HOPELESS, RETENTION, Lab


def a_signal_is_kept_whatever_its_job_is_about(lab: Lab) -> None:
    for state in (State.QUEUED, State.RUNNING, State.RETRYING):
        job = lab.in_state(state)
        lab.clock.advance(seconds=1)
        told = lab.done(lifecycle.signal(job, "s-1", "it's", '{"by":"zoë"}'))
        assert (told.state, told.available_at, told.flow) == (state, job.available_at, Flow(signals=1))
        assert lab.store.signals(job.id) == [SignalRecord("s-1", "it's", '{"by":"zoë"}', lab.clock.now())]
        assert (lab.beat(job) is Answer.OK) == (state is State.RUNNING), "who holds a job goes on holding it"


def signals_are_listed_in_the_order_sent(lab: Lab) -> None:
    job = lab.job()
    for number, name in enumerate(["b", "a", "b", "c"]):
        job = lab.done(lifecycle.signal(job, f"s-{9 - number}", name, f"{number}" if number else None))
    sent = lab.store.signals(job.id)
    assert [(each.id, each.name, each.payload) for each in sent] == [
        ("s-9", "b", None),
        ("s-8", "a", "1"),
        ("s-7", "b", "2"),
        ("s-6", "c", "3"),
    ]
    assert (job.flow or Flow()).signals == 4
    assert lab.store.signals(lab.ids.take(1)[0]) == []


def a_signal_of_a_known_id_counts_once(lab: Lab) -> None:
    job, other = lab.jobs(2)
    told = lab.done(lifecycle.signal(job, "s-1", "go", "1"))
    lab.refused(lifecycle.signal(told, "s-1", "go", "1"), Answer.OK)
    lab.refused(lifecycle.signal(told, "s-1", "other", "2"), Answer.OK)
    lab.done(lifecycle.signal(other, "s-1", "go", "1"))
    running = lab.take(told)
    lab.refused(lifecycle.signal(running, "s-1", "go", "1"), Answer.OK)
    assert len(lab.store.signals(job.id)) == len(lab.store.signals(other.id)) == 1


def a_signal_decided_on_an_old_record_is_refused(lab: Lab) -> None:
    job = lab.job()
    move = lifecycle.signal(job, "s-1", "go", None)
    lab.take(job)
    lab.refused(move, Answer.ALREADY_CLAIMED)


def a_signal_for_a_finished_job_is_refused(lab: Lab) -> None:
    for state in TERMINAL:
        job = lab.running()
        move = lifecycle.signal(job, "s-1", "go", None)
        match state:
            case State.SUCCEEDED:
                ended = lab.done(lifecycle.complete(job, None, RETENTION))
            case State.DEAD:
                ended = lab.done(lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
            case _:
                ended = lab.done(lifecycle.settle_cancel(job, RETENTION))
        lab.refused(move, Answer.NO_OP_TERMINAL)
        with pytest.raises(IllegalMove):
            lifecycle.signal(ended, "s-1", "go", None)


def a_job_that_waits_holds_nothing(lab: Lab) -> None:
    job = lab.running(max_attempts=1, expires_after=SECOND)
    waits = lab.done(lifecycle.suspend(job, "~wait", '"go"', awaits="go"))
    assert (waits.state, waits.attempt, waits.lease) == (State.RETRYING, 0, None)
    assert (waits.flow, waits.expires_at) == (Flow(awaits="go"), None)
    lab.clock.advance(days=900)
    assert (lab.claim(5), lab.store.expired(5)) == ([], [])
    assert lab.store.next_due(None) == waits.updated_at + HORIZON
    lab.clock.advance(microseconds=HORIZON - 900 * DAY)
    assert lab.take(waits).attempt == 1


def a_sleep_ends_by_itself(lab: Lab) -> None:
    asleep = lab.done(lifecycle.suspend(lab.running(), "~sleep", None, delay=7 * SECOND))
    assert (asleep.flow, lab.store.next_due(None)) == (None, lab.clock.now() + 7 * SECOND)
    lab.clock.advance(seconds=7)
    assert lab.take(asleep).token == 2


def an_awaited_signal_wakes_its_job_at_once(lab: Lab) -> None:
    waits = _waiting(lab)
    lab.clock.advance(seconds=5)
    woken = lab.done(lifecycle.signal(waits, "s-1", "go", None))
    assert (woken.state, woken.available_at) == (State.RETRYING, lab.clock.now())
    assert lab.store.next_due(None) == lab.clock.now()
    assert lab.take(woken).flow == Flow(awaits="go", signals=1)


def a_signal_of_another_name_wakes_nobody(lab: Lab) -> None:
    waits = _waiting(lab)
    told = lab.done(lifecycle.signal(waits, "s-1", "Go", None))
    assert told.available_at == waits.available_at
    assert lab.claim(5) == []
    woken = lab.done(lifecycle.signal(told, "s-2", "go", None))
    assert lab.take(woken).token == 2


def a_signal_for_one_job_wakes_no_other(lab: Lab) -> None:
    left, right = _waiting(lab), _waiting(lab)
    lab.done(lifecycle.signal(left, "s-1", "go", None))
    assert [job.id for job in lab.claim(5)] == [left.id]
    assert lab.read(right) == right


def a_signal_that_came_while_its_job_ran_is_heard_late(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.signal(job, "s-1", "go", None))
    waits = lab.done(lifecycle.suspend(job, "~wait", None, awaits="go"))
    assert waits.available_at == lab.clock.now(), "it looked before the signal came, so it must look again"
    again = lab.take(waits)
    quiet = lab.done(lifecycle.suspend(again, "~wait 2", None, awaits="more", heard=1))
    assert quiet.available_at == lab.clock.now() + HORIZON
    assert lab.claim(5) == []


def a_signal_and_a_wait_in_one_call_find_each_other(lab: Lab) -> None:
    job = lab.running()
    moves = [
        lifecycle.signal(job, "s-1", "go", None),
        lifecycle.suspend(job, "~wait", None, awaits="go"),
    ]
    assert lab.store.commit(moves) == [Answer.OK, Answer.OK]
    assert lab.take(job).flow == Flow(awaits="go", signals=1)
    second = lab.running()
    wait = lifecycle.suspend(second, "~wait", None, awaits="go")
    waits = lifecycle.apply(second, wait, lab.clock.now())
    assert lab.store.commit([wait, lifecycle.signal(waits, "s-1", "go", None)]) == [Answer.OK, Answer.OK]
    assert lab.take(second).flow == Flow(awaits="go", signals=1)


def many_jobs_are_signalled_in_one_call(lab: Lab) -> None:
    waiting = [_waiting(lab) for _ in range(5)]
    stale = lifecycle.signal(waiting[0], "s-2", "go", None)
    moves = [lifecycle.signal(job, "s-1", "go", f"{n}") for n, job in enumerate(waiting)]
    assert lab.store.commit([*moves, stale]) == [Answer.OK] * 5 + [Answer.ALREADY_CLAIMED]
    assert [[each.payload for each in lab.store.signals(job.id)] for job in waiting] == [
        ["0"],
        ["1"],
        ["2"],
        ["3"],
        ["4"],
    ]
    assert len(lab.claim(9)) == 5


def a_backoff_is_not_cut_short_by_a_signal(lab: Lab) -> None:
    failed = lab.in_state(State.RETRYING)
    told = lab.done(lifecycle.signal(failed, "s-1", "go", None))
    assert told.available_at == failed.available_at == lab.clock.now() + DELAY


def a_woken_job_that_is_given_back_runs_again(lab: Lab) -> None:
    waits = _waiting(lab)
    held = lab.take(lab.done(lifecycle.signal(waits, "s-1", "go", None)))
    back = lab.done(lifecycle.release(held))
    assert (back.available_at, back.flow) == (lab.clock.now(), Flow(signals=1))
    assert lab.take(back).token == 3


def a_job_that_was_to_be_created_first_hears_nothing(lab: Lab) -> None:
    job = lab.job(state=State.CREATED)
    with pytest.raises(IllegalMove):
        lifecycle.signal(job, "s-1", "go", None)
    submitted = lab.done(lifecycle.submit(job))
    assert lab.done(lifecycle.signal(submitted, "s-1", "go", None)).flow == Flow(signals=1)


def signals_outlive_a_redrive(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.signal(job, "s-1", "go", None))
    dead = lab.done(lifecycle.fail(lab.read(job), HOPELESS, draw=0, retention=RETENTION))
    again = lab.done(lifecycle.redrive(dead))
    assert (again.flow, len(lab.store.signals(job.id))) == (Flow(signals=1), 1)


def _waiting(lab: Lab) -> JobRecord:
    """A job that waits for the signal `go`."""
    return lab.done(lifecycle.suspend(lab.running(), "~wait", None, awaits="go"))
