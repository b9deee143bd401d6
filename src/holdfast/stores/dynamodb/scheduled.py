"""The layout of the scheduled queue.

A job's item has the fields of the scheduled queue under their own names, as the dialect `scheduled` writes them, so
that other programs can read it; what the engine needs beyond them stands beside. The sort key holds a time and so
changes when the time does; a pointer item leads from a job's id to the key it has now.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.domain.dialects import DIALECTS, timestamp
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import TERMINAL, Flow, JobRecord, Retention, State
from holdfast.domain.moments import Micros, instant
from holdfast.port.store import Query
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place, attributes
from holdfast.stores.dynamodb.layout import FOREVER, HELD, LOOK, LOOK_AT, Part, look, seen, shard
from holdfast.stores.dynamodb.wire import Wire

SCHEDULED_KEYS = "scheduled#"
TERMINAL_KEYS = "terminal#"
_SCHEDULED = DIALECTS["scheduled"]
_STATES = {str(word): state for state, word in _SCHEDULED.statuses.items()}
_LONG_ERROR = 2_000
_LOOKS = 20
_RENAMED = {"kind": "job_type", "attempt": "attempts"}
_TIMES = {"available_at": "scheduled_for", "created_at": "created_at"}
_OWN = tuple(
    name for name in JobRecord._fields if name not in {"id", "payload", "state", "flow", "result", *_RENAMED, *_TIMES}
)
_FILTERS = {"kind": "job_type", "queue": "queue", "tenant": "tenant", "key": "idempotency_key", "parent": "parent"}


class Scheduled(NamedTuple):
    """Jobs by the time they are due, for a number of shards."""

    shards: int

    @property
    def notes_ends(self) -> bool:
        """Finished jobs lie by the time they may go."""
        return False

    @property
    def proves_keys(self) -> bool:
        """A job has a pointer, which takes a transaction."""
        return False

    def partitions(self, of: str = "job") -> list[str]:
        """Name all partitions; with one shard it is named as the scheduled queue names it."""
        return [of] if self.shards == 1 else [f"{of}#{number:02d}" for number in range(self.shards)]

    def place(self, job: JobRecord) -> Place:
        """Give the key of a job's item: by the time it is due, or once it has ended, by the time it may go. One that
        another program has ended, by its status alone, has no time at which it ended, and lies where it was due.
        """
        if job.state in TERMINAL and job.finished_at is not None:
            sk = f"{TERMINAL_KEYS}{timestamp(job.purge_at or 0)}#{job.id}"
        else:
            sk = f"{SCHEDULED_KEYS}{timestamp(job.available_at)}#{job.id}"
        return Place(self.partitions()[shard(job.id, self.shards)], sk)

    def _pointer(self, id_: str) -> Place:
        """Give the key of the item that tells where a job's item is."""
        return Place(self.partitions("job-id")[shard(id_, self.shards)], id_)

    def item(self, job: JobRecord, op: str | None) -> Item:
        """Write a job's item."""
        seed = _SCHEDULED.render(job, job.updated_at)
        place = self.place(job)
        values: dict[str, Any] = {
            **seed,
            "PK": place.pk,
            "SK": place.sk,
            "job_id": job.id,
            "state": job.state.value,
            "op_token": op,
            **{name: getattr(job, name) for name in _OWN},
            "flow": None if job.flow is None else json.dumps(job.flow, ensure_ascii=False),
        }
        if error := seed["last_error"]:
            values["last_error"] = error[:_LONG_ERROR]
        if items.apart(job):
            values["result_apart"] = True
        else:
            values["result"] = job.result
        if job.state is State.RUNNING:
            values |= {LOOK: look(HELD, job.id, self.shards), LOOK_AT: job.lease_expires_at or 0}
        return attributes(values)

    def pair(self, before: JobRecord, after: JobRecord, op: str) -> tuple[Item, Item]:
        """Write both items whole."""
        return self.item(before, None), self.item(after, op)

    def record(self, item: Item) -> JobRecord:
        """Read a job's item."""
        values = items.plain(item)
        flow = values.get("flow")
        own: dict[str, Any] = {name: values.get(name, JobRecord._field_defaults.get(name)) for name in _OWN}
        own |= {name: values[attribute] for name, attribute in _RENAMED.items()}
        own |= {name: instant(datetime.fromisoformat(values[attribute]), name) for name, attribute in _TIMES.items()}
        state = _state(values)
        if state in TERMINAL and own["purge_at"] is None:  # another program has ended it, and says nothing of that
            own["purge_at"] = own["available_at"] + Retention().of(state)
        return JobRecord(
            **own,
            id=values["job_id"],
            payload=values["payload"],
            state=state,
            flow=None if flow is None else Flow(*json.loads(flow)),
            result=values.get("result"),
        )

    def ours(self, item: Item) -> bool:
        """Tell whether an item of the jobs' partition was written by this engine, and has a status that is known."""
        return "version" in item and "job_id" in item and item.get("status", {}).get("S") in _STATES

    def understood(self, item: Item) -> JobRecord | None:
        """Read a job's item if it is one of ours."""
        return self.record(item) if self.ours(item) else None

    def pointers(self, job: JobRecord) -> list[Item]:
        """Write a job's pointer, with what lists are filtered by and never changes."""
        place = self.place(job)
        values = {
            "job_pk": place.pk,
            "job_sk": place.sk,
            "job_type": job.kind,
            "queue": job.queue,
            "tenant": job.tenant,
            "idempotency_key": job.key,
            "parent": job.parent,
        }
        return [self._pointer(job.id).key | attributes(values)]

    def redirected(self, job: JobRecord) -> list[Part]:
        """Let the job's pointer, and the record of its key if that is the job's, point to where it is now."""
        there = self.place(job)
        parts = [Part("pointer", _redirect(self._pointer(job.id), there))]
        if job.key is not None:
            parts.append(Part("key", _redirect(items.dedup(job.tenant, job.key), there, job.id)))
        return parts

    def fetch(self, wire: Wire, ids: Sequence[str]) -> dict[str, Item]:
        """Read the items of jobs: their pointers first."""
        found: dict[str, Item] = {}
        wanted = set(ids)
        for _ in range(_LOOKS):
            pointers = wire.get_all([self._pointer(id_) for id_ in wanted])
            places = {item["SK"]["S"]: _target(item) for item in pointers.values()}
            there = wire.get_all(list(places.values()))
            found |= {id_: there[place] for id_, place in places.items() if place in there}
            wanted = places.keys() - found.keys()  # moved between the two looks
            if not wanted:
                return found
        msg = f"The job {min(wanted)} in {wire.address.shown} did not stand still long enough to be read."
        raise StoreUnavailable(msg)

    def waiting(self, wire: Wire, upto: Micros | None, page: int) -> Iterator[Iterator[JobRecord]]:
        """Walk through the jobs that have not ended, by the time they are due: one walk for each shard."""
        last = f"{SCHEDULED_KEYS}~" if upto is None else items.upto(SCHEDULED_KEYS, upto)
        for pk in self.partitions():
            walk = wire.walk(pk, SCHEDULED_KEYS, last, limit=page)
            yield (self.record(item) for item in walk if self.ours(item))

    def leased(self, wire: Wire, upto: Micros | None = None) -> Iterator[JobRecord]:
        """Walk through the leased jobs: they lie by the end of their lease."""
        found = seen(wire, HELD, FOREVER if upto is None else upto)
        jobs = (self.record(item) for item in found if self.ours(item))
        return (job for job in jobs if job.state is State.RUNNING)

    def ended(self, wire: Wire, upto: Micros, page: int) -> Iterator[Item]:
        """Walk through the finished jobs: they lie by the time they may go. One that another program has ended lies
        where it was due; it is kept for as long as others from then on.
        """
        late = items.upto(SCHEDULED_KEYS, max(upto - min(Retention()), 0))
        for pk in self.partitions():
            walk = wire.walk(pk, TERMINAL_KEYS, items.upto(TERMINAL_KEYS, upto), limit=page)
            yield from (item for item in walk if self.ours(item))
            waiting = wire.walk(pk, SCHEDULED_KEYS, late, limit=page)
            yield from (item for item in waiting if self.ours(item) and self.record(item).state in TERMINAL)

    def listed(self, wire: Wire, query: Query) -> Iterator[str]:
        """Name the jobs that a filter may match, newest first: their pointers lie by id."""
        more = _filter(query)
        walks = [
            (item["SK"]["S"] for item in wire.walk(pk, " ", query.before or "~", newest=True, **more))
            for pk in self.partitions("job-id")
        ]
        yield from heapq.merge(*walks, reverse=True)

    def strange(self, item: Item) -> str | None:
        """Say what is wrong with an item among the jobs."""
        if item["PK"]["S"] not in self.partitions() or self.ours(item):
            return None
        name, status = item["SK"]["S"], item.get("status", {}).get("S")
        if status not in _STATES:
            return f"The item {name!r} has the status {status!r}, which no job has here; it is passed over."
        return f"The item {name!r} was not written by Holdfast and is passed over."

    def pointed(self, item: Item) -> str | None:
        """Name the job that an item is the pointer of."""
        return str(item["SK"]["S"]) if item["PK"]["S"] in self.partitions("job-id") else None


