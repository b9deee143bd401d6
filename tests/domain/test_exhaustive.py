"""Every order of events in a small world, tried out on the real lifecycle.

Two workers, a reaper and an operator act on one or two jobs. Each actor first looks and decides, and only later writes,
so every decision can be overtaken by every other. A worker may die at any moment, and a lease may end at any moment.
Worlds that differ in nothing that matters are visited once. At every step the journal is checked against the promises:

- S8: a claim takes the next token, nothing else touches it, and no two workers hold one lease;
- S14: every pair of states is a transition, and the version grows by one;
- S15: a finished job changes by a redrive alone;
- S16: nothing of a cancelled job is claimed;
- S18: attempts are claims less give-backs, and never more than allowed.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import TERMINAL, Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.lifecycle import TRANSITIONS, Held, Move, Seen, Verb

RETENTION = Retention(0, 0, 0)
FLAKY = Failure("flaky", "", retryable=True)
HOPELESS = Failure("hopeless", "", retryable=False)
LONG_AFTER = 10
"""Reapers judge by this time, records are written at time zero: a lease may be over whenever a reaper looks."""


class Ghost(NamedTuple):
    """What a job has been through in this generation, counted by the test itself."""

    claims: int = 0
    returned: int = 0
    redrives: int = 0


class World(NamedTuple):
    """Everything that can make a difference to what happens next."""

    jobs: tuple[JobRecord, ...]
    ghosts: tuple[Ghost, ...]
    workers: tuple[JobRecord | None, ...]
    reaper: Move | None
    operator: Move | None


class Bounds(NamedTuple):
    """How small the world is. `claims` bounds the claims of one generation, give-backs included."""

    jobs: int
    max_attempts: int
    crash_cap: int
    claims: int
    redrives: int


class Step(NamedTuple):
    """One edge: what was done to which job, and the world it leaves."""

    verb: Verb | None
    job: int | None
    world: World


def start(bounds: Bounds) -> World:
    new = NewJob("echo", "{}", retry="fixed:0:0:0", max_attempts=bounds.max_attempts, crash_cap=bounds.crash_cap)
    jobs = tuple(lifecycle.create(str(n), new, 0) for n in range(bounds.jobs))
    return World(jobs, (Ghost(),) * bounds.jobs, (None, None), None, None)


def steps(world: World, bounds: Bounds) -> Iterator[Step]:
    for worker, held in enumerate(world.workers):
        yield from claims(world, bounds, worker) if held is None else settles(world, worker, held)
    for n, job in enumerate(world.jobs):
        if world.reaper is None and (move := decided(lambda job=job: lifecycle.reap(job, LONG_AFTER, RETENTION))):
            yield Step(None, None, world._replace(reaper=move))
        if world.operator is None:
            wishes = [lambda job=job: lifecycle.cancel(job, RETENTION)]
            if world.ghosts[n].redrives < bounds.redrives:
                wishes.append(lambda job=job: lifecycle.redrive(job))
            for wish in wishes:
                if move := decided(wish):
                    yield Step(None, None, world._replace(operator=move))
    if world.reaper:
        yield written(world._replace(reaper=None), world.reaper)
    if world.operator:
        yield written(world._replace(operator=None), world.operator)


def claims(world: World, bounds: Bounds, worker: int) -> Iterator[Step]:
    for n, job in enumerate(world.jobs):
        if lifecycle.runnable(job, 0) and world.ghosts[n].claims < bounds.claims:
            leased = lifecycle.claim(job, lease_id=f"w{worker}", owner="", lease=1, now=0)
            ghost = world.ghosts[n]._replace(claims=world.ghosts[n].claims + 1)
            workers = put(world.workers, worker, leased)
            yield Step(
                Verb.CLAIM,
                n,
                world._replace(jobs=put(world.jobs, n, leased), ghosts=put(world.ghosts, n, ghost), workers=workers),
            )


def settles(world: World, worker: int, held: JobRecord) -> Iterator[Step]:
    """Let a worker do anything with what it holds, or believes to hold; or die."""
    n = int(held.id)
    gone = world._replace(workers=put(world.workers, worker, None))
    yield Step(None, None, gone)
    job = world.jobs[n]
    if (job.state, job.token, job.lease_id) == (State.RUNNING, held.token, held.lease_id):
        beaten = lifecycle.beat(job, lease=1, begun=True, now=0)
        yield Step(Verb.HEARTBEAT, n, world._replace(jobs=put(world.jobs, n, beaten)))
    yield written(world, lifecycle.start(held))
    if held.step_cursor + job.step_cursor == 0:
        yield written(world, lifecycle.checkpoint(held, "step", None))
    for move in (
        lifecycle.complete(held, None, RETENTION),
        lifecycle.fail(held, FLAKY, draw=0, retention=RETENTION),
        lifecycle.fail(held, HOPELESS, draw=0, retention=RETENTION),
        lifecycle.release(held),
        lifecycle.settle_cancel(held, RETENTION),
    ):
        yield written(gone, move)


def decided(wish: Any) -> Move | None:
    try:
        move: Move = wish()
    except IllegalMove:
        return None
    return move


def written(world: World, move: Move) -> Step:
    """Commit one move as a store does: if its guard holds, and not otherwise."""
    n = int(move.id)
    job, ghost = world.jobs[n], world.ghosts[n]
    if not lifecycle.holds(job, move):
        return Step(None, None, world)
    after = lifecycle.apply(job, move, 0)
    if move.verb is Verb.REDRIVE:
        ghost = Ghost(redrives=ghost.redrives + 1)
    elif move.attempt < job.attempt:
        ghost = ghost._replace(returned=ghost.returned + 1)
    return Step(move.verb, n, world._replace(jobs=put(world.jobs, n, after), ghosts=put(world.ghosts, n, ghost)))


def put(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


def essence(world: World) -> tuple[Any, ...]:
    """What two worlds must share to be the same: not a version's number, only whether a decision made on it stands."""

    def stands(move: Move | None) -> Any:
        if move is None:
            return None
        fresh = isinstance(move.guard, Seen) and world.jobs[int(move.id)].version == move.guard.version
        return move._replace(guard=Seen(0)) if fresh else "stale"

    def believes(held: JobRecord | None) -> Any:
        if held is None:
            return None
        job = world.jobs[int(held.id)]
        mine = (job.token, job.lease_id) == (held.token, held.lease_id)
        return (held.id, held.attempt, held.crashes, held.generation, held.step_cursor) if mine else (held.id, "lost")

    jobs = tuple(
        job._replace(version=0, token=0, lease_owner=None, failure_code=None, failure_message=None)
        for job in world.jobs
    )
    workers = sorted(map(str, map(believes, world.workers)))
    return (jobs, world.ghosts, tuple(workers), stands(world.reaper), stands(world.operator))


def check(before: World, step: Step, bounds: Bounds) -> None:
    after = step.world
    for n, (old, new, ghost) in enumerate(zip(before.jobs, after.jobs, after.ghosts, strict=True)):
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
    assert {
        Verb.CLAIM,
        Verb.START,
        Verb.HEARTBEAT,
        Verb.COMPLETE,
        Verb.FAIL,
        Verb.RELEASE,
        Verb.REAP,
        Verb.CANCEL,
    } <= verbs
    if bounds.redrives:
        waiting = {(State.CREATED, new) for new in State} | {(State.QUEUED, State.DEAD), (State.RETRYING, State.DEAD)}
        assert pairs == TRANSITIONS - waiting
