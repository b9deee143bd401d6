"""Which jobs a claim takes: by one order where no rule holds, else by turns."""

import json
from collections import Counter
from collections.abc import Collection

from holdfast.domain.job import State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.picks import NOBODY, Picked
from holdfast.stores.sqlite.rows import Told
from holdfast.stores.sqlite.settlement import Settlement
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.trips import Refused, Take
from holdfast.stores.sqlite.turns import Turns


def claim(
    db: OwnConnection, want: Claim, now: Micros, turns: Turns, settlement: Settlement
) -> tuple[Told, Collection[str] | None]:
    """Lease runnable jobs, best first, of queues that are not paused, and finish a settlement.

    Give the jobs as `claimed` tells of them, and the queues in which others may start (all, if None).
    """
    ended = settlement.ended()
    if not settlement.pending:
        settlement.finish()  # what has just become claimable is found by the counters
    if (told := _take_again(db, want, now, turns, settlement)) is not None:
        return told, ()
    paused = turns.look(db)
    ringing = turns.ended(db, ended, sure=True) if turns.rules else ()
    picked = _pick(db, want, now, paused, turns=turns, settlement=settlement)
    if not picked.jobs:
        settlement.finish()
        return "[]", ringing
    for (queue, state), jobs in picked.jobs.items():
        settlement.deltas[queue, state] -= jobs
        settlement.deltas[queue, State.RUNNING] += jobs
    lease = want.lease_id, want.owner, want.lease, turns.counts
    settlement.finish(Take(picked.seqs, None, 0, 0, False, *lease))
    return picked.told or db.execute(SQL["claimed"], (picked.seqs,)).get, ringing


def _take_again(db: OwnConnection, want: Claim, now: Micros, turns: Turns, settlement: Settlement) -> str | None:
    """Claim where the last claim found all that there was, if all is as it was: by one statement. Else give None."""
    queue, stamp = turns.hunch()
    if queue is None or want.id is not None or want.tenant is not None or want.full:
        return None
    most = want.limit if want.queues is None else min(want.limit, want.queues.get(queue, 0))
    if most <= 0:
        return None
    only = want.queues is not None and len(want.queues) == 1
    try:
        settlement.finish(Take("[]", queue, most, stamp, only, want.lease_id, want.owner, want.lease, turns.counts))
    except Refused:
        return None
    turns.confirm()
    told: str = db.execute(SQL["claimed_just_now"], (now + want.lease, want.lease_id)).get
    return told


def _pick(
    db: OwnConnection, want: Claim, now: Micros, paused: frozenset[str], *, turns: Turns, settlement: Settlement
) -> Picked:
    """Choose the jobs to claim."""
    if want.id is not None:
        settlement.finish()
        return _pick_one(db, (want.id, now, want.tenant), paused, turns)
    room = _room(db, want, now, paused, turns)
    if want.tenant is None and turns.plain(room):
        turns.guess(room)
        return _pick_best(db, room, want.limit, now)
    plans = turns.plans(db, room, want)
    if any(plan.counts for plan in plans.values()):
        settlement.finish()  # who may go depends on what runs, at limits that may be reached
    if want.tenant is None and turns.simple(plans):
        allowed, gates = turns.gated(db, plans, room, now)
        best = _pick_best(db, allowed, want.limit, now)
        turns.passed(db, plans, gates, best.jobs)
        return best
    return turns.choose(db, room, plans, want, now)


def _room(db: OwnConnection, want: Claim, now: Micros, paused: frozenset[str], turns: Turns) -> dict[str, int]:
    """Say how many jobs of each queue are wanted."""
    if want.queues is None:
        room = {queue: want.limit for (queue,) in db.execute(SQL["waiting_queues"]) if queue not in want.full}
    else:
        room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    return turns.open(db, {queue: most for queue, most in room.items() if queue not in paused}, now)


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
        return NOBODY
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
