"""Copying: every job that waits or is dead goes from one store to another, and none is lost or runs twice.

The queues of the source are paused and its running jobs waited for. Then all jobs are held, adopted by the target, let
go by the source, and only after that does any of them arrive in the target (see `domain.moving`): a parent never
arrives without its children. Every call may be asked again, and what was done is told by the stores alone, so whoever
died in the middle is followed by anyone who asks for the same copy. Schedules and credits go the same way, one by one.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.client.limits import rules_of
from holdfast.client.settings import Settings
from holdfast.domain import moving
from holdfast.domain.errors import BadInput, KeyConflict, StoreError
from holdfast.domain.job import TERMINAL, JobRecord, State
from holdfast.domain.move import Answer, Move
from holdfast.domain.schedule import NEVER
from holdfast.port.parcel import Parcel
from holdfast.port.store import Query, ScheduleRecord, Store
from holdfast.runtime import upkeep

PAGE = 200
_TRIES = 20
_MARK = "~copy "
"""Begins the names of queues that no job is in, paused to tell one store from another."""
_LOOK = 0.1
"""Seconds between two looks at jobs that are still running."""
_ENTRIES = 10_000
_HOLDABLE = (State.RETRYING, State.QUEUED, State.CREATED, State.DEAD)
_WAITING = (State.QUEUED, State.RETRYING)
Advance = Callable[[int], None]


class Place(NamedTuple):
    """A store, and the name that notes and sentences give it: its address without a password."""

    store: Store
    name: str


@dataclass
class Report:
    """What a copy has done."""

    waiting: int = 0
    """Jobs that wait in the target now."""
    dead: int = 0
    finished: int = 0
    """Finished jobs that were copied."""
    schedules: list[str] = field(default_factory=list)
    credits: dict[str, int] = field(default_factory=dict)
    """What each tenant's account had to spare."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Jobs that were not moved, each with the reason."""
    paused: list[str] = field(default_factory=list)
    """Queues that were paused in the source before this."""
    tenants: list[str] = field(default_factory=list)
    """Tenants that are paused in the source and not in the target."""
    kinds: list[str] = field(default_factory=list)
    """The same of kinds."""
    ruled: list[str] = field(default_factory=list)
    """Queues whose limits or order are others in the target."""


def copy(
    source: Place,
    target: Place,
    settings: Settings,
    *,
    finished: bool = False,
    wait: float = 0,
    advance: Advance = lambda _: None,
) -> Report:
    """Move all waiting and dead jobs, the schedules and the credits; and copy all finished jobs, if asked for."""
    _require_two(source, target)
    _require_own(source, target)
    report = Report(paused=sorted(source.store.paused()))
    _quiet(source.store, settings, wait)
    report.schedules += _move_schedules(source.store, target.store)
    _hold_all(source, target)
    _require_quiet(source.store)
    for state in (State.SUCCEEDED, State.CANCELLED) if finished else ():
        for page in _pages(source.store, state):
            _copy_finished(source, target, page, report)
    for jobs in _batches(_held(source.store)):
        _send(source, target, jobs, settings, report)
    _let_arrive(source, target, report, advance)
    _move_credits(source, target, report)
    _compare_rules(source.store, target.store, report)
    return report


def undo(source: Place, target: Place, settings: Settings) -> Report:
    """Give back what an unfinished copy holds in the source; what has arrived in the target stays there."""
    _require_two(source, target)
    _require_own(source, target)
    report = Report(paused=sorted(source.store.paused()))
    for jobs in _batches(_held(source.store)):
        _take_back(source, target, jobs, settings, report)
    for record in source.store.schedules():
        fenced, next_at = divmod(record.next_at, NEVER + 1)
        if fenced:
            target.store.remove_schedule(record.name)
            plain = record._replace(next_at=next_at, paused=fenced > 1)
            if source.store.save_schedule(plain, record.version):
                report.schedules.append(record.name)
    return report


def _require_two(source: Place, target: Place) -> None:
    """Refuse to copy a store to itself, by whatever name: what is paused in one must not be paused in the other."""
    for stale in source.store.paused():
        if stale.startswith(_MARK):
            source.store.resume(stale)
    mark = f"{_MARK}{secrets.token_hex(8)}"
    source.store.pause(mark)
    try:
        same = mark in target.store.paused()
    finally:
        source.store.resume(mark)
    if same:
        msg = f"{source.name} and {target.name} are one and the same store; name another to copy to."
        raise BadInput(msg)


