"""Moving: a job from another store comes whole or not at all, once, and runs in one of the two only."""

from holdfast.domain import lifecycle, moving
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import Account, CreditEntry, JobRecord, State
from holdfast.domain.moments import DAY, HOUR, MINUTE
from holdfast.domain.move import Answer
from holdfast.port.parcel import Parcel
from holdfast.stores.memory import MemoryStore
from holdfast.testing.lab import FLAKY, RETENTION, Lab

_MOVABLE = (State.CREATED, State.QUEUED, State.RETRYING, State.DEAD)


def a_held_job_cannot_be_claimed_ended_or_disturbed(lab: Lab) -> None:
    for state in _MOVABLE:
        job = _hold(lab, lab.in_state(state, expires_after=HOUR))
        assert moving.held(job)
        lab.clock.advance(days=30)
        assert (lab.claim(5), lab.claim(5, id=job.id), lab.reap()) == ([], [], [])
        assert lab.read(job) == job


def a_job_that_leaves_keeps_a_final_record_of_where_it_went(lab: Lab) -> None:
    for state in _MOVABLE:
        job = _hold(lab, lab.in_state(state))
        left = lab.done(moving.leave(job, "elsewhere", 7 * DAY))
        assert moving.left(left)
        assert (left.state, left.failure_code, left.failure_message) == (State.CANCELLED, "moved", "moved to elsewhere")
        assert lab.claim(5, id=job.id) == []
        lab.refused(moving.leave(job, "elsewhere", 7 * DAY), Answer.NO_OP_TERMINAL)


def a_held_job_that_arrives_is_what_it_was(lab: Lab) -> None:
    for state in _MOVABLE:
        was = lab.in_state(state, delay=0, expires_after=DAY)
        back = _arrive(lab, _hold(lab, was))
        same = was._replace(state=State.QUEUED) if state is State.CREATED else was
        assert back == same._replace(version=was.version + 2, updated_at=back.updated_at)


def a_parcel_holds_all_that_is_kept_of_a_job(lab: Lab) -> None:
    job = _lived(lab, lab, key="k", key_ttl=HOUR)
    [parcel] = lab.store.parcels(["01890000-0000-7000-8000-000000000000", job.id])
    held = lab.held(job.id)
    assert (parcel.job, tuple(parcel.attempts), tuple(parcel.steps), tuple(parcel.signals)) == held
    assert (parcel.keyed, parcel.keyed_until) == (True, job.created_at + HOUR)
    lab.clock.advance(hours=1)
    assert not lab.store.parcels([job.id])[0].keyed, "the key is free by now"
    [bare] = lab.store.parcels([lab.job().id])
    assert (bare.attempts, bare.steps, bare.signals, bare.keyed) == ([], [], [], False)


def a_job_is_adopted_with_its_whole_past_and_once(lab: Lab) -> None:
    there = _elsewhere(lab)
    parent = lab.job()
    held = _hold(there, _lived(there, lab, key="k", key_ttl=HOUR, priority=7, queue="mail", parent=parent.id))
    [parcel] = there.store.parcels([held.id])
    before = lab.counts()
    assert lab.store.adopt([parcel, parcel]) == [Answer.OK, Answer.OK]
    assert lab.other.adopt([parcel]) == [Answer.OK]
    assert lab.store.parcels([held.id]) == [parcel]
    assert lab.counts() == before | {("mail", State.RETRYING): 1}
    assert lab.store.open_children([parent.id]) == {parent.id}
    assert (lab.claim(5, id=held.id), list(lab.store.check())) == ([], [])
    assert lab.accepted([lab.new(key="k")])[0].job.id == held.id
    lab.clock.advance(minutes=1)
    arrived = _arrive(lab, lab.read(held))
    again = lab.take(arrived)
    assert (again.token, again.priority) == (arrived.token + 1, 7)
    lab.done(lifecycle.checkpoint(again, "third", "3"))
    assert [step.name for step in lab.store.steps(held.id) if not step.name.startswith("~")] == ["first", "third"]
    lab.done(lifecycle.complete(lab.read(again), None, RETENTION))
    assert lab.store.adopt([parcel]) == [Answer.NO_OP_TERMINAL], "it has been here, and ran"


def a_finished_job_is_adopted_as_it_is(lab: Lab) -> None:
    there = _elsewhere(lab)
    ended = [there.in_state(state) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)]
    parcels = there.store.parcels([job.id for job in ended])
    assert lab.store.adopt(parcels) == lab.store.adopt(parcels) == [Answer.OK] * 3
    assert [lab.read(job) for job in ended] == ended
    assert list(lab.store.check()) == []


