"""Children: stored with the move that spawns them or not at all, and found by their parent."""

# ruff: noqa: PLR2004 - expected values are meant to be seen

from collections import Counter

from holdfast.domain import lifecycle
from holdfast.domain.job import TERMINAL, Flow, JobRecord, NewJob, State
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.domain.move import Answer, Held, Move
from holdfast.port.store import Query
from holdfast.testing.lab import RETENTION, Lab

_Children = tuple[tuple[str, NewJob], ...]


def children_are_stored_with_the_move_that_spawns_them(lab: Lab) -> None:
    job = lab.running()
    lab.clock.advance(seconds=1)
    children = (
        *_children(lab, job, 2),
        *_children(lab, job, 1, queue="mail", tenant="acme", priority=-2, delay=9 * SECOND, payload='"ü"', user="zoë"),
        *_children(lab, job, 1, state=State.CREATED, code_version=3, expires_after=HOUR, steps_total=2, trace_id="t"),
        *_children(lab, job, 1, steps=(("fetch", "1"),)),
    )
    waits = lab.done(_gather(job, children))
    assert waits.flow == Flow(awaits="children", children=5)
    assert lab.store.read([id_ for id_, _ in children]) == [
        lifecycle.create(id_, new, lab.clock.now()) for id_, new in children
    ]
    assert [step.name for step in lab.store.steps(children[4][0])] == ["fetch"]
    assert sorted(child.id for child in lab.claim(9)) == sorted(children[n][0] for n in (0, 1, 4))


def children_of_a_refused_move_are_not_stored(lab: Lab) -> None:
    for spoil in (_stale, _ended, _asked_to_stop, _reaped):
        job = lab.running()
        move = _gather(job, _children(lab, job, 2))
        answer = spoil(lab, job)
        if spoil is _stale:
            move = move._replace(guard=Held(job.token + 1, str(job.lease_id)))
        lab.refused(move, answer)
        assert lab.store.find(Query(parent=job.id)) == []


def a_move_asked_again_spawns_nobody_twice(lab: Lab) -> None:
    job = lab.running()
    move = _gather(job, _children(lab, job, 2))
    assert lab.store.commit([move, move]) == [Answer.OK, Answer.OK]
    assert lab.answer(move) is Answer.OK
    assert len(lab.store.find(Query(parent=job.id))) == 2
    assert lab.read(job).flow == Flow(awaits="children", children=2)


def any_move_may_spawn(lab: Lab) -> None:
    for decide in (
        lambda job: lifecycle.checkpoint(job, "spawn", "1"),
        lambda job: lifecycle.complete(job, None, RETENTION),
        lifecycle.release,
    ):
        job = lab.running()
        [child] = _children(lab, job, 1)
        after = lab.done(decide(job)._replace(children=(child,)))
        assert after.flow == Flow(children=1)
        assert lab.store.read([child[0]]) == [lifecycle.create(*child, lab.clock.now())]


def a_step_on_record_spawns_nobody(lab: Lab) -> None:
    job = lab.running()
    lab.done(lifecycle.checkpoint(job, "spawn", "1"))
    lab.refused(lifecycle.checkpoint(job, "spawn", "1")._replace(children=_children(lab, job, 1)), Answer.OK)


def families_of_one_call_do_not_mix(lab: Lab) -> None:
    lab.jobs(3)
    parents = lab.claim(3)
    moves = [_gather(job, _children(lab, job, n + 1)) for n, job in enumerate(parents)]
    moves[1] = moves[1]._replace(guard=Held(9, "x"))
    assert lab.store.commit(moves) == [Answer.OK, Answer.ALREADY_CLAIMED, Answer.OK]
    assert [len(lab.store.find(Query(parent=job.id))) for job in parents] == [1, 0, 3]


def children_are_counted_like_other_jobs(lab: Lab) -> None:
    lab.need("exact_counts")
    job = lab.running()
    lab.done(_gather(job, (*_children(lab, job, 3, queue="mail"), *_children(lab, job, 1, state=State.CREATED))))
    found = lab.store.find(Query(limit=100))
    assert lab.counts() == Counter((each.queue, each.state) for each in found)
    assert list(lab.store.check()) == []