def _require_own(source: Place, target: Place) -> None:
    """Refuse if jobs are held in the source for the sake of another copy, which must come to its end first."""
    for parcel in _parcels(source.store, _held(source.store)):
        note = moving.note_of(parcel.job, parcel.steps)
        if (note.source, note.target) != (source.name, target.name):
            msg = (
                f"An unfinished copy from {note.source} to {note.target} holds jobs in {source.name}; finish it first: "
                f"holdfast copy --from {note.source} --to {note.target} (or the same with --undo)."
            )
            raise StoreError(msg)


def _quiet(store: Store, settings: Settings, wait: float) -> None:
    """Pause every queue, and wait until nothing runs and no family has anything left to tell."""
    end = time.monotonic() + wait
    while True:
        for queue in sorted({queue for (queue, state), number in store.counts().items() if number} - store.paused()):
            store.pause(queue)
        while upkeep.reap(store, settings) >= upkeep.BATCH:
            pass
        if not _running(store) or time.monotonic() >= end:
            break
        threading.Event().wait(_LOOK)
    _require_quiet(store)
    while upkeep.tend(store, settings) >= upkeep.BATCH:
        pass


def _compare_rules(source: Store, target: Store, report: Report) -> None:
    """Find the rules and pauses that jobs have left behind."""
    here, there = rules_of(source), rules_of(target)
    report.tenants += sorted(here.tenants - there.tenants)
    report.kinds += sorted(here.kinds - there.kinds)
    report.ruled += sorted(queue for queue, rule in here.rules.items() if there.rules.get(queue) != rule)


def _running(store: Store) -> int:
    if not store.capabilities.exact_counts:
        return sum(len(page) for page in _pages(store, State.RUNNING))
    return sum(number for (_, state), number in store.counts().items() if state is State.RUNNING)


def _require_quiet(store: Store) -> None:
    if running := _running(store):
        jobs = "1 job is" if running == 1 else f"{running:,} jobs are"
        msg = (
            f"{jobs} still running in the source, whose queues are paused now; nothing was moved. Let them end, or "
            "stop their workers and let their leases run out, and ask again (--wait says how long to wait for that)."
        )
        raise StoreError(msg)


def _pages(store: Store, state: State) -> Iterator[list[JobRecord]]:
    query = Query(state=state, limit=PAGE)
    while page := store.find(query):
        yield page
        query = query._replace(before=page[-1].id)


def _held(store: Store) -> list[str]:
    """List the jobs that are held, oldest first, so that they keep their order."""
    return sorted(job.id for state in _WAITING for page in _pages(store, state) for job in page if moving.held(job))


def _batches(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), PAGE):
        yield ids[start : start + PAGE]


def _parcels(store: Store, ids: list[str]) -> Iterator[Parcel]:
    for batch in _batches(ids):
        yield from store.parcels(batch)


def _hold_all(source: Place, target: Place) -> None:
    """Hold every job that waits or is dead, and those that came while this was done."""
    for _ in range(_TRIES):
        fresh = 0
        for state in _HOLDABLE:
            for page in _pages(source.store, state):
                moves = [moving.hold(job, source.name, target.name) for job in page if not moving.held(job)]
                fresh += len(moves)
                _commit(source.store, moves)
        if not fresh:
            return


def _commit(store: Store, moves: list[Move]) -> set[str]:
    """Write moves; give the ids of the jobs that were moved."""
    answers = store.commit(moves) if moves else []
    return {move.id for move, answer in zip(moves, answers, strict=True) if answer is Answer.OK}


def _send(source: Place, target: Place, ids: list[str], settings: Settings, report: Report) -> None:
    """Let the target adopt held jobs, with the finished children that they may ask for, and the source let them go."""
    parcels = source.store.parcels(ids)
    for parcel in parcels:
        if moving.note_of(parcel.job, parcel.steps).was["flow"] and parcel.job.flow and parcel.job.flow.children:
            _copy_finished(source, target, _children(source.store, parcel.job.id), report)
    leaving: list[Move] = []
    staying: list[Move] = []
    for parcel, answer in zip(parcels, target.store.adopt(parcels), strict=True):
        if answer is Answer.OK:
            kept = moving.kept_for(parcel.steps, parcel.job, settings.retention)
            leaving.append(moving.leave(parcel.job, target.name, kept))
            continue
        report.refused.append((parcel.job.id, _reason(answer)))
        if isinstance(answer, KeyConflict) or answer is Answer.UNWRITABLE:
            staying.append(moving.arrive(parcel.job, moving.note_of(parcel.job, parcel.steps)))
    _commit(source.store, leaving)
    _commit(source.store, staying)


