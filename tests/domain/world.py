"""A small world in which the real lifecycle is tried out: two workers, a reaper, an operator and a sender of signals.

Each actor first looks and decides, and only later writes, so every decision can be overtaken by every other. A worker
may die at any moment, and a lease may end at any moment. A worker knows what it has written itself, and no more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from holdfast.domain import accounts, lifecycle
from holdfast.domain.errors import IllegalMove, InsufficientCredits
from holdfast.domain.job import PLAIN, TERMINAL, Account, Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.move import Move, Seen, Verb

RETENTION = Retention(0, 0, 0)
FLAKY = Failure("flaky", "", retryable=True)
HOPELESS = Failure("hopeless", "", retryable=False)
LONG_AFTER = 10
"""Reapers judge by this time, records are written at time zero: a lease may be over whenever a reaper looks."""
NEVER = 5
"""A snooze for so long does not end by itself."""
AWAITED = "go"


class Ghost(NamedTuple):
    """What a job has been through in this generation, counted by the test itself."""

    claims: int = 0
    returned: int = 0
    redrives: int = 0
    ending: str | None = None


class World(NamedTuple):
    """Everything that can make a difference to what happens next."""

    jobs: tuple[JobRecord, ...]
    ghosts: tuple[Ghost, ...]
    signals: tuple[tuple[tuple[str, str], ...], ...]
    workers: tuple[JobRecord | None, ...]
    reaper: Move | None = None
    operator: Move | None = None
    sender: Move | None = None
    account: Account | None = None


class Bounds(NamedTuple):
    """How small the world is. `claims` bounds the claims of one generation, give-backs included."""

    jobs: int
    max_attempts: int
    crash_cap: int
    claims: int
    redrives: int
    signals: int = 0
    children: bool = False
    undoable: bool = False
    granted: int = 0
    estimate: int = 0
    postpones: bool = False
    without: str = ""
    """An actor who stays away."""

    def __str__(self) -> str:
        defaults = self._field_defaults
        told = (f"{name}={value}" for name, value in self._asdict().items() if value != defaults.get(name))
        return " ".join(told)


class Step(NamedTuple):
    """One edge: what was done to which job, and the world it leaves."""

    verb: Verb | None
    job: int | None
    world: World


def start(bounds: Bounds) -> World:
    new = NewJob("echo", "{}", retry="fixed:0:0:0", max_attempts=bounds.max_attempts, crash_cap=bounds.crash_cap)
    account = Account("", bounds.granted, 0, 0) if bounds.granted else None
    news = accounts.reserve([new._replace(credits=bounds.estimate)] * bounds.jobs, account)
    jobs = tuple(lifecycle.create(str(n), new, 0) for n, new in enumerate(news))
    if account:
        account = account._replace(reserved=sum(new.reserved for new in news))
    each = bounds.jobs
    return World(jobs, (Ghost(),) * each, ((),) * each, (None,) * (1 if bounds.children else 2), account=account)


def steps(world: World, bounds: Bounds) -> Iterator[Step]:
    for worker, held in enumerate(world.workers):
        yield from claims(world, bounds, worker) if held is None else settles(world, bounds, worker, held)
    for n in range(len(world.jobs)):
        yield from wishes(world, bounds, n)
        yield from sends(world, bounds, n)
    if world.reaper:
        yield written(world._replace(reaper=None), world.reaper)
    if world.operator:
        yield written(world._replace(operator=None), world.operator)
    if world.sender:
        yield written(world._replace(sender=None), world.sender)


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


def settles(world: World, bounds: Bounds, worker: int, held: JobRecord) -> Iterator[Step]:
    """Let a worker do anything with what it holds, or believes to hold; or die."""
    n = int(held.id)
    gone = world._replace(workers=put(world.workers, worker, None))
    yield Step(None, None, gone)
    job = world.jobs[n]
    if (job.state, job.token, job.lease_id) == (State.RUNNING, held.token, held.lease_id):
        beaten = lifecycle.beat(job, lease=1, begun=True, now=0)
        yield Step(Verb.HEARTBEAT, n, world._replace(jobs=put(world.jobs, n, beaten)))
    yield written(world, lifecycle.start(held))
    for move in (
        lifecycle.fail(held, FLAKY, draw=0, retention=RETENTION),
        lifecycle.fail(held, HOPELESS, draw=0, retention=RETENTION),
        lifecycle.release(held),
    ):
        yield written(gone, move)
    if lifecycle.undoing(held):
        yield written(gone, lifecycle.undo(held, RETENTION))
        return
    if held.step_cursor == 0:
        for spend in (0, 1, 2) if bounds.granted else (0,):
            yield checked(
                world, worker, lifecycle.checkpoint(held, "step", None, undoable=bounds.undoable, spend=spend)
            )
    yield written(gone, lifecycle.complete(held, None, RETENTION, spend=bounds.granted and 1))
    yield written(gone, lifecycle.settle_cancel(held, RETENTION))
    yield from suspends(gone, bounds, held)


def checked(world: World, worker: int, move: Move) -> Step:
    """Record a step; who recorded it knows."""
    step = written(world, move)
    held = world.workers[worker]
    if step.job is None or held is None:
        return step
    knows = held._replace(step_cursor=1, flow=lifecycle.apply(held, move, 0).flow)
    return step._replace(world=step.world._replace(workers=put(world.workers, worker, knows)))


def suspends(gone: World, bounds: Bounds, held: JobRecord) -> Iterator[Step]:
    """Wait for a signal that was not there when the worker looked, or for a child."""
    if not bounds.signals or held.parent is not None:
        return
    heard = (held.flow or PLAIN).signals
    if AWAITED in {name for _, name in gone.signals[int(held.id)][:heard]}:
        return
    children: tuple[tuple[str, NewJob], ...] = ()
    if bounds.children and not (held.flow or PLAIN).children:
        new = NewJob("echo", "{}", retry="fixed:0:0:0", max_attempts=1, parent=held.id, credits=bounds.estimate)
        children = (("1", new),)
    yield written(
        gone,
        lifecycle.suspend(held, "~wait", None, delay=NEVER, awaits=AWAITED, heard=heard, children=children),
    )


def wishes(world: World, bounds: Bounds, n: int) -> Iterator[Step]:
    """Let those who hold nothing look at a job and decide."""
    job, ghost = world.jobs[n], world.ghosts[n]
    if (
        world.reaper is None
        and bounds.without != "reaper"
        and (move := decided(lambda: lifecycle.reap(job, LONG_AFTER, RETENTION)))
    ):
        yield Step(None, None, world._replace(reaper=move))
    if world.operator is None and bounds.without != "operator":
        asked = [lambda: lifecycle.cancel(job, RETENTION)]
        if ghost.redrives < bounds.redrives:
            asked.append(lambda: lifecycle.redrive(job))
        if bounds.postpones:
            asked.append(lambda: lifecycle.postpone(job, 0))
        for wish in asked:
            if move := decided(wish):
                yield Step(None, None, world._replace(operator=move))


def sends(world: World, bounds: Bounds, n: int) -> Iterator[Step]:
    """Let somebody decide to send a signal; where there are children, once one has ended."""
    job = world.jobs[n]
    ended = any(each.parent and each.state in TERMINAL for each in world.jobs)
    if world.sender is not None or job.parent is not None or (bounds.children and not ended):
        return
    for number in range(bounds.signals):
        name = "other" if number else AWAITED
        if move := decided(partial(lifecycle.signal, job, str(number), name, None)):
            yield Step(None, None, world._replace(sender=move))


def decided(wish: Callable[..., Move]) -> Move | None:
    try:
        return wish()
    except IllegalMove:
        return None


def written(world: World, move: Move) -> Step:
    """Commit one move as a store does: if its guard holds and it is paid for, and not otherwise."""
    n = int(move.id)
    job = world.jobs[n]
    refused = Step(None, None, world)
    if not lifecycle.holds(job, move) or (move.verb is Verb.CHECKPOINT and job.step_cursor):
        return refused
    if move.signal and move.signal[0] in {id_ for id_, _ in world.signals[n]}:
        return refused
    after = lifecycle.apply(job, move, 0)
    try:
        account, children = paid(world.account, job, after, move)
    except InsufficientCredits:
        return refused
    sent = ((move.signal[0], move.signal[1]),) if move.signal else ()
    born = tuple(lifecycle.create(id_, new, 0) for id_, new in children)
    return Step(
        move.verb,
        n,
        world._replace(
            jobs=put(world.jobs, n, after) + born,
            ghosts=put(world.ghosts, n, haunted(world.ghosts[n], job, move)) + (Ghost(),) * len(born),
            signals=put(world.signals, n, world.signals[n] + sent) + ((),) * len(born),
            account=account,
        ),
    )


def paid(
    account: Account | None, before: JobRecord, after: JobRecord, move: Move
) -> tuple[Account | None, list[tuple[str, NewJob]]]:
    if account is None:
        return None, list(move.children)
    if change := accounts.charge(before, after):
        if not accounts.affords(account, change):
            raise InsufficientCredits
        account = account._replace(reserved=account.reserved + change.reserved, spent=account.spent + change.spent)
    if not move.children:
        return account, []
    news = accounts.reserve([new for _, new in move.children], account)
    account = account._replace(reserved=account.reserved + sum(new.reserved for new in news))
    return account, list(zip((id_ for id_, _ in move.children), news, strict=True))


def haunted(ghost: Ghost, job: JobRecord, move: Move) -> Ghost:
    if move.verb is Verb.REDRIVE:
        return Ghost(redrives=ghost.redrives + 1, ending=ghost.ending)
    if move.ending:
        return Ghost(redrives=ghost.redrives, ending=move.ending)
    if move.verb is Verb.UNDO:
        return ghost._replace(ending=None)
    return ghost._replace(returned=ghost.returned + 1) if move.attempt < job.attempt else ghost


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
        known = (held.id, held.attempt, held.crashes, held.generation, held.step_cursor, held.flow)
        return known if mine else (held.id, "lost")

    jobs = tuple(
        job._replace(version=0, token=0, lease_owner=None, failure_code=None, failure_message=None)
        for job in world.jobs
    )
    workers = sorted(map(str, map(believes, world.workers)))
    actors = stands(world.reaper), stands(world.operator), stands(world.sender)
    return (jobs, world.ghosts, world.signals, tuple(workers), actors, world.account)
