"""What is told of a move: the right names, ids that stay the same, in order, and nothing personal."""

import json
from typing import Any

import pytest

from holdfast.domain import events, lifecycle
from holdfast.domain.job import Failure, Flow, JobRecord, State
from holdfast.domain.move import Move
from tests.domain.records import FLAKY, HOPELESS, NOW, RETENTION, claimed, in_state, made

LATE = NOW + 1_000_000_000
SECRET = "ada@example.org"


def told(job: JobRecord, move: Move, *, public: bool = True) -> Move:
    return events.told(job, move, public=public)


def names(job: JobRecord, move: Move, *, public: bool = True) -> list[str]:
    return [event.name for event in told(job, move, public=public).events]


def body(job: JobRecord, move: Move, place: int = -1) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(told(job, move).events[place].body)
    return read


def known(job: JobRecord) -> JobRecord:
    """A job whose start has been told."""
    return job._replace(flow=(job.flow or Flow())._replace(told=job.generation))


def ran(job: JobRecord, *moves: Any) -> list[str]:
    """Tell of each move, and let each see what the one before has left."""
    heard: list[str] = []
    for decide in moves:
        move = told(job, decide(job))
        heard += [event.name for event in move.events]
        job = lifecycle.apply(job, move, LATE)
    return heard


def test_a_run_is_told_from_start_to_end() -> None:
    assert ran(
        in_state(State.RUNNING),
        lambda job: lifecycle.checkpoint(job, "fetch", "1"),
        lambda job: lifecycle.note(job, "~sleep", None),
        lambda job: lifecycle.checkpoint(job, "ocr", "1"),
        lambda job: lifecycle.complete(job, "1", RETENTION),
    ) == [lifecycle.STARTED, events.STEP, events.STEP, events.COMPLETED]


def test_the_start_is_told_once_per_generation() -> None:
    assert ran(
        in_state(State.RUNNING),
        lambda job: lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION),
    ) == [lifecycle.STARTED, events.RETRYING]
    again = claimed(known(in_state(State.RETRYING)), LATE)
    assert names(again, lifecycle.fail(again, HOPELESS, draw=0, retention=RETENTION)) == [
        events.COMPLETED,
        events.DEAD,
    ]
    dead = known(in_state(State.DEAD))
    redriven = lifecycle.apply(dead, lifecycle.redrive(dead), LATE)
    assert ran(claimed(redriven, LATE), lifecycle.start, lambda job: lifecycle.complete(job, None, RETENTION)) == [
        lifecycle.STARTED,
        events.COMPLETED,
    ]


def test_the_start_that_is_told_is_on_record() -> None:
    job = in_state(State.RUNNING)
    move = told(job, lifecycle.checkpoint(job, "fetch", "1"))
    assert lifecycle.apply(job, move, LATE).flow == Flow(told=1)
    over = told(job, lifecycle.complete(job, None, RETENTION))
    assert lifecycle.apply(job, over, LATE).flow is None, "nothing comes after the end"


def test_a_job_given_back_unrun_has_not_started() -> None:
    job = in_state(State.RUNNING)
    assert names(job, lifecycle.release(job)) == []


def test_who_asks_something_of_a_running_job_does_not_tell_of_its_start() -> None:
    job = in_state(State.RUNNING)
    assert names(job, lifecycle.cancel(job, RETENTION)) == [], "its holder would tell of it again"
    assert names(job, lifecycle.signal(job, "s-1", "go", None)) == []
    assert names(job, lifecycle.settle_cancel(job, RETENTION)) == [
        lifecycle.STARTED,
        events.COMPLETED,
        events.CANCELLED,
    ]


@pytest.mark.parametrize("state", [State.QUEUED, State.RETRYING])
def test_a_job_cancelled_while_it_waits_has_not_started_again(state: State) -> None:
    job = in_state(state)
    assert names(job, lifecycle.cancel(job, RETENTION)) == [events.COMPLETED, events.CANCELLED]
    assert names(job, lifecycle.signal(job, "s-1", "go", None)) == []


def test_a_lost_lease_is_told_as_a_retry_or_a_death() -> None:
    job = known(in_state(State.RUNNING))
    assert names(job, lifecycle.reap(job, LATE, RETENTION)) == [events.RETRYING]
    last = job._replace(crashes=2, begun_at=NOW)
    assert names(last, lifecycle.reap(last, LATE, RETENTION)) == [events.COMPLETED, events.DEAD]


def test_a_redrive_is_told_in_the_generation_it_opens() -> None:
    dead = in_state(State.DEAD)
    assert names(dead, lifecycle.redrive(dead)) == [events.REDRIVEN]
    assert body(dead, lifecycle.redrive(dead))["generation"] == 2


def test_a_job_that_undoes_its_steps_ends_when_they_are_undone() -> None:
    job = known(in_state(State.RUNNING))._replace(flow=Flow(undoes=1, told=1))
    move = lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)
    assert names(job, move) == [events.RETRYING]
    held = claimed(lifecycle.apply(job, move, LATE), LATE)
    undo = lifecycle.undo(held, RETENTION)
    assert names(held, undo) == [events.COMPLETED, events.DEAD]
    assert (body(held, undo)["cause"], body(held, undo)["code"]) == ("rejected", "hopeless")


def test_nothing_is_told_that_nobody_listens_to() -> None:
    job = in_state(State.RUNNING)
    for move in (lifecycle.complete(job, None, RETENTION), lifecycle.checkpoint(job, "a", None)):
        assert events.told(job, move, public=False) is move


