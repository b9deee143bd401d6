"""How a group of jobs is stored, whatever through: a generator that yields statements and is sent their rows.

So the same steps serve our own connections and a caller's, of whatever driver, blocking or not.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.ledger import Ledger

Rows = Sequence[Sequence[Any]]
Statement = tuple[str, dict[str, Any]]
Steps = Generator[Statement, Rows, list[Inserted]]
Slot = tuple[str, NewJob, JobRecord | None]
"""A job and, if another has its place, that one."""
Key = tuple[str, str]
"""A tenant and a key of its own."""


def plain(new: NewJob) -> bool:
    """Tell whether a job can be stored with nothing around it: no key, credits, steps, parent or group."""
    return new.key is None and not new.credits and not new.steps and new.parent is None and new.group is None


class Insertion(NamedTuple):
    """The steps that store a group, for whoever has a connection to carry them out on."""

    steps: Steps
    divisible: bool
    """It may be refused after something was written: a key, before another one or the credits are seen to."""


Place = Callable[[NewJob], str | None]
"""Gives the path of a job that has a place in a lane as soon as it is stored."""


def nowhere(new: NewJob) -> None:
    """Give no path: the job waits in its queue."""


def insertion(group: InsertGroup, now: Micros | None) -> Insertion:
    """Make ready to store a group of jobs that are not stored yet."""
    keys = sum(new.key is not None for _, new in group)
    divisible = keys > 1 or (keys > 0 and any(new.credits for _, new in group))
    return Insertion(store(group, now, again=False), divisible)


def store(group: InsertGroup, now: Micros | None, *, again: bool, place: Place = nowhere) -> Steps:
    """Store a group, whole or not at all; raises `KeyConflict` or `InsufficientCredits`.

    `again` says that its ids may be stored already.
    """
    known = (yield from _records([id_ for id_, _ in group])) if again else {}
    held = yield from _take_keys(group, known, now)
    ledger = yield from _ledger(group, known)
    slots: list[Slot] = []
    fresh: dict[str, NewJob] = {}
    kept: dict[Key, str] = {}
    for id_, new in group:
        owner = known.get(id_) or _owner(new, held.owners, kept, known)
        if owner is None:
            fresh[id_] = funded = ledger.reserve(id_, new)
            known[id_] = lifecycle.create(id_, funded, 0)
            if new.key is not None:
                kept[new.tenant, new.key] = id_
        slots.append((id_, fresh.get(id_, new), owner))
    seized = {key: (id_, fresh[id_]) for key, id_ in kept.items() if held.ids.get(key) != id_}
    if seized:
        yield "seize_keys", _wished(seized, now)
    stored = yield from _put(list(fresh.items()), ledger, now, place)
    at = max((job.created_at for job in stored.values()), default=0)
    return [_answer(slot, stored, at) for slot in slots]


def statements(fresh: Sequence[tuple[str, NewJob]], now: Micros | None) -> list[Statement]:
    """Give what stores new jobs that have no keys."""
    return [*(statement(batch, now) for batch in rows.batches(fresh)), *_belongings(fresh)]


def statement(batch: rows.Batch, now: Micros | None, place: Place = nowhere) -> Statement:
    """Give the statement that stores a batch of jobs; it answers with the time."""
    shared, ones = batch
    first = place(ones[0][1])
    path = None if first is None or any(place(new) is None for _, new in ones) else first
    values = rows.inserted(batch, now)
    return ("insert", values) if shared.plain and path is None else ("insert_flowing", {**values, "path": path})


def _belongings(fresh: Sequence[tuple[str, NewJob]]) -> list[Statement]:
    """Give the statements that store what some jobs have besides: steps, a parent."""
    made: list[Statement] = []
    if steps := [(id_, new.steps) for id_, new in fresh if new.steps]:
        made.append(("insert_steps", _recorded(steps)))
    if children := [(id_, new.parent) for id_, new in fresh if new.parent is not None]:
        ids, parents = zip(*children, strict=True)
        made.append(("insert_children", {"ids": list(ids), "parents": list(parents)}))
    return made


def _recorded(steps: Sequence[tuple[str, tuple[tuple[str, str | None], ...]]]) -> dict[str, Any]:
    """Give the parameters of `insert_steps`; the steps a job starts out with come before version 1."""
    each = [
        (id_, place - len(recorded), name, result)
        for id_, recorded in steps
        for place, (name, result) in enumerate(recorded)
    ]
    ids, positions, names, results = zip(*each, strict=True)
    return {"ids": list(ids), "positions": list(positions), "names": list(names), "results": list(results)}


def _put(
    fresh: Sequence[tuple[str, NewJob]], ledger: Ledger, now: Micros | None, place: Place
) -> Generator[Statement, Rows, dict[str, JobRecord]]:
    """Store new jobs and what they cost; give their records. All are stored at the same time: they come due in the
    order in which they were given, whatever they are.
    """
    stored: dict[str, JobRecord] = {}
    at = now
    for batch in rows.batches(fresh):
        ((at,),) = yield statement(batch, at, place)
        stored.update({id_: lifecycle.create(id_, new, at) for id_, new in batch[1]})
    for besides in (*_belongings(fresh), *ledger.statements(now)):  # noqa: UP028 - its rows are sent in, which a tuple would not take
        yield besides
    return stored


def _owner(
    new: NewJob, owners: dict[Key, JobRecord], kept: dict[Key, str], known: dict[str, JobRecord]
) -> JobRecord | None:
    """Give the job that keeps its key from a new one; raises `KeyConflict` if that is something else."""
    if new.key is None:
        return None
    key = (new.tenant, new.key)
    owner = known[kept[key]] if key in kept else owners.get(key)
    if owner is None or not lifecycle.owns_key(owner, new):
        return None
    if not lifecycle.same_request(owner, new):
        raise lifecycle.key_conflict(new, owner)
    return owner


def _answer(slot: Slot, stored: dict[str, JobRecord], at: Micros) -> Inserted:
    id_, new, owner = slot
    if owner is None:
        return Inserted(id_, new, stored[id_].created_at)
    found = stored.get(owner.id, owner)
    return Inserted(id_, new, at or found.created_at, found, duplicate=found.id != id_)


class _Keys(NamedTuple):
    """Who has the keys that a group asks for: by id, and the records of those that had them before."""

    ids: dict[Key, str]
    owners: dict[Key, JobRecord]


def _take_keys(
    group: InsertGroup, known: dict[str, JobRecord], now: Micros | None
) -> Generator[Statement, Rows, _Keys]:
    """Take the keys that are free, and lock the others, whose owners are read; and who asked, if that is `known`."""
    wishes: dict[Key, tuple[str, NewJob]] = {}
    for id_, new in group:
        if new.key is not None and id_ not in known:
            wishes.setdefault((new.tenant, new.key), (id_, new))
    if not wishes:
        return _Keys({}, {})
    values = _wished(wishes, now)
    taken = {id_ for (id_,) in (yield "take_keys", values)}
    ids = {key: id_ for key, (id_, _) in wishes.items() if id_ in taken}
    if len(ids) == len(wishes):
        return _Keys(ids, {})
    found = yield "key_owners", {"tenants": values["tenants"], "keys": values["keys"]}
    held = {(tenant, key): id_ for tenant, key, id_ in found}
    ours = [id_ for key, (id_, _) in wishes.items() if key not in ids]
    records = yield from _records([*(id_ for key, id_ in held.items() if key not in ids), *ours])
    known.update({id_: records[id_] for id_ in ours if id_ in records})
    return _Keys(held, {key: records[id_] for key, id_ in held.items() if id_ in records})


def _wished(wishes: dict[Key, tuple[str, NewJob]], now: Micros | None) -> dict[str, Any]:
    """Give the parameters with which keys are taken."""
    return {
        "now": now,
        "tenants": [tenant for tenant, _ in wishes],
        "keys": [key for _, key in wishes],
        "ids": [id_ for id_, _ in wishes.values()],
        "ttls": [new.key_ttl for _, new in wishes.values()],
    }


def _ledger(group: InsertGroup, known: dict[str, JobRecord]) -> Generator[Statement, Rows, Ledger]:
    """Lock the accounts that a group may take credits of."""
    tenants = sorted({new.tenant for id_, new in group if new.credits and id_ not in known})
    return Ledger((yield "lock_accounts", {"tenants": tenants})) if tenants else Ledger()


def _records(ids: list[str]) -> Generator[Statement, Rows, dict[str, JobRecord]]:
    found = yield "read", {"ids": ids}
    return {record.id: record for record in map(rows.record, found)}
