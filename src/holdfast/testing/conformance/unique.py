"""Keys that are given up early, and jobs that are put off: one active job per key, and requests that come too often."""

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import TERMINAL, State
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.domain.move import Answer
from holdfast.testing.lab import RETENTION, Lab, Stored


def an_active_job_keeps_its_key(lab: Lab) -> None:
    for state in set(State) - TERMINAL:
        owner = lab.in_state(state, key=state.value, unique="active")
        assert lab.accepted([lab.new(key=state.value, unique="active")]) == [Stored(owner, duplicate=True)]


def an_ended_job_gives_up_a_key_that_is_for_active_ones(lab: Lab) -> None:
    for state in TERMINAL:
        old = lab.in_state(state, key=state.value, unique="active")
        [new] = lab.accepted([lab.new(key=state.value, unique="active", payload='"else"')])
        assert not new.duplicate
        assert (new.job.key, lab.read(old)) == (state.value, old)
        assert lab.accepted([lab.new(key=state.value, payload='"else"')]) == [Stored(new.job, duplicate=True)]
    assert list(lab.store.check()) == []


def a_waiting_job_gives_up_its_key_when_it_is_claimed(lab: Lab) -> None:
    first = lab.job(key="k", unique="waiting")
    assert lab.accepted([lab.new(key="k", unique="waiting")]) == [Stored(first, duplicate=True)]
    running = lab.take(first)
    [second] = lab.accepted([lab.new(key="k", unique="waiting")])
    assert not second.duplicate
    assert lab.accepted([lab.new(key="k", unique="waiting")]) == [Stored(second.job, duplicate=True)]
    assert lab.read(first) == running


def whoever_asks_says_how_long_the_key_is_kept(lab: Lab) -> None:
    done = lab.in_state(State.SUCCEEDED, key="k", unique="active")
    assert lab.accepted([lab.new(key="k")]) == [Stored(done, duplicate=True)]
    assert not lab.accepted([lab.new(key="k", unique="active")])[0].duplicate


def a_key_that_is_kept_refuses_another_payload(lab: Lab) -> None:
    lab.job(key="k", unique="active")
    before = lab.counts()
    for unique in ("active", "waiting"):
        [answer] = lab.store.insert([[(lab.ids.take(1)[0], lab.new(key="k", unique=unique, payload="2"))]])
        assert isinstance(answer, KeyConflict)
    assert lab.counts() == before


def a_unique_key_used_twice_in_one_group_makes_one_job(lab: Lab) -> None:
    for unique in ("active", "waiting"):
        first, again = lab.accepted([lab.new(key=unique, unique=unique), lab.new(key=unique, unique=unique)])
        assert again == Stored(first.job, duplicate=True)


def a_unique_key_used_in_two_groups_of_one_call_makes_one_job(lab: Lab) -> None:
    ids = lab.ids.take(2)
    answers = lab.store.insert([[(id_, lab.new(key="k", unique="active"))] for id_ in ids])
    assert [answer[0].duplicate for answer in answers if isinstance(answer, list)] == [False, True]
    assert lab.store.read(ids[1:]) == [None]


def unique_keys_of_two_tenants_are_two_keys(lab: Lab) -> None:
    jobs = [lab.job(key="k", unique="active", tenant=tenant) for tenant in ("", "acme")]
    assert jobs[0].id != jobs[1].id


def a_unique_insert_asked_again_stores_nothing_twice(lab: Lab) -> None:
    lab.in_state(State.SUCCEEDED, key="k", unique="active")
    group = [(lab.ids.take(1)[0], lab.new(key="k", unique="active"))]
    first, again = lab.store.insert([group]), lab.store.insert([group])
    assert [[one.job for one in answer] for answer in first if isinstance(answer, list)] == [
        [one.job for one in answer] for answer in again if isinstance(answer, list)
    ]


def purging_the_former_job_leaves_a_unique_key_to_its_owner(lab: Lab) -> None:
    lab.in_state(State.SUCCEEDED, key="k", unique="active")
    lab.clock.advance(hours=1)
    owner = lab.job(key="k", unique="active", delay=RETENTION.dead)
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(10).jobs == 1
    assert lab.accepted([lab.new(key="k", unique="active")]) == [Stored(owner, duplicate=True)]
    assert list(lab.store.check()) == []


def the_window_of_a_unique_key_still_ends(lab: Lab) -> None:
    lab.job(key="k", unique="active", key_ttl=HOUR)
    lab.clock.advance(hours=1)
    assert not lab.accepted([lab.new(key="k", unique="active", key_ttl=HOUR)])[0].duplicate


def a_refused_group_leaves_a_unique_key_to_its_owner(lab: Lab) -> None:
    done = lab.in_state(State.SUCCEEDED, key="k", unique="active")
    lab.job(key="taken")
    news = [lab.new(key="k", unique="active"), lab.new(key="taken", payload="2")]
    [answer] = lab.store.insert([list(zip(lab.ids.take(2), news, strict=True))])
    assert isinstance(answer, KeyConflict)
    assert lab.accepted([lab.new(key="k")]) == [Stored(done, duplicate=True)]


def a_postponed_job_waits_from_now(lab: Lab) -> None:
    job = lab.job(delay=5 * SECOND)
    for _ in range(3):
        lab.clock.advance(seconds=4)
        job = lab.done(lifecycle.postpone(job, 5 * SECOND))
        assert job.available_at == lab.store.next_due(None) == lab.clock.now() + 5 * SECOND
    assert lab.claim() == []
    lab.clock.advance(seconds=5)
    assert lab.take(job).attempt == 1


def a_job_can_be_brought_forward(lab: Lab) -> None:
    job = lab.job(delay=HOUR)
    assert lab.done(lifecycle.postpone(job, 0)).available_at == lab.clock.now()
    assert lab.take(job).attempt == 1


def a_job_that_was_claimed_meanwhile_is_not_postponed(lab: Lab) -> None:
    job = lab.job()
    move = lifecycle.postpone(job, MINUTE)
    lab.take(job)
    lab.refused(move, Answer.ALREADY_CLAIMED)
    ended = lab.done(lifecycle.cancel(lab.job(), RETENTION))
    lab.refused(move._replace(id=ended.id), Answer.NO_OP_TERMINAL)