def children_may_have_children(lab: Lab) -> None:
    job = lab.running()
    lab.done(_gather(job, _children(lab, job, 1)))
    [child] = lab.claim(1)
    lab.done(_gather(child, _children(lab, child, 1)))
    [grandchild] = lab.claim(1)
    assert grandchild.parent == child.id
    assert lab.store.open_children([job.id, child.id, grandchild.id]) == {job.id, child.id}


def find_lists_the_children_of_a_job(lab: Lab) -> None:
    job, other = lab.running(), lab.running()
    lab.done(_gather(job, _children(lab, job, 3)))
    lab.done(_gather(other, _children(lab, other, 1)))
    family = lab.store.find(Query(parent=job.id))
    assert [child.parent for child in family] == [job.id] * 3
    assert [child.id for child in family] == sorted((child.id for child in family), reverse=True)
    [held] = lab.claim(1, id=family[1].id)
    assert lab.store.find(Query(parent=job.id, state=State.RUNNING)) == [held]
    assert lab.store.find(Query(parent=job.id, before=held.id)) == [family[2]]
    assert lab.store.find(Query(parent=job.id, limit=2)) == [family[0], held]
    assert lab.store.find(Query(parent=held.id)) == []


def a_child_is_open_until_it_has_ended(lab: Lab) -> None:
    for state in State:
        parent = lab.job(delay=HOUR)
        child = lab.in_state(state, parent=parent.id)
        lab.in_state(State.SUCCEEDED, parent=parent.id)
        opened = lab.store.open_children([parent.id])
        assert opened == (frozenset() if state in TERMINAL else {parent.id}), state
        if state in (State.CREATED, State.QUEUED):
            lab.done(lifecycle.cancel(child, RETENTION))
    assert lab.store.open_children([]) == frozenset()
    assert lab.store.open_children([*lab.ids.take(2), lab.job().id]) == frozenset()


def only_the_parents_asked_about_are_named(lab: Lab) -> None:
    parents = lab.jobs(3, delay=HOUR)
    for parent in parents[:2]:
        lab.jobs(2, parent=parent.id, delay=MINUTE)
    assert lab.store.open_children([parents[1].id, parents[2].id]) == {parents[1].id}


def children_stay_when_their_parent_is_purged(lab: Lab) -> None:
    job = lab.running()
    children = _children(lab, job, 1, delay=RETENTION.succeeded + HOUR)
    lab.done(lifecycle.complete(job, None, RETENTION)._replace(children=children))
    lab.clock.advance(microseconds=RETENTION.succeeded)
    assert lab.store.purge(5).jobs == 1
    [child] = lab.store.find(Query(parent=job.id))
    assert (child.id, child.parent) == (children[0][0], job.id)
    assert list(lab.store.check()) == []


def _children(lab: Lab, parent: JobRecord, number: int, **fields: object) -> _Children:
    return tuple((id_, lab.new(parent=parent.id, **fields)) for id_ in lab.ids.take(number))


def _gather(job: JobRecord, children: _Children) -> Move:
    return lifecycle.suspend(job, "~gather", None, awaits="children", children=children)


def _stale(lab: Lab, job: JobRecord) -> Answer:  # noqa: ARG001 - one of several ways
    return Answer.ALREADY_CLAIMED


def _ended(lab: Lab, job: JobRecord) -> Answer:
    lab.done(lifecycle.complete(job, None, RETENTION))
    return Answer.NO_OP_TERMINAL


def _asked_to_stop(lab: Lab, job: JobRecord) -> Answer:
    lab.done(lifecycle.cancel(job, RETENTION))
    return Answer.CANCEL_REQUESTED


def _reaped(lab: Lab, job: JobRecord) -> Answer:
    lab.lapse()
    for late in lab.store.expired(10):
        lab.done(lifecycle.reap(late, lab.clock.now(), RETENTION))
    assert lab.read(job).state is not State.RUNNING
    return Answer.ALREADY_CLAIMED
