"""Which jobs a claim takes: by one order where no rule holds, else by turns."""

import json
from collections import Counter, defaultdict
from typing import NamedTuple

from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim
from holdfast.stores.sqlite import rows, tally
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas
from holdfast.stores.sqlite.turns import Turns


class Picked(NamedTuple):
    """The jobs to be claimed."""

    seqs: str
    """As JSON."""
    jobs: dict[tuple[str, State], int]
    """How many there are by queue and state."""
    told: str | None = None
    """What `claimed` will tell of them, if that is known already."""


def claim(db: OwnConnection, want: Claim, now: Micros, paused: frozenset[str], turns: Turns) -> list[JobRecord]:
    """Lease runnable jobs, best first, of queues that are not paused."""
    seqs, picked, told = _pick(db, want, now, paused, turns)
    if not picked:
        return []
    db.execute(SQL["claim"], (seqs, want.lease_id, want.owner, now, want.lease, turns.counts))
    deltas: Deltas = defaultdict(int)
    for (queue, state), jobs in picked.items():
        deltas[queue, state] -= jobs
        deltas[queue, State.RUNNING] += jobs
    tally.change(db, deltas)
    return rows.claimed(told or db.execute(SQL["claimed"], (seqs,)).get, want, now)


def _pick(db: OwnConnection, want: Claim, now: Micros, paused: frozenset[str], turns: Turns) -> Picked:
    """Choose the jobs to claim."""
    if want.id is not None:
        return _pick_one(db, (want.id, now, want.tenant), paused, turns)
    if want.queues is None:
        room = {queue: want.limit for (queue,) in db.execute(SQL["waiting_queues"]) if queue not in want.full}
    else:
        room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    room = {queue: most for queue, most in room.items() if queue not in paused}
    room = turns.open(db, room, now)
    if want.tenant is None and turns.plain(room):
        return _pick_best(db, room, want.limit, now)
    if want.tenant is None and turns.simple(room):
        allowed, gates = turns.gated(db, room, now)
        best = _pick_best(db, allowed, want.limit, now)
        turns.passed(db, gates, best.jobs)
        return best
    chosen = turns.choose(db, room, want.limit, now, want.tenant)
    counted = Counter((queue, state) for queue, _, state in chosen)
    picked = {(queue, State(state)): jobs for (queue, state), jobs in counted.items()}
    return Picked(json.dumps([seq for _, seq, _ in chosen]), picked)


def _pick_best(db: OwnConnection, room: dict[str, int], limit: int, now: Micros) -> Picked:
    """Choose by priority, due time and age alone."""
    for queue in room:
        db.execute(SQL["promote"], (queue, now))
    if len(room) == 1:
        ((queue, most),) = room.items()
        seqs, jobs, retrying, told = db.execute(SQL["pick"], (queue, now, most)).fetchone()
        counted = {(queue, State.QUEUED): jobs - retrying, (queue, State.RETRYING): retrying}
        return Picked(seqs, counted if jobs else {}, told)
    return _pick_across(db, room, limit, now)


def _pick_one(db: OwnConnection, one: tuple[str, Micros, str | None], paused: frozenset[str], turns: Turns) -> Picked:
    """Choose one job by its id, if it is due now and of the tenant."""
    row = db.execute(SQL["pick_one"], one).fetchone()
    if row is None or row[1] in paused or not turns.admits(db, row[0], row[1], one[1]):
        return Picked("[]", {})
    return Picked(f"[{row[0]}]", {(row[1], State(row[2])): 1})


def _pick_across(db: OwnConnection, room: dict[str, int], limit: int, now: Micros) -> Picked:
    """Choose among several queues by one order."""
    found = [
        (-priority, available_at, seq, queue, state)
        for queue, most in room.items()
        for seq, priority, available_at, state in json.loads(
            db.execute(SQL["pick_ranked"], (queue, now, most)).fetchone()[0]
        )
    ]
    best = sorted(found)[:limit]
    picked = Counter((queue, State(state)) for _, _, _, queue, state in best)
    return Picked(json.dumps([seq for _, _, seq, _, _ in best]), picked)
