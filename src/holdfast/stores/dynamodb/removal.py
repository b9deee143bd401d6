"""Removing finished jobs with all that belongs to them, and finding what belongs to nobody."""

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.domain import codec
from holdfast.domain.job import JobRecord, State
from holdfast.port.store import Finding, Purged
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.crew import Crew
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.records import PARTS, Part, Records
from holdfast.stores.dynamodb.steps import steps_of
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token


class Removal:
    """How jobs leave a table."""

    def __init__(self, wire: Wire, records: Records) -> None:
        self._wire = wire
        self._records = records

    def purge(self, over: Sequence[Item], changes: Changes) -> Purged:
        """Remove jobs by their items, several at a time; those that changed meanwhile stay."""
        removed, artifacts = 0, list[str]()
        for item, left in zip(over, self._wire.each(self._remove, over), strict=True):
            if left is not None:
                removed += 1
                artifacts += left
                changes.tell(self._records.layout.record(item), None)
        return Purged(removed, artifacts)

    def _remove(self, item: Item) -> list[str] | None:
        """Remove a job, if it still is as it was read; give the references that nobody owns now."""
        job = self._records.layout.record(item)
        sides = list(self._wire.walk(f"of#{job.id}"))
        kept = [job.payload, job.result, *(side["result"]["S"] for side in sides if "result" in side)]
        kept += [step.result for _, step in steps_of(item).inside]
        parts = [*self._records.gone(item), *self._key(job)]
        places = [Place(side["PK"]["S"], side["SK"]["S"]) for side in sides]
        near, far = places[: PARTS - len(parts)], places[PARTS - len(parts) :]
        parts += [Part("side", {"Delete": {"Key": place.key}}) for place in near]
        try:
            self._wire.transact([part.request for part in parts], op_token())
        except Failed:
            return None
        self._records.forget(job.id)
        self._wire.write_all(deletes=far)
        return [text for text in kept if text and text.startswith(codec.ARTIFACT)]

    def _key(self, job: JobRecord) -> list[Part]:
        """Give back the job's key, if it still is the job's."""
        place = None if job.key is None else items.dedup(job.tenant, job.key)
        held = None if place is None else self._wire.get(place)
        if place is None or held is None or held["job_id"]["S"] != job.id:
            return []
        condition = {"ConditionExpression": "job_id = :id", "ExpressionAttributeValues": {":id": items.wire(job.id)}}
        return [Part("key", {"Delete": {"Key": place.key, **condition}})]

    def check(self, crew: Crew) -> Iterator[Finding]:
        """Look through the whole table for what points nowhere, and for jobs that are not ours; set the numbers of
        jobs right, which drift when a process dies between a change and its count.
        """
        counted, total = crew.counts(), Counter[tuple[str, State]]()
        for table in dict.fromkeys((self._wire.address.table, self._wire.address.side)):
            for item in self._wire.scan(table):
                yield from self._judge(item)
                if job := self._job(item):
                    total[job.queue, job.state] += 1
        crew.count({what: total[what] - counted.get(what, 0) for what in total.keys() | counted.keys()})

    def _job(self, item: Item) -> JobRecord | None:
        layout = self._records.layout
        mine = "job_id" in item and layout.ours(item)
        job = layout.record(item) if mine else None
        return job if job is not None and layout.place(job) == items.place_of(item) else None

    def _judge(self, item: Item) -> Iterator[Finding]:
        layout = self._records.layout
        if strange := layout.strange(item):
            yield Finding("S1", None, strange)
        elif not items.beside(item):
            return
        elif item["PK"]["S"].startswith("scheduled-job#") and "job_id" in item:
            if not layout.fetch(self._wire, [item["job_id"]["S"]]):
                key, tenant = item["idempotency_key"]["S"], item["tenant"]["S"]
                yield Finding("S7", None, f"The key {key!r} of tenant {tenant!r} points to a job that is not there.")
        elif (pointed := layout.pointed(item)) and not layout.fetch(self._wire, [pointed]):
            yield Finding("S1", pointed, "The job's pointer leads to an item that is not there.")
