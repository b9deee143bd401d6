"""How a group of jobs is stored, whatever through: a generator that yields statements and is sent their rows.

So the same steps serve our own connections and a caller's, of whatever driver, blocking or not.
"""

from collections.abc import Generator, Sequence
from typing import Any

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, NewJob
from holdfast.domain.moments import Micros
from holdfast.port.store import Inserted, InsertGroup
from holdfast.stores.postgres import rows

Rows = Sequence[Sequence[Any]]
Statement = tuple[str, dict[str, Any]]
Steps = Generator[Statement, Rows, list[Inserted]]
Slot = tuple[str, NewJob, JobRecord | str | None]
"""A job and, if another has its place, that one (by its id, while it is not stored itself)."""


def store(group: InsertGroup, now: Micros | None, *, again: bool) -> Steps:
    """Store a group, whole or not at all; raises `KeyConflict`. `again` says that its ids may be stored already."""
    known = (yield from _records([id_ for id_, _ in group])) if again else {}
    owners = yield from _take_keys(group, known, now)
    slots: list[Slot] = []
    taken: dict[tuple[str, str], tuple[str, NewJob]] = {}
    fresh: list[tuple[str, NewJob]] = []
    for id_, new in group:
        owner: JobRecord | str | None = known.get(id_)
        if owner is None and new.key is not None:
            owner = owners.get((new.tenant, new.key))
            if owner is not None:
                if not lifecycle.same_request(owner, new):
                    raise lifecycle.key_conflict(new, owner)
            elif first := taken.get((new.tenant, new.key)):
                holder = lifecycle.create(*first, 0)
                if not lifecycle.same_request(holder, new):
                    raise lifecycle.key_conflict(new, holder)
                owner = first[0]
            else:
                taken[new.tenant, new.key] = (id_, new)
        if owner is None:
            fresh.append((id_, new))
            known[id_] = lifecycle.create(id_, new, 0)
        slots.append((id_, new, owner))
    stored: dict[str, JobRecord] = {}
    at: Micros = 0
    for batch in rows.batches(fresh):
        ((at,),) = yield "insert", rows.inserted(batch, now)
        stored.update({id_: lifecycle.create(id_, new, at) for id_, new in batch[1]})
    return [_answer(slot, at, stored) for slot in slots]


def _answer(slot: Slot, at: Micros, stored: dict[str, JobRecord]) -> Inserted:
    id_, new, owner = slot
    if owner is None:
        return Inserted(id_, new, stored[id_].created_at)
    found = stored.get(owner if isinstance(owner, str) else owner.id, owner)
    assert isinstance(found, JobRecord)
    return Inserted(id_, new, at or found.created_at, found, duplicate=found.id != id_)


def _take_keys(
    group: InsertGroup, known: dict[str, JobRecord], now: Micros | None
) -> Generator[Statement, Rows, dict[tuple[str, str], JobRecord]]:
    """Take the keys that are free; give the jobs that own the others."""
    wishes: dict[tuple[str, str], tuple[str, Micros | None]] = {}
    for id_, new in group:
        if new.key is not None and id_ not in known:
            wishes.setdefault((new.tenant, new.key), (id_, new.key_ttl))
    if not wishes:
        return {}
    tenants, keys = [tenant for tenant, _ in wishes], [key for _, key in wishes]
    taken = yield (
        "take_keys",
        {
            "now": now,
            "tenants": tenants,
            "keys": keys,
            "ids": [id_ for id_, _ in wishes.values()],
            "ttls": [ttl for _, ttl in wishes.values()],
        },
    )
    if len(taken) == len(wishes):
        return {}
    ours = {id_ for (id_,) in taken}
    held = yield "key_owners", {"tenants": tenants, "keys": keys}
    owners = {(tenant, key): id_ for tenant, key, id_ in held if id_ not in ours}
    records = yield from _records(list(owners.values()))
    return {wish: records[id_] for wish, id_ in owners.items() if id_ in records}


def _records(ids: list[str]) -> Generator[Statement, Rows, dict[str, JobRecord]]:
    found = yield "read", {"ids": ids}
    return {record.id: record for record in map(rows.record, found)}
