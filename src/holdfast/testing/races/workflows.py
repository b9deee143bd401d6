"""Races around workflows: signals and those who wait for them, parents and children, undoing, putting off."""

from functools import partial

from holdfast.domain import events, lifecycle
from holdfast.domain.job import Flow, JobRecord, NewJob, State
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer, Event, Move
from holdfast.port.store import Claim, EventRecord, Query, ScheduleRecord, Store
from holdfast.testing.lab import HOPELESS, RETENTION, Lab, Stored, stored
from holdfast.testing.races.start import together

_ROUNDS = 30
_MANY = 200


def a_signal_is_never_lost_to_a_job_that_is_about_to_wait_for_it(lab: Lab) -> None:
    for _ in range(_MANY):
        job = lab.running()
        wait = lifecycle.suspend(job, "~wait", None, awaits="go")
        sent, slept = together(partial(_send, lab.other, job.id, "s-1"), partial(_commit, lab.store, wait))
        assert (sent, slept) == (Answer.OK, Answer.OK)
        after = lab.read(job)
        assert (after.state, after.flow) == (State.RETRYING, Flow(awaits="go", signals=1))
        assert after.available_at == lab.clock.now(), "the signal was lost"
        assert len(lab.store.signals(job.id)) == 1
        lab.store.commit([lifecycle.complete(lab.take(after), None, RETENTION)])


