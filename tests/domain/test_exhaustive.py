"""Every order of events in a small world, tried out on the real lifecycle.

Worlds that differ in nothing that matters are visited once. At every step the journal is checked against the promises:

- S8: a claim takes the next token, nothing else touches it, and no two workers hold one lease;
- S14: every pair of states is a transition, and the version grows by one;
- S15: a finished job changes by a redrive alone;
- S16: nothing of a cancelled job is claimed;
- S18: attempts are claims less give-backs, and never more than allowed;
- S28: what is spent and set aside is never more than was granted, and the account is the sum of its jobs;
- a signal is never lost: a job that awaits one it has been sent is due;
- a job whose steps can be undone comes to no bad end before they are, and then to the one it was to come to.
"""

from collections import deque

import pytest

from holdfast.domain.job import PLAIN, TERMINAL, JobRecord, State
from holdfast.domain.move import TRANSITIONS, Held, Verb
from tests.domain.world import Bounds, Ghost, Step, World, essence, start, steps


def check(before: World, step: Step, bounds: Bounds) -> None:
    after = step.world
    for n, (old, new, ghost) in enumerate(zip(before.jobs, after.jobs, after.ghosts, strict=False)):
        if n != step.job:
            assert new == old, "S9: a refused write changed a job"
            continue
        assert (old.state, new.state) in TRANSITIONS, f"S14: {old.state} became {new.state} by {step.verb}"
        assert new.version == old.version + 1, "S14: version"
        assert new.token == old.token + (step.verb is Verb.CLAIM), "S8: token"
        assert old.state not in TERMINAL or step.verb is Verb.REDRIVE, f"S15: {step.verb} changed a finished job"
        assert old.state is not State.CANCELLED, "S16: a cancelled job moved"
        assert new.attempt == ghost.claims - ghost.returned, "S18: attempts are claims less give-backs"
        assert 0 <= new.attempt <= bounds.max_attempts, "S18: bounded attempts"
        assert new.crashes <= bounds.crash_cap, "S18: bounded crashes"
        assert (new.state is State.RUNNING) == (new.lease_expires_at is not None), "S8: a lease outside of running"
        holders = [held for held in after.workers if held and held.id == new.id and new.state is State.RUNNING]
        live = [held for held in holders if Held(held.token, held.lease_id or "") == (new.token, new.lease_id)]
        assert len(live) <= 1, "S8: two workers hold one lease"
        check_ending(step.verb, new, before.ghosts[n])
    check_signals(after)
    check_books(after)


def check_ending(verb: Verb | None, new: JobRecord, ghost: Ghost) -> None:
    """Look at how a job ended, if it did; `ghost` tells what was to come of it before."""
    flow = new.flow or PLAIN
    if new.state not in TERMINAL:
        return
    if verb is Verb.UNDO:
        assert ghost.ending == ":".join(filter(None, (new.state.value, new.cause))), "an end that was not to come"
        assert (flow.undoes, flow.ending) == (0, None)
    elif ghost.ending:
        assert new.state is State.DEAD, "only what cannot be undone may keep a job from the end it was to come to"
        assert flow.ending == ghost.ending, "who tries again must know what for"
    elif new.state is not State.SUCCEEDED:
        assert not flow.undoes, f"{verb} ended a job before its steps were undone"


def check_signals(world: World) -> None:
    for job, sent in zip(world.jobs, world.signals, strict=True):
        flow = job.flow or PLAIN
        assert flow.signals == len(sent), "a signal that was not counted"
        if job.state is State.RETRYING and flow.awaits in {name for _, name in sent}:
            assert job.available_at == 0, "a signal was lost: the job it was for still waits"
        children = [child for child in world.jobs if child.parent == job.id]
        assert flow.children == len(children), "children without their parent's word, or the other way round"


def check_books(world: World) -> None:
    flows = [job.flow or PLAIN for job in world.jobs]
    assert not any(flow.reserved for job, flow in zip(world.jobs, flows, strict=True) if job.state in TERMINAL)
    if account := world.account:
        assert account.spent == sum(flow.spent for flow in flows), "S28: spent"
        assert account.reserved == sum(flow.reserved for flow in flows), "S28: reserved"
        assert account.available >= 0, "S28: overspent"