def _reason(answer: Answer | KeyConflict) -> str:
    if isinstance(answer, KeyConflict):
        return str(answer)
    if answer is Answer.UNWRITABLE:
        return "The target cannot store what the job holds; the job stays in the source."
    return "The target has a job of this id that is another; the job stays held in the source."


def _children(store: Store, parent: str) -> list[JobRecord]:
    found: list[JobRecord] = []
    query = Query(parent=parent, limit=PAGE)
    while page := store.find(query):
        found += page
        query = query._replace(before=page[-1].id)
    return found


def _copy_finished(source: Place, target: Place, jobs: Iterable[JobRecord], report: Report) -> None:
    """Copy jobs that are finished; nobody runs them, so they may be in both stores."""
    ended = [job.id for job in jobs if job.state in TERMINAL and not moving.left(job)]
    for batch in _batches(ended):
        have = {job.id for job in target.store.read(batch) if job is not None and not moving.left(job)}
        parcels = source.store.parcels([id_ for id_ in batch if id_ not in have])
        for parcel, answer in zip(parcels, target.store.adopt(parcels), strict=True):
            if answer is Answer.OK:
                report.finished += 1
            else:
                report.refused.append((parcel.job.id, _reason(answer)))


def _let_arrive(source: Place, target: Place, report: Report, advance: Advance) -> None:
    """Let all jobs that the source has let go be in the target what they were."""
    for ids in _batches(_held(target.store)):
        here = {job.id for job in source.store.read(ids) if job is not None and not moving.left(job)}
        moves = []
        for parcel in target.store.parcels([id_ for id_ in ids if id_ not in here]):
            note = moving.note_of(parcel.job, parcel.steps)
            if (note.source, note.target) == (source.name, target.name):
                moves.append(moving.arrive(parcel.job, note))
        done = _commit(target.store, moves)
        dead = sum(move.id in done and move.state is State.DEAD for move in moves)
        report.dead += dead
        report.waiting += len(done) - dead
        advance(len(done))


def _take_back(source: Place, target: Place, ids: list[str], settings: Settings, report: Report) -> None:
    """Let the target give up what it holds, and then the source have it again."""
    parcels = source.store.parcels(ids)
    there = {job.id: job for job in target.store.read(ids) if job is not None and not moving.left(job)}
    held = [moving.leave(job, source.name, settings.retention.cancelled) for job in there.values() if moving.held(job)]
    for id_ in _commit(target.store, held):
        del there[id_]
    free = [parcel for parcel in parcels if parcel.job.id not in there]
    moves = [moving.arrive(parcel.job, moving.note_of(parcel.job, parcel.steps)) for parcel in free]
    done = _commit(source.store, moves)
    dead = sum(move.id in done and move.state is State.DEAD for move in moves)
    report.dead += dead
    report.waiting += len(done) - dead
    report.refused += [(id_, "The target has this job; it stays held in the source.") for id_ in sorted(there)]


def _move_schedules(source: Store, target: Store) -> list[str]:
    """Move the schedules; one that the target has already stays there as it is. Give the names.

    On the way a schedule is paused, and how often a whole age was added to its next time tells whether it was before.
    """
    moved: list[str] = []
    for record in source.schedules():
        fenced, next_at = divmod(record.next_at, NEVER + 1)
        plain = record._replace(next_at=next_at, paused=fenced > 1) if fenced else record
        if not fenced and not source.save_schedule(_fenced(record), record.version):
            continue  # it was fired in between, and is there for whoever asks again
        target.save_schedule(plain, None)
        source.remove_schedule(record.name)
        moved.append(record.name)
    return moved


def _fenced(record: ScheduleRecord) -> ScheduleRecord:
    return record._replace(next_at=record.next_at + (1 + record.paused) * (NEVER + 1), paused=True)


def _move_credits(source: Place, target: Place, report: Report) -> None:
    """Move what accounts have to spare: taken from the source under an id, and granted in the target under the same."""
    begins = f"copied to {target.name} "
    for account in source.store.accounts():
        tenant = account.tenant
        if account.available > 0:
            source.store.grant(tenant, -account.available, f"{begins}{secrets.token_hex(8)}")
        taken = {
            entry.step: -entry.granted
            for entry in source.store.entries(tenant, _ENTRIES)
            if entry.verb == "grant" and entry.step is not None and entry.step.startswith(begins)
        }
        before = target.store.account(tenant)
        for id_, amount in taken.items():
            target.store.grant(tenant, amount, id_)
        after = target.store.account(tenant)
        if after is not None and (gained := after.granted - (before.granted if before else 0)):
            report.credits[tenant] = gained