def _state(values: dict[str, Any]) -> State:
    """Read a job's state; one that another program has ended, by its status alone, has ended."""
    state, told = State(values["state"]), _STATES[values["status"]]
    return told if told in TERMINAL and state not in TERMINAL else state


def _target(pointer: Item) -> Place:
    return Place(pointer["job_pk"]["S"], pointer["job_sk"]["S"])


def _redirect(pointer: Place, to: Place, owner: str | None = None) -> dict[str, Any]:
    """Let a pointer point to another place; with an owner, only if it is that job's."""
    change: dict[str, Any] = {
        "Key": pointer.key,
        "UpdateExpression": "SET job_pk = :pk, job_sk = :sk",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeValues": {":pk": {"S": to.pk}, ":sk": {"S": to.sk}},
    }
    if owner is not None:
        change["ConditionExpression"] = "job_id = :id"
        change["ExpressionAttributeValues"][":id"] = {"S": owner}
    return {"Update": change}


def _filter(query: Query) -> dict[str, Any]:
    """Let the engine leave out pointers by what never changes, and ended or live jobs by where they point."""
    asked = {name: getattr(query, field) for field, name in _FILTERS.items() if getattr(query, field) is not None}
    parts = [f"#f_{name} = :f_{name}" for name in asked]
    names = {f"#f_{name}": name for name in asked}
    values: Item = {f":f_{name}": items.wire(value) for name, value in asked.items()}
    if query.state is not None:
        names["#f_at"] = "job_sk"
        values[":f_at"] = items.wire(TERMINAL_KEYS)
        parts.append(f"{'' if query.state in TERMINAL else 'NOT '}begins_with(#f_at, :f_at)")
    return {"FilterExpression": " AND ".join(parts), "names": names, "values": values} if parts else {}
