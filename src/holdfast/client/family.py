"""Parents and children: a parent is woken when its last child has ended, and children are cancelled with their parent.

Whoever ends a job does this at once; should it die in between, the event that was written with the end tells the
leading worker to do it (see `domain.events`).
"""

import secrets
from collections.abc import Iterable

from holdfast.client.durable import CHILDREN
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import TERMINAL, JobRecord, Retention
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Query, Store

OWN = "holdfast."
"""Begins the names of Holdfast's own sinks and events."""
_PAGE = 500
_TRIES = 20


def listened(store: Store) -> bool:
    """Tell whether any sink of a user's is registered."""
    return any(not name.startswith(OWN) for name in store.sinks())


def wake(store: Store, parents: Iterable[str]) -> None:
    """Tell parents that have no open child left; one that waits for that runs at once, others hear of it in time."""
    waiting = {parent for parent in parents if parent}
    if not waiting:
        return
    waiting -= store.open_children(sorted(waiting))
    for _ in range(_TRIES):
        moves = [move for job in store.read(sorted(waiting)) if job is not None and (move := _told(job)) is not None]
        if not moves:
            return
        answers = store.commit(moves)
        waiting = {move.id for move, answer in zip(moves, answers, strict=True) if answer is not Answer.OK}


def _told(parent: JobRecord) -> Move | None:
    """Give the signal for a parent; none for one that has come to its end."""
    try:
        return lifecycle.signal(parent, secrets.token_hex(8), CHILDREN, None)
    except IllegalMove:
        return None


def cancel_children(store: Store, retention: Retention, parent: str, *, public: bool) -> int:
    """Cancel all children of a job that have not ended, and theirs; give their number."""
    done = 0
    query = Query(parent=parent, limit=_PAGE)
    while page := store.find(query):
        for child in page:
            done += _cancel(store, retention, child, public=public)
        query = query._replace(before=page[-1].id)
    return done


def _cancel(store: Store, retention: Retention, child: JobRecord, *, public: bool) -> bool:
    job: JobRecord | None = child
    for _ in range(_TRIES):
        if job is None or job.state in TERMINAL or job.cancel_requested:
            return False
        try:
            move = events.told(job, lifecycle.cancel(job, retention), public=public)
        except IllegalMove:
            return False
        if store.commit([move]) == [Answer.OK]:
            tend(store, retention, [(job, move)], public=public)
            return True
        (job,) = store.read([job.id])
    return False


def tend(store: Store, retention: Retention, written: Iterable[tuple[JobRecord, Move]], *, public: bool) -> None:
    """Do for families what moves that were written ask for, without waiting for their events to come round."""
    parents: set[str] = set()
    for job, move in written:
        for event in move.events:
            if event.name == events.PARENT_CANCELLED:
                cancel_children(store, retention, job.id, public=public)
            elif event.name == events.CHILD_ENDED and job.parent is not None:
                parents.add(job.parent)
    wake(store, parents)


def relay(store: Store, retention: Retention, position: int, limit: int, *, public: bool) -> tuple[int, int]:
    """Do what events from behind a position ask for; give the position reached and the number of events seen."""
    found = store.events(position, limit)
    ended = [event.job_id for event in found if event.name == events.CHILD_ENDED]
    if ended:
        wake(store, {job.parent for job in store.read(ended) if job is not None and job.parent is not None})
    for event in found:
        if event.name == events.PARENT_CANCELLED:
            cancel_children(store, retention, event.job_id, public=public)
    return (found[-1].position if found else position), len(found)