def explore(bounds: Bounds) -> tuple[int, set[tuple[State, State]], set[Verb | None]]:
    first = start(bounds)
    seen = {hash(essence(first))}
    front = deque([first])
    pairs: set[tuple[State, State]] = set()
    verbs: set[Verb | None] = set()
    while front:
        world = front.popleft()
        for step in steps(world, bounds):
            check(world, step, bounds)
            if step.job is not None:
                pairs.add((world.jobs[step.job].state, step.world.jobs[step.job].state))
                verbs.add(step.verb)
            if (mark := hash(essence(step.world))) not in seen:
                seen.add(mark)
                front.append(step.world)
    return len(seen), pairs, verbs


USUAL = {Verb.CLAIM, Verb.START, Verb.HEARTBEAT, Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.REAP, Verb.CANCEL}
OVERDUE = {(State.CREATED, new) for new in State} | {(State.QUEUED, State.DEAD), (State.RETRYING, State.DEAD)}
"""What needs a job that was only created, or one that was to start by a certain time."""


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(jobs=1, max_attempts=3, crash_cap=3, claims=5, redrives=1),
        Bounds(jobs=1, max_attempts=3, crash_cap=2, claims=4, redrives=1),
        Bounds(jobs=1, max_attempts=1, crash_cap=3, claims=3, redrives=1),
        Bounds(jobs=2, max_attempts=2, crash_cap=2, claims=1, redrives=0),
    ],
    ids=str,
)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds) -> None:
    number, pairs, verbs = explore(bounds)
    assert number > 1_000
    assert verbs >= USUAL
    if bounds.redrives:
        assert pairs == TRANSITIONS - OVERDUE - {(State.QUEUED, State.QUEUED), (State.RETRYING, State.RETRYING)}


@pytest.mark.parametrize(
    ("bounds", "more"),
    [
        (
            Bounds(jobs=1, max_attempts=1, crash_cap=2, claims=2, redrives=0, signals=2, without="operator"),
            {Verb.SIGNAL, Verb.SNOOZE, Verb.CHECKPOINT},
        ),
        (
            Bounds(jobs=1, max_attempts=2, crash_cap=2, claims=2, redrives=1, undoable=True),
            {Verb.UNDO, Verb.REDRIVE, Verb.CHECKPOINT},
        ),
        (
            Bounds(jobs=1, max_attempts=1, crash_cap=1, claims=2, redrives=0, undoable=True, signals=1, postpones=True),
            {Verb.UNDO, Verb.SIGNAL, Verb.POSTPONE, Verb.SNOOZE},
        ),
        (
            Bounds(jobs=1, max_attempts=2, crash_cap=2, claims=2, redrives=1, granted=3, estimate=1, undoable=True),
            {Verb.UNDO, Verb.CHECKPOINT},
        ),
        (
            Bounds(
                jobs=2, max_attempts=1, crash_cap=1, claims=1, redrives=0, granted=3, estimate=1, without="operator",
            ),
            {Verb.CHECKPOINT},
        ),
        (
            Bounds(
                jobs=1, max_attempts=1, crash_cap=1, claims=2, redrives=0, signals=1, children=True, granted=2,
                estimate=1, without="reaper",
            ),
            {Verb.SNOOZE, Verb.SIGNAL},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Bounds) else "",
)  # fmt: skip
def test_no_order_of_events_breaks_a_promise_of_workflows(bounds: Bounds, more: set[Verb]) -> None:
    number, pairs, verbs = explore(bounds)
    assert number > 1_000
    assert verbs >= (USUAL | more) - {"reaper": {Verb.REAP}, "operator": {Verb.CANCEL}}.get(bounds.without, set())
    assert pairs <= TRANSITIONS
    if bounds.signals:
        assert (State.RETRYING, State.RETRYING) in pairs