def two_signals_at_once_are_both_kept(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = _waiting(lab)
        answers = together(partial(_send, lab.store, job.id, "s-1"), partial(_send, lab.other, job.id, "s-2"))
        assert answers == [Answer.OK, Answer.OK]
        assert {signal.id for signal in lab.store.signals(job.id)} == {"s-1", "s-2"}
        assert lab.take(job).flow == Flow(awaits="go", signals=2)


def a_signal_sent_twice_counts_once(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = _waiting(lab)
        answers = together(partial(_send, lab.store, job.id, "s-1"), partial(_send, lab.other, job.id, "s-1"))
        assert answers == [Answer.OK, Answer.OK]
        assert lab.read(job).version == job.version + 1
        assert len(lab.store.signals(job.id)) == 1


def the_last_of_two_children_to_end_finds_none_open(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        parent = lab.running()
        children = tuple((id_, lab.new(parent=parent.id)) for id_ in lab.ids.take(2))
        lab.done(lifecycle.suspend(parent, "~gather", None, awaits="go", children=children))
        left, right = (lab.claim(id=id_)[0] for id_, _ in children)
        alone = together(partial(_end, lab.store, left), partial(_end, lab.other, right))
        assert any(alone), "nobody was left to wake the parent"
        assert lab.take(parent).flow == Flow(awaits="go", children=2, signals=1)


def a_cancelled_parent_knows_every_child_it_has(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        parent = lab.running()
        child = (lab.ids.take(1)[0], lab.new(parent=parent.id, delay=MINUTE))
        spawn = lifecycle.suspend(parent, "~gather", None, awaits="go", children=(child,))
        spawned, asked = together(partial(_commit, lab.store, spawn), partial(_cancel, lab.other, parent.id))
        after, family = lab.read(parent), lab.store.find(Query(parent=parent.id))
        told = [event.name for event in lab.store.events(0, 1_000) if event.job_id == parent.id]
        assert asked is Answer.OK
        if spawned is Answer.OK:
            assert (after.state, len(family), told) == (State.CANCELLED, 1, [events.PARENT_CANCELLED])
        else:
            assert (spawned, after.state, family, told) == (Answer.CANCEL_REQUESTED, State.RUNNING, [], [])
            assert after.cancel_requested


def one_who_undoes_late_cannot_end_the_job_of_the_next(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        job = lab.done(lifecycle.checkpoint(lab.running(crash_cap=9), "charge", None, undoable=True))
        old = lab.take(lab.done(lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION)))
        lab.lapse()
        [lost] = lab.reap()

        def undo(lost: JobRecord = lost) -> list[Answer]:
            held = lab.take(lost)
            return lab.store.commit([lifecycle.note(held, "~undo", '"new"'), lifecycle.undo(held, RETENTION)])

        late = [lifecycle.undo(old, RETENTION), lifecycle.complete(old, '"late"', RETENTION)][round_ % 2]
        refused, undone = together(partial(lab.other.commit, [lifecycle.note(old, "~undo", '"old"'), late]), undo)
        assert Answer.OK not in refused
        assert undone == [Answer.OK, Answer.OK]
        after = lab.held(job.id)
        assert after.job is not None
        assert (after.job.state, after.job.token, after.job.result) == (State.DEAD, 3, None)
        assert [step.result for step in after.steps if step.name == "~undo"] == ['"new"']


def a_putting_off_and_a_claim_never_both_win(lab: Lab) -> None:
    for _ in range(_ROUNDS):
        job = lab.job()
        move, want = lifecycle.postpone(job, MINUTE), lab.want(id=job.id)
        put_off, claimed = together(partial(_written, lab.store, move), partial(_took, lab.other, want))
        assert put_off != claimed
        after = lab.read(job)
        assert after.version == job.version + 1
        assert after.state is (State.QUEUED if put_off else State.RUNNING)
        assert after.available_at == lab.clock.now() + (MINUTE if put_off else 0)


def two_enqueuers_of_a_key_that_was_given_up_make_one_job(lab: Lab) -> None:
    for round_ in range(_ROUNDS):
        key = f"k{round_}"
        old = lab.in_state(State.SUCCEEDED, key=key, unique="active")
        new = lab.new(key=key, unique="active")
        left, right = lab.ids.take(2)
        answers = together(partial(_insert, lab.store, left, new), partial(_insert, lab.other, right, new))
        assert sorted(answer.duplicate for answer in answers) == [False, True]
        assert answers[0].job == answers[1].job != old


def two_savers_of_one_schedule_never_both_win(lab: Lab) -> None:
    for seen in (None, *range(1, _ROUNDS)):
        records = [ScheduleRecord("daily", f'"{side}"', seen or 0) for side in ("left", "right")]
        saved = together(
            partial(lab.store.save_schedule, records[0], seen), partial(lab.other.save_schedule, records[1], seen)
        )
        assert sorted(saved) == [False, True]
        assert lab.store.schedules() == [records[saved.index(True)]._replace(version=(seen or 0) + 1)]


def a_reader_of_events_never_misses_one(lab: Lab) -> None:
    lab.jobs(_MANY)
    halves = lab.claim(_MANY // 2), lab.claim(_MANY // 2)

    def tell(store: Store, jobs: list[JobRecord]) -> list[EventRecord]:
        for n, job in enumerate(jobs):
            move = lifecycle.start(job) if n % 3 else lifecycle.complete(job, None, RETENTION)
            store.commit([move._replace(events=(Event(job.id, "told", "{}"),))])
        return []

    def read(store: Store) -> list[EventRecord]:
        seen: list[EventRecord] = []
        while len(seen) < _MANY:
            more = store.events(seen[-1].position if seen else 0, 7)
            assert all(event.position > (seen[-1].position if seen else 0) for event in more)
            seen += more
        return seen

    _, _, seen, again = together(
        partial(tell, lab.store, halves[0]),
        partial(tell, lab.other, halves[1]),
        partial(read, lab.store),
        partial(read, lab.other),
    )
    assert seen == again == lab.store.events(0, _MANY + 1)
    assert {event.id for event in seen} == {job.id for half in halves for job in half}


def _waiting(lab: Lab) -> JobRecord:
    return lab.done(lifecycle.suspend(lab.running(), "~wait", None, awaits="go"))


def _send(store: Store, id_: str, signal: str) -> Answer:
    """Send a signal as anybody does: look, decide, and look again if the job has changed meanwhile."""
    while True:
        [job] = store.read([id_])
        assert job is not None
        if (answer := _commit(store, lifecycle.signal(job, signal, "go", None))) is not Answer.ALREADY_CLAIMED:
            return answer


def _cancel(store: Store, id_: str) -> Answer:
    while True:
        [job] = store.read([id_])
        assert job is not None
        move = events.told(job, lifecycle.cancel(job, RETENTION), public=False)
        if (answer := _commit(store, move)) is not Answer.ALREADY_CLAIMED:
            return answer


def _end(store: Store, child: JobRecord) -> bool:
    """End a child, and wake its parent if no other is open."""
    assert _commit(store, lifecycle.complete(child, None, RETENTION)) is Answer.OK
    parent = str(child.parent)
    alone = parent not in store.open_children([parent])
    if alone:
        assert _send(store, parent, "ended") is Answer.OK
    return alone


def _insert(store: Store, id_: str, new: NewJob) -> Stored:
    [answer] = store.insert([[(id_, new)]])
    return stored(answer)[0]


def _written(store: Store, move: Move) -> bool:
    return _commit(store, move) is Answer.OK


def _took(store: Store, want: Claim) -> bool:
    return store.claim(want) != []


def _commit(store: Store, move: Move) -> Answer:
    [answer] = store.commit([move])
    return answer
