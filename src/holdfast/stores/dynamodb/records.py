"""Jobs as items: read by id, listed by time, and changed under the condition that nobody changed them meanwhile.

A worker settles what it claimed a moment ago, so the records of claims are remembered: a change is tried on what is
remembered, under a condition that fails if the record is not that any more, and then looked at again.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.domain.job import TERMINAL, JobRecord, State, StepRecord
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.contract import LISTED, STATUSES
from holdfast.stores.dynamodb.items import Item, beside
from holdfast.stores.dynamodb.layout import LOOK, LOOK_AT, Layout, Part
from holdfast.stores.dynamodb.past import step_item
from holdfast.stores.dynamodb.proofs import Proofs
from holdfast.stores.dynamodb.steps import Steps, steps_of
from holdfast.stores.dynamodb.wire import Wire

__all__ = ["PARTS", "Part", "Records", "absent", "put"]

PARTS = 100
"""How many items one transaction may write."""
_ENTRY = (LOOK, LOOK_AT)
"""The entry of a job in the index: written as a whole, since a claim may have left it where it stood."""
_REMEMBERED = 2_000
_NONE = Steps()
_LARGE = 16 * 1024


class _Known(NamedTuple):
    """What is remembered of a job: of this version, its record unless it is large, and the steps in its item if they
    are known.
    """

    version: int
    job: JobRecord | None
    steps: Steps | None


class Records:
    """The jobs of a table."""

    def __init__(self, wire: Wire, layout: Layout) -> None:
        self._wire = wire
        self.layout = layout
        self.proofs = Proofs(wire)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, job: JobRecord, steps: Steps | None) -> None:
        """Keep a record for whoever is likely to change it next, with the steps in its item if they are known; ended
        and large ones are let go.
        """
        record = None if len(job.payload) > _LARGE else job
        with self._lock:
            self._known.pop(job.id, None)
            if job.state not in TERMINAL:
                self._known[job.id] = _Known(job.version, record, steps)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def remembered(self, id_: str) -> JobRecord | None:
        """Give a record as it was last seen here."""
        with self._lock:
            known = self._known.get(id_)
            return known.job if known else None

    def running(self) -> int:
        """Count the jobs that were claimed here and have not ended, as far as they are remembered."""
        with self._lock:
            return sum(known.job is not None and known.job.state is State.RUNNING for known in self._known.values())

    def known_steps(self, job: JobRecord) -> Steps | None:
        """Give the steps in the item of this very record, if they are remembered."""
        with self._lock:
            known = self._known.get(job.id)
            return known.steps if known and known.version == job.version else None

    def steps(self, job: JobRecord) -> Steps:
        """Give the steps in a job's item. If the record is old by now they may be others; then nothing that is decided
        on it can be written.
        """
        if (known := self.known_steps(job)) is not None:
            return known
        item = self.item(job.id) or {}
        found = steps_of(item)
        if item and self.layout.record(item).version == job.version:
            self.remember(job, found)
        return found

    def item(self, id_: str) -> Item | None:
        """Read a job's item as it is now."""
        return self._ours([id_]).get(id_)

    def _ours(self, ids: Sequence[str]) -> dict[str, Item]:
        return {id_: item for id_, item in self.rows(ids).items() if self.layout.ours(item)}

    def rows(self, ids: Sequence[str]) -> dict[str, Item]:
        """Read what lies under the ids of jobs as it is now, ours or not."""
        return {id_: self.proofs.proved(item) for id_, item in self.layout.fetch(self._wire, ids).items()}

    def strange(self, id_: str) -> str | None:
        """Say why what lies under a job's id is no job, if something does."""
        item = self.layout.fetch(self._wire, [id_]).get(id_)
        return None if item is None else self.layout.strange(item)

    def forget(self, id_: str) -> None:
        """Let go of a record that has turned out to be old."""
        with self._lock:
            self._known.pop(id_, None)

    def fetch(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Read jobs by id as they are now; those that are not there, or not understood, are left out."""
        there = self._ours(ids)
        found = {id_: self.layout.record(item) for id_, item in there.items()}
        self._complete(found, there.values())
        if len(ids) == 1:
            for id_, job in found.items():
                self.remember(job, steps_of(there[id_]))
        return found

    def fetch_one(self, id_: str) -> JobRecord | None:
        """Read one job as it is now."""
        return self.fetch([id_]).get(id_)

    def _complete(self, found: dict[str, JobRecord], read: Iterable[Item]) -> None:
        """Add the results that are kept apart."""
        apart = [items.side(item["job_id"]["S"], "result", "") for item in read if "result_apart" in item]
        for item in self._wire.get_all(apart).values() if apart else ():
            id_ = item["job_id"]["S"]
            found[id_] = found[id_]._replace(result=item["result"]["S"])

    def found(self, item: Item | None) -> JobRecord | None:
        """Read the item that a failed condition found, if it says all there is of a job."""
        if not item or "result_apart" in item or (job := self.layout.understood(item)) is None:
            return None
        self.remember(job, steps_of(item))
        return job

    def change(
        self,
        before: JobRecord,
        after: JobRecord,
        op: str,
        had: Steps = _NONE,
        has: Steps = _NONE,
        *,
        noted: bool = False,
    ) -> dict[str, Any]:
        """Say how an item that stays where it is changes from one record to the next, and from the steps that it had to
        those that it has. `noted` tells that it needs no entry in the index when it has ended.
        """
        old, new = self.layout.pair(before, after, op)
        if had is not has:
            old, new = old | had.attributes, new | has.attributes
        if not before.version:  # another program wrote it, and nobody has listed it yet
            old.pop(LISTED, None)
        if noted and after.state in TERMINAL:
            new = {name: value for name, value in new.items() if name not in _ENTRY}
        kept = _later(before, after) or all(old.get(name) == new.get(name) for name in _ENTRY)
        names, values, sets, removes = _Names(), dict[str, Any](), [], []
        for name, value in new.items():
            if not kept if name in _ENTRY else old.get(name) != value:
                sets.append(f"{names.of(name)} = {names.of(name, ':')}")
                values[names.of(name, ":")] = value
        removes = [names.of(name) for name in old.keys() - new.keys()]
        condition, guarding = _unchanged(before, names)
        expression = f"SET {', '.join(sets)}" + (f" REMOVE {', '.join(removes)}" if removes else "")
        return {
            "UpdateExpression": expression,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names.all,
            "ExpressionAttributeValues": values | guarding,
        }

    def move(
        self, before: JobRecord, after: JobRecord, op: str, step: StepRecord | None = None, *, noted: bool = False
    ) -> tuple[list[Part], Steps | None]:
        """Say how a job's items change: in place, or by moving to the key that it has now. With a step that is to be
        recorded: in the item, or apart. Gives the steps that the item has then, too, if they are known.
        """
        layout, here, there = self.layout, self.layout.place(before), self.layout.place(after)
        had = self.steps(before) if step is not None or here != there else self.known_steps(before)
        has, apart = had, list[Part]()
        if had is not None and step is not None:
            if had.takes(after, step):
                has = had.plus(step, after.version)
            else:
                has = had._replace(apart=True)
                apart = [Part("step", absent(step_item(before.id, step, after.version)))]
        if here == there:
            change = self.change(before, after, op, had or _NONE, has or _NONE, noted=noted)
            parts = [Part("job", {"Update": {"Key": here.key, **change}})]
        else:
            item = layout.item(after, op) | (has or _NONE).attributes
            moved = [Part("job", {"Delete": self._as_read(before)}), Part("there", put(item))]
            parts = moved + layout.redirected(after)
        if items.apart(after) and after.result != before.result:
            parts.append(Part("result", put(items.result_item(after))))
        if after.parent is not None and (before.state in TERMINAL) != (after.state in TERMINAL):
            parts.append(Part("family", put(child_item(after))))
        return parts + apart + _marks(before, after), has

    def unchanged(self, job: JobRecord) -> Part:
        """Say that a job must still be as it was read."""
        return Part("owner", {"ConditionCheck": self._as_read(job)})

    def _as_read(self, job: JobRecord) -> dict[str, Any]:
        names = _Names()
        condition, guarding = _unchanged(job, names)
        return {
            "Key": self.layout.place(job).key,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names.all,
            "ExpressionAttributeValues": guarding,
        }

    def gone(self, item: Item) -> list[Part]:
        """Say which of a job's items go with the one that was read, if it still is as it was."""
        job = self.layout.record(item)
        places = [items.place_of(item) for item in self.layout.pointers(job)]
        if job.parent is not None:
            places.append(items.child(job.parent, job.id))
        pointers = [Part("pointer", {"Delete": {"Key": place.key}}) for place in places]
        removed = self._as_read(job) | {"Key": items.place_of(item).key}  # one that another program ended did not move
        return [Part("job", {"Delete": removed}), *pointers]

    def enter(self, job: JobRecord, *, apart: bool = False) -> list[Part]:
        """Say which items a new job has; the first of them tells whether the id is taken. `apart` tells that it has
        steps already.
        """
        first, *rest = [*self.layout.pointers(job), self.layout.item(job, None) | Steps(apart=apart).attributes]
        parts = [Part(f"new {job.id}", absent(first)), *(Part("there", put(item)) for item in rest)]
        return parts + _relatives(job)

    def replace(self, there: JobRecord | None, job: JobRecord, *, apart: bool) -> list[Part]:
        """Say how a job from another store takes the place of what may be left of it here."""
        if there is None:
            return self.enter(job, apart=apart)
        item, parts = self.layout.item(job, None) | Steps(apart=apart).attributes, list[Part]()
        if self.layout.place(there) != self.layout.place(job):
            parts = [Part("job", {"Delete": self._as_read(there)}), Part("there", put(item))]
        else:
            condition = {name: value for name, value in self._as_read(there).items() if name != "Key"}
            parts = [Part("job", {"Put": {"Item": item, **condition}})]
        return parts + [Part("pointer", put(pointer)) for pointer in self.layout.pointers(job)] + _relatives(job)


class _Names:
    """Stand-ins for attribute names: many of ours are reserved words."""

    def __init__(self) -> None:
        self.all: dict[str, str] = {}

    def of(self, name: str, mark: str = "#") -> str:
        """Give the stand-in of an attribute's name, or with another mark that of its value."""
        short = f"a_{name}"
        self.all[f"#{short}"] = name
        return mark + short


def _unchanged(job: JobRecord, names: _Names) -> tuple[str, Item]:
    """Say that an item is still of this version, and under this lease. What another program wrote has no version: it
    is still that program's, and has not ended meanwhile.
    """
    if not job.version:
        ended = {f":ended_{state.value}": items.wire(STATUSES[state]) for state in TERMINAL}
        version, status = names.of("version"), names.of("status")
        return f"attribute_not_exists({version}) AND NOT {status} IN ({', '.join(sorted(ended))})", ended
    guard: dict[str, Any] = {"version": job.version, "token": job.token, "lease_id": job.lease_id}
    guarding = {f":was_{name}": items.wire(value) for name, value in guard.items() if value is not None}
    return " AND ".join(
        f"{names.of(name)} = :was_{name}" for name, value in guard.items() if value is not None
    ), guarding


def _later(before: JobRecord, after: JobRecord) -> bool:
    """Tell whether a lease is only extended: whoever looks at it before its time lets it be looked at later."""
    extended = (after.lease_expires_at or 0) >= (before.lease_expires_at or 0)
    return before.state is after.state is State.RUNNING and extended


def _relatives(job: JobRecord) -> list[Part]:
    """Say what is written with a new job for its parent, and for upkeep."""
    family = [] if job.parent is None else [Part("family", put(child_item(job)))]
    return family + _marks(None, job)


def _marks(before: JobRecord | None, after: JobRecord) -> list[Part]:
    """Say how the marks that upkeep finds a job by change with it."""
    old, new = items.marks(before) if before else {}, items.marks(after)
    gone = [Part("mark", {"Delete": {"Key": place.key}}) for place in old if place not in new]
    attributes = items.attributes({"job_id": after.id})
    return gone + [Part("mark", put(place.key | attributes)) for place in new if place not in old]


def put(item: Item) -> dict[str, Any]:
    """Write an item, whatever is there."""
    return {"Put": {"Item": item}}


def absent(item: Item) -> dict[str, Any]:
    """Write an item if there is none."""
    key = "PK" if beside(item) else "job_id"
    return {"Put": {"Item": item, "ConditionExpression": f"attribute_not_exists({key})"}}


def child_item(job: JobRecord) -> Item:
    """Write down whose child a job is, and whether it has ended."""
    return items.child(job.parent or "", job.id).key | items.attributes({"open": job.state not in TERMINAL})