def test_a_parent_hears_of_each_end_of_its_child() -> None:
    child = in_state(State.RUNNING, parent="job-0")
    for move in (
        lifecycle.complete(child, None, RETENTION),
        lifecycle.fail(child, HOPELESS, draw=0, retention=RETENTION),
        lifecycle.settle_cancel(child, RETENTION),
    ):
        [event] = told(child, move, public=False).events
        assert event.name == events.CHILD_ENDED
        assert json.loads(event.body)["parent"] == "job-0"
    for move in (lifecycle.fail(child, FLAKY, draw=0, retention=RETENTION), lifecycle.release(child)):
        assert names(child, move, public=False) == []


def test_children_hear_of_their_parent_s_cancellation_as_soon_as_it_is_certain() -> None:
    parent = in_state(State.RETRYING)._replace(flow=Flow(children=2))
    assert names(parent, lifecycle.cancel(parent, RETENTION), public=False) == [events.PARENT_CANCELLED]
    undoing = parent._replace(flow=Flow(children=2, undoes=1))
    assert names(undoing, lifecycle.cancel(undoing, RETENTION), public=False) == [events.PARENT_CANCELLED]
    running = in_state(State.RUNNING)._replace(flow=Flow(children=2))
    assert names(running, lifecycle.cancel(running, RETENTION), public=False) == [], "it may yet finish"
    assert names(running, lifecycle.fail(running, HOPELESS, draw=0, retention=RETENTION), public=False) == []
    childless = in_state(State.RETRYING)._replace(flow=Flow(signals=1))
    assert names(childless, lifecycle.cancel(childless, RETENTION), public=False) == []


def test_the_same_move_has_the_same_ids_and_every_other_has_others() -> None:
    job = in_state(State.RUNNING, parent="job-0")
    beaten = lifecycle.beat(job, lease=1, begun=True, now=LATE)
    assert (
        told(job, lifecycle.complete(job, None, RETENTION)).events
        == told(beaten, lifecycle.complete(beaten, None, RETENTION)).events
    ), "a holder's events do not depend on what others wrote"
    again = claimed(in_state(State.RETRYING), LATE)
    dead = in_state(State.DEAD)
    later = lifecycle.apply(dead, lifecycle.redrive(dead), LATE)
    moves = [
        (job, lifecycle.checkpoint(job, "a", None)),
        (known(job), lifecycle.checkpoint(job, "b", None)),
        (known(job), lifecycle.complete(job, None, RETENTION)),
        (known(job), lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION)),
        (known(again), lifecycle.fail(again, FLAKY, draw=0, retention=RETENTION)),
        (known(again), lifecycle.fail(again, HOPELESS, draw=0, retention=RETENTION)),
        (dead, lifecycle.redrive(dead)),
        (later, lifecycle.cancel(later, RETENTION)),
        (made(), lifecycle.cancel(made(), RETENTION)),
    ]
    ids = [event.id for job, move in moves for event in told(job, move).events]
    assert len(ids) == len(set(ids)) > len(moves)
    assert all(id_.startswith("job-1.") for id_ in ids)


def test_an_event_tells_ids_kinds_states_codes_times_and_credits() -> None:
    job = in_state(State.RUNNING, tenant="acme", trace_id="t-1", queue="mail")._replace(flow=Flow(spent=2, told=1))
    read = body(job, lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
    assert read == {
        "job_id": "job-1",
        "kind": "echo",
        "queue": "mail",
        "tenant": "acme",
        "trigger": "manual",
        "trace_id": "t-1",
        "state": "dead",
        "generation": 1,
        "attempt": 1,
        "cause": "rejected",
        "code": "hopeless",
        "created_at": NOW,
        "started_at": NOW,
        "credits_spent": 2,
    }
    assert body(job, lifecycle.complete(job, None, RETENTION, spend=3))["credits_spent"] == 5


@pytest.mark.parametrize(("end", "success"), [("complete", True), ("fail", False), ("cancel", False)])
def test_the_end_of_a_run_tells_whether_it_succeeded(end: str, success: bool) -> None:
    job = known(in_state(State.RUNNING))
    moves = {
        "complete": lifecycle.complete(job, None, RETENTION),
        "fail": lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION),
        "cancel": lifecycle.settle_cancel(job, RETENTION),
    }
    assert body(job, moves[end], place=0)["success"] is success


def test_a_step_is_told_by_its_name() -> None:
    job = known(in_state(State.RUNNING))
    assert body(job, lifecycle.checkpoint(job, "fetch", '"what it gave"'))["step"] == "fetch"


def test_nothing_personal_is_told() -> None:
    job = in_state(State.RUNNING, payload=f'"{SECRET}"', user=SECRET, key=SECRET, parent="job-0")
    failure = Failure("boom", SECRET, retryable=False)
    job = job._replace(lease_owner=SECRET, failure_message=SECRET, flow=Flow(children=1, progress=f'[0,"{SECRET}"]'))
    moves = [
        lifecycle.checkpoint(job, "fetch", f'"{SECRET}"'),
        lifecycle.complete(job, f'"{SECRET}"', RETENTION),
        lifecycle.fail(job, failure, draw=0, retention=RETENTION, traceback=SECRET),
        lifecycle.settle_cancel(job, RETENTION),
        lifecycle.signal(job, "s-1", "go", f'"{SECRET}"'),
    ]
    for move in moves:
        assert SECRET not in "".join(event.id + event.body for event in told(job, move).events)