def a_job_comes_back_over_what_it_left_behind(lab: Lab) -> None:
    there = _elsewhere(lab)
    job = _hold(lab, _lived(lab, lab, key="k"))
    assert there.store.adopt(lab.store.parcels([job.id])) == [Answer.OK]
    lab.done(moving.leave(job, "there", 7 * DAY))
    arrived = _arrive(there, there.read(job))
    back = _hold(there, arrived)
    [parcel] = there.store.parcels([job.id])
    assert lab.store.adopt([parcel]) == [Answer.OK]
    assert lab.store.parcels([job.id]) == [parcel]
    assert lab.counts() == {(job.queue, State.RETRYING): 1}
    assert list(lab.store.check()) == []
    assert _arrive(lab, back).attempt == arrived.attempt


def a_job_that_is_there_otherwise_is_left_alone(lab: Lab) -> None:
    there = _elsewhere(lab)
    held = _hold(there, there.job())
    [parcel] = there.store.parcels([held.id])
    assert lab.store.adopt([parcel]) == [Answer.OK]
    arrived = _arrive(lab, lab.read(held))
    assert lab.store.adopt([parcel]) == [Answer.ALREADY_CLAIMED]
    assert lab.read(held) == arrived


def a_job_whose_key_is_taken_is_not_adopted(lab: Lab) -> None:
    there = _elsewhere(lab)
    owner = lab.job(key="k", key_ttl=MINUTE)
    jobs = [_hold(there, there.job(key=key)) for key in ("k", "free")]
    parcels = there.store.parcels([job.id for job in jobs])
    refused, adopted = lab.store.adopt(parcels)
    assert isinstance(refused, KeyConflict)
    assert owner.id in str(refused)
    assert adopted is Answer.OK
    assert lab.store.read([jobs[0].id]) == [None]
    lab.clock.advance(minutes=1)
    assert lab.store.adopt(parcels) == [Answer.OK, Answer.OK], "the key is free by now"
    assert list(lab.store.check()) == []


def credits_go_with_the_job_they_are_set_aside_for(lab: Lab) -> None:
    there = _elsewhere(lab)
    lab.store.grant("acme", 10, "g-1")
    job = _hold(lab, lab.job(tenant="acme", credits=4))
    assert there.store.adopt(lab.store.parcels([job.id])) == [Answer.OK]
    assert there.store.account("acme") == Account("acme", 4, 4, 0)
    lab.done(moving.leave(job, "there", 7 * DAY))
    assert lab.store.account("acme") == Account("acme", 6, 0, 0)
    assert lab.store.entries("acme", 1) == [
        CreditEntry("acme", "leave", job.id, 1, None, -4, -4, 0, lab.clock.now()),
    ]
    _hold(there, _arrive(there, there.read(job)))
    assert lab.store.adopt(there.store.parcels([job.id])) == [Answer.OK]
    assert lab.store.account("acme") == Account("acme", 10, 4, 0)
    assert lab.store.entries("acme", 1)[0][:8] == ("acme", "adopt", job.id, 1, None, 4, 4, 0)
    assert list(lab.store.check()) == []


def _elsewhere(lab: Lab) -> Lab:
    """Give a bench with another store, under the same clock."""
    store = MemoryStore(clock=lab.clock)
    return Lab(store, store, lab.clock, lambda: store, lab.ids)


def _hold(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(moving.hold(job, "here", "there"))


def _arrive(lab: Lab, job: JobRecord) -> JobRecord:
    return lab.done(moving.arrive(job, moving.note_of(job, lab.store.steps(job.id))))


def _lived(lab: Lab, ids: Lab, **fields: object) -> JobRecord:
    """Store a job that has a step, two signals and a failed attempt behind it, and waits to be tried again."""
    [id_] = ids.ids.take(1)
    lab.store.insert([[(id_, lab.new(**fields))]])
    [job] = lab.claim(id=id_)
    lab.done(lifecycle.checkpoint(job, "first", "1"))
    for name in ("b", "a"):
        lab.done(lifecycle.signal(lab.read(job), f"id-{name}", name, '"payload"'))
    return lab.done(lifecycle.fail(lab.read(job), FLAKY, draw=0, retention=RETENTION, traceback="line 1"))


def a_parcel_from_a_store_without_the_job_is_none(lab: Lab) -> None:
    assert lab.store.parcels([]) == []
    assert lab.store.parcels(lab.ids.take(2)) == []
    assert lab.store.adopt(list[Parcel]()) == []
