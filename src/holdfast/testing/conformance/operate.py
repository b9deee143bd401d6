"""What operators and upkeep do: submit, cancel, redrive, purge, pause."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import CLAIMABLE, TERMINAL, WAITING, Retention, State
from holdfast.domain.moments import DAY, HOUR, SECOND
from holdfast.domain.move import Answer
from holdfast.testing.lab import FLAKY, HOPELESS, RETENTION, Lab, Stored


def unsubmitted_jobs_are_listed_once_they_are_old_enough(lab: Lab) -> None:
    old = lab.job(state=State.CREATED)
    lab.job()
    lab.clock.advance(seconds=5)
    young = lab.job(state=State.CREATED)
    lab.clock.advance(seconds=5)
    assert lab.store.unsubmitted(10 * SECOND + 1, 10) == []
    assert lab.store.unsubmitted(10 * SECOND, 10) == [old]
    assert sorted(lab.store.unsubmitted(5 * SECOND, 10)) == [old, young]
    assert len(lab.store.unsubmitted(0, 1)) == 1
    lab.done(lifecycle.submit(old))
    assert lab.store.unsubmitted(0, 10) == [young]


def a_waiting_job_is_cancelled_at_once(lab: Lab) -> None:
    for state in WAITING:
        job = lab.in_state(state)
        lab.clock.advance(seconds=60)
        ended = lab.done(lifecycle.cancel(job, RETENTION))
        assert (ended.state, ended.finished_at, ended.purge_at) == (
            State.CANCELLED, lab.clock.now(), lab.clock.now() + RETENTION.cancelled,
        )  # fmt: skip
        assert lab.claim(id=job.id) == []


def a_running_job_is_asked_to_stop(lab: Lab) -> None:
    job = lab.running()
    asked = lab.done(lifecycle.cancel(job, RETENTION))
    assert (asked.state, asked.cancel_requested, asked.lease) == (State.RUNNING, True, job.lease)
    ended = lab.done(lifecycle.settle_cancel(job, RETENTION))
    assert ended.state is State.CANCELLED
    assert [attempt.outcome for attempt in lab.store.attempts(job.id)] == ["cancel"]


def a_job_may_finish_though_it_was_asked_to_stop(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.cancel(job, RETENTION))
    assert lab.done(lifecycle.complete(job, "1", RETENTION)).state is State.SUCCEEDED


def a_redrive_opens_a_new_generation(lab: Lab) -> None:
    job = lab.running(max_attempts=1, expires_after=HOUR)
    lab.done(lifecycle.checkpoint(job, "fetch", "1"))
    dead = lab.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
    lab.clock.advance(days=2)
    again = lab.done(lifecycle.redrive(dead))
    assert (again.state, again.generation, again.attempt, again.crashes) == (State.QUEUED, 2, 0, 0)
    assert (again.available_at, again.purge_at, again.finished_at, again.cause) == (lab.clock.now(), None, None, None)
    assert len(lab.store.attempts(job.id)) == 1
    assert len(lab.store.steps(job.id)) == 1
    lab.clock.advance(microseconds=RETENTION.dead)
    assert lab.store.purge(5).jobs == 0
    assert lab.take(again).attempt == 1


def a_redrive_decided_before_another_death_is_refused(lab: Lab) -> None:
    dead = lab.in_state(State.DEAD)
    late = lifecycle.redrive(dead)
    again = lab.take(lab.done(lifecycle.redrive(dead)))
    dead_again = lab.done(lifecycle.fail(again, HOPELESS, draw=0, retention=RETENTION))
    assert lab.answer(late) is Answer.NO_OP_TERMINAL
    assert lab.read(dead) == dead_again


def only_a_dead_job_can_be_redriven(lab: Lab) -> None:
    for state in set(State) - {State.DEAD}:
        with pytest.raises(IllegalMove):
            lifecycle.redrive(lab.in_state(state))


def a_redriven_job_keeps_its_key(lab: Lab) -> None:
    dead = lab.in_state(State.DEAD, key="k")
    again = lab.done(lifecycle.redrive(dead))
    assert lab.accepted([lab.new(key="k")])[0] == Stored(again, duplicate=True)


def purge_waits_out_the_retention_of_each_end(lab: Lab) -> None:
    ended = {state: lab.in_state(state) for state in TERMINAL}
    lab.clock.advance(microseconds=RETENTION.succeeded - 1)
    assert lab.store.purge(10).jobs == 0
    lab.clock.advance(microseconds=1)
    assert lab.store.purge(10).jobs == 2
    assert lab.store.read([ended[State.SUCCEEDED].id, ended[State.CANCELLED].id]) == [None, None]
    assert lab.read(ended[State.DEAD]) == ended[State.DEAD]
    lab.clock.advance(microseconds=RETENTION.dead - RETENTION.succeeded - 1)
    assert lab.store.purge(10).jobs == 0
    lab.clock.advance(microseconds=1)
    assert lab.store.purge(10).jobs == 1
    assert lab.counts() == {}


def purge_follows_the_retention_each_move_was_given(lab: Lab) -> None:
    brief = Retention(succeeded=SECOND, cancelled=2 * SECOND, dead=3 * SECOND)
    lab.done(lifecycle.complete(lab.running(), None, brief))
    lab.done(lifecycle.cancel(lab.job(), brief))
    lab.done(lifecycle.fail(lab.running(), HOPELESS, draw=0, retention=brief))
    purged = []
    for _ in range(4):
        purged.append(lab.store.purge(10).jobs)
        lab.clock.advance(seconds=1)
    assert purged == [0, 1, 1, 1]


def purge_takes_everything_of_a_job_with_it(lab: Lab) -> None:
    job = lab.running(key="k")
    lab.done(lifecycle.checkpoint(job, "fetch", "1"))
    ended = lab.done(lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION))
    lab.clock.advance(microseconds=RETENTION.dead)
    assert lab.store.purge(10).jobs == 1
    assert lab.held(job.id) == (None, (), (), ())
    assert lab.answer(lifecycle.redrive(ended)) is Answer.ABSENT
    assert lab.beat(job) is Answer.ABSENT
    assert not lab.accepted([lab.new(key="k")])[0].duplicate


def purge_removes_no_more_than_asked_for(lab: Lab) -> None:
    lab.jobs(5)
    lab.store.commit([lifecycle.complete(job, None, RETENTION) for job in lab.claim(5)])
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert [lab.store.purge(2).jobs for _ in range(4)] == [2, 2, 1, 0]


def purge_never_touches_what_may_still_move(lab: Lab) -> None:
    alive = [lab.in_state(state) for state in (*CLAIMABLE, State.RUNNING, State.CREATED)]
    lab.clock.advance(microseconds=10_000 * DAY)
    assert lab.store.purge(100).jobs == 0
    assert [lab.read(job) for job in alive] == alive


def paused_queues_are_remembered(lab: Lab) -> None:
    assert lab.store.paused() == frozenset()
    for queue in ("mail", "mail", "it's"):
        lab.store.pause(queue)
    assert lab.store.paused() == lab.other.paused() == {"mail", "it's"}
    lab.store.resume("mail")
    lab.store.resume("never paused")
    assert lab.store.paused() == {"it's"}


def a_paused_queue_still_takes_jobs_and_settles_them(lab: Lab) -> None:
    running = lab.running()
    lab.store.pause("default")
    waiting = lab.job()
    lab.done(lifecycle.complete(running, None, RETENTION))
    assert lab.counts() == {("default", State.QUEUED): 1, ("default", State.SUCCEEDED): 1}
    lab.store.resume("default")
    assert lab.take(waiting).state is State.RUNNING
