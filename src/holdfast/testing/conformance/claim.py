"""Leasing work: never too much, never too early, best first."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from holdfast.domain import lifecycle
from holdfast.domain.job import State
from holdfast.domain.moments import HOUR, SECOND
from holdfast.domain.move import Answer
from holdfast.testing.lab import DELAY, FLAKY, LEASE, RETENTION, Lab


def a_claim_writes_what_the_lifecycle_says(lab: Lab) -> None:
    job = lab.job(priority=4)
    lab.clock.advance(seconds=2)
    want = lab.want(3, owner="grace", lease=7 * SECOND)
    leased = lifecycle.claim(job, lease_id=want.lease_id, owner="grace", lease=7 * SECOND, now=lab.clock.now())
    assert lab.store.claim(want) == [leased]
    assert lab.read(job) == leased


def a_claim_never_takes_more_than_its_limit(lab: Lab) -> None:
    lab.jobs(10)
    assert len(lab.claim(3)) == 3
    assert len(lab.claim(4, queues={"default": 100})) == 4
    assert lab.claim(0) == []
    assert lab.counts() == {("default", State.RUNNING): 7, ("default", State.QUEUED): 3}
    assert len(lab.claim(100)) == 3
    assert lab.claim(100) == []


def a_claim_follows_priority_then_due_time_then_age(lab: Lab) -> None:
    lab.need("strict_order")
    now = lab.clock.now()
    plan = [(0, 5), (9, 9), (0, 1), (9, 2), (-5, 0), (9, 9), (0, 5), (3, 3)]
    made = [(lab.job(priority=priority, run_at=now + due), priority, due) for priority, due in plan]
    lab.clock.advance(seconds=1)
    best = sorted(made, key=lambda row: (-row[1], row[2], row[0].id))
    claimed = [job.id for size in (1, 3, 2, 5) for job in lab.claim(size)]
    assert claimed == [job.id for job, _, _ in best]


def order_holds_across_queues(lab: Lab) -> None:
    lab.need("strict_order")
    ranks = [3, 1, 2, 5, 4, 0]
    jobs = {rank: lab.job(priority=rank, queue=f"q{rank % 3}") for rank in ranks}
    wanted = {"q0": 5, "q1": 5, "q2": 5}
    claimed = [*lab.claim(3), *lab.claim(2, queues=wanted), *lab.claim(9, queues=wanted)]
    assert [job.id for job in claimed] == [jobs[rank].id for rank in sorted(ranks, reverse=True)]


def a_retried_job_stands_in_line_by_its_due_time(lab: Lab) -> None:
    lab.need("strict_order")
    failed = lab.in_state(State.RETRYING)
    lab.clock.advance(microseconds=DELAY - 1)
    before = lab.job()
    lab.clock.advance(microseconds=2)
    after = lab.job()
    assert [job.id for job in lab.claim(5)] == [before.id, failed.id, after.id]


def nothing_is_claimed_before_it_is_due(lab: Lab) -> None:
    later = lab.job(delay=SECOND)
    at = lab.job(run_at=lab.clock.now() + SECOND)
    assert lab.claim(5) == []
    assert lab.claim(id=later.id) == []
    lab.clock.advance(microseconds=SECOND - 1)
    assert lab.claim(5) == []
    lab.clock.advance(microseconds=1)
    assert [job.id for job in lab.claim(5)] == [later.id, at.id]


def a_time_in_the_past_is_due_at_once(lab: Lab) -> None:
    job = lab.job(run_at=lab.clock.now() - HOUR)
    assert [claimed.id for claimed in lab.claim(5)] == [job.id]


def each_queue_gives_no_more_than_is_wanted_from_it(lab: Lab) -> None:
    for queue in ("a", "b", "c"):
        lab.jobs(4, queue=queue)
    claimed = lab.claim(100, queues={"a": 3, "b": 1, "d": 2})
    assert sorted(job.queue for job in claimed) == ["a", "a", "a", "b"]
    assert sorted(job.queue for job in lab.claim(2, queues={"b": 5, "c": 5})) == ["b", "b"]
    assert lab.claim(5, queues={"a": 0}) == []
    assert lab.claim(5, queues={}) == []


def full_queues_are_passed_over(lab: Lab) -> None:
    for queue in ("a", "b", "c"):
        lab.jobs(2, queue=queue, priority=ord(queue))
    claimed = lab.claim(100, full=frozenset({"c", "a", "x"}))
    assert [job.queue for job in claimed] == ["b", "b"]


def a_claim_by_id_takes_that_job_alone(lab: Lab) -> None:
    lab.jobs(3, priority=9)
    job = lab.job()
    assert [claimed.id for claimed in lab.claim(5, id=job.id)] == [job.id]
    assert lab.claim(5, id=job.id) == []
    assert lab.claim(5, id=lab.ids.take(1)[0]) == []


def a_claim_by_id_keeps_to_the_rules(lab: Lab) -> None:
    lab.store.pause("shut")
    for job in (
        lab.job(delay=1),
        lab.job(queue="shut"),
        *(lab.in_state(state) for state in State if state is not State.QUEUED),
    ):
        assert lab.claim(id=job.id) == [], job.state
        assert lab.read(job) == job


def a_paused_queue_gives_nothing_until_it_is_resumed(lab: Lab) -> None:
    job, other = lab.job(queue="shut"), lab.job(queue="open")
    lab.store.pause("shut")
    lab.store.pause("shut")
    assert [claimed.id for claimed in lab.claim(5)] == [other.id]
    assert lab.claim(5, queues={"shut": 5}) == []
    lab.store.resume("shut")
    assert [claimed.id for claimed in lab.claim(5)] == [job.id]


def attempts_count_at_claim_and_tokens_only_grow(lab: Lab) -> None:
    job = lab.job(max_attempts=9, crash_cap=9)
    seen = []
    for number in range(4):
        job = lab.take(job)
        seen.append((job.token, job.attempt, job.version))
        if number % 2:
            job = lab.done(lifecycle.release(job))
        else:
            job = lab.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
            lab.clock.advance(microseconds=DELAY)
    assert seen == [(1, 1, 2), (2, 2, 4), (3, 2, 6), (4, 3, 8)]


def a_new_generation_keeps_counting_tokens(lab: Lab) -> None:
    dead = lab.in_state(State.DEAD)
    again = lab.take(lab.done(lifecycle.redrive(dead)))
    assert (again.token, again.attempt, again.generation) == (2, 1, 2)


def a_job_past_the_time_to_start_by_is_not_claimed(lab: Lab) -> None:
    job = lab.job(expires_after=SECOND)
    lab.clock.advance(microseconds=SECOND - 1)
    in_time = lab.job(expires_after=SECOND)
    lab.clock.advance(microseconds=1)
    assert [claimed.id for claimed in lab.claim(5)] == [in_time.id]
    assert lab.claim(id=job.id) == []
    assert lab.read(job) == job


def a_created_job_is_not_claimed_until_submitted(lab: Lab) -> None:
    job = lab.job(state=State.CREATED)
    assert lab.claim(5) == []
    lab.done(lifecycle.submit(job))
    assert [claimed.id for claimed in lab.claim(5)] == [job.id]


def a_running_job_is_not_claimed_even_when_its_lease_is_over(lab: Lab) -> None:
    job = lab.running()
    assert lab.claim(5) == []
    lab.clock.advance(microseconds=10 * LEASE)
    assert lab.claim(5) == []
    assert lab.claim(id=job.id) == []
    assert lab.read(job) == job


def a_finished_job_is_never_claimed(lab: Lab) -> None:
    for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
        job = lab.in_state(state)
        lab.clock.advance(days=1)
        assert lab.claim(5) == []
        assert lab.read(job) == job


def jobs_of_one_claim_are_settled_one_by_one(lab: Lab) -> None:
    lab.jobs(3)
    first, second, third = lab.claim(3)
    assert len({job.lease_id for job in (first, second, third)}) == 1
    moves = [lifecycle.complete(first, "1", RETENTION), lifecycle.release(third)]
    assert lab.store.commit(moves) == [Answer.OK, Answer.OK]
    assert lab.read(second) == second
