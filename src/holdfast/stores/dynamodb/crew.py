"""What is kept beside jobs and credits: paused queues, workers, roles, schedules, and how many jobs there are."""

import json
import os
from collections import Counter
from typing import Any

from holdfast.domain.job import State
from holdfast.domain.moments import Micros
from holdfast.port.store import ScheduleRecord, WorkerRecord
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.tally import Numbers
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_PAUSED = Place("paused", "queues")
_WORKERS = "workers"
_ROLES = "roles"
_SCHEDULES = "schedules"
_COUNTS = "counts"
_SLOTS = 8
"""Processes share so many items to count in: one alone would be where all of them meet."""


class Crew:
    """The small items of a table."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        self._mark("ADD", queue)

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        self._mark("DELETE", queue)

    def _mark(self, verb: str, queue: str) -> None:
        self._wire.call(
            "update_item",
            writes=True,
            Key=_PAUSED.key,
            UpdateExpression=f"{verb} queues :queue",
            ExpressionAttributeValues={":queue": {"SS": [queue]}},
        )

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        item = self._wire.get(_PAUSED) or {}
        return frozenset(item["queues"]["SS"]) if "queues" in item else frozenset()

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process."""
        item = _worker(worker.id).key | {
            "record": {"S": json.dumps(worker)},
            "expires_at": items.wire(worker.expires_at),
        }
        self._wire.call("put_item", writes=True, Item=item)

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process."""
        self._wire.delete(_worker(worker_id))

    def workers(self, now: Micros) -> list[WorkerRecord]:
        """List the workers that are alive."""
        read = [json.loads(item["record"]["S"]) for item in self._wire.walk(_WORKERS)]
        found = (WorkerRecord(*values) for values in read)
        return sorted(
            (
                worker._replace(
                    queues=None if worker.queues is None else tuple(worker.queues), kinds=tuple(worker.kinds)
                )
                for worker in found
                if worker.expires_at > now
            ),
            key=lambda worker: worker.id,
        )

    def lead(self, role: str, owner: str, until: Micros, now: Micros) -> bool:
        """Take or keep a role."""
        op = op_token()
        item = Place(_ROLES, items.short(f"role#{role}")).key
        item |= items.attributes({"holder": owner, "until_at": until, "op_token": op})
        condition = {
            "ConditionExpression": "attribute_not_exists(PK) OR holder = :owner OR until_at <= :now",
            "ExpressionAttributeValues": {":owner": items.wire(owner), ":now": items.wire(now)},
        }
        try:
            self._wire.put(item, op, **condition)
        except Failed:
            return False
        return True

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules."""
        return sorted(_schedule(item) for item in self._wire.walk(_SCHEDULES))

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule that has not changed."""
        op = op_token()
        stored = schedule._replace(version=(seen or 0) + 1)
        item = _schedule_place(schedule.name).key | items.attributes({**stored._asdict(), "op_token": op})
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(PK)"}
        if seen is not None:
            condition = {
                "ConditionExpression": "#version = :seen",
                "ExpressionAttributeNames": {"#version": "version"},
                "ExpressionAttributeValues": {":seen": items.wire(seen)},
            }
        try:
            self._wire.put(item, op, **condition)
        except Failed:
            return False
        return True

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        return self._wire.delete(_schedule_place(name))

    def count(self, deltas: Numbers) -> None:
        """Add to the numbers of jobs by queue and state."""
        changed = [(f"{state.value}#{queue}", number) for (queue, state), number in deltas.items() if number]
        if not changed:
            return
        self._wire.call(
            "update_item",
            writes=True,
            Key=Place(_COUNTS, f"slot#{os.getpid() % _SLOTS}").key,
            UpdateExpression="ADD " + ", ".join(f"#n{at} :n{at}" for at in range(len(changed))),
            ExpressionAttributeNames={f"#n{at}": name for at, (name, _) in enumerate(changed)},
            ExpressionAttributeValues={f":n{at}": items.wire(number) for at, (_, number) in enumerate(changed)},
        )

    def counts(self) -> dict[tuple[str, State], int]:
        """Give the numbers of jobs by queue and state."""
        total: Counter[tuple[str, State]] = Counter()
        for item in self._wire.walk(_COUNTS):
            for name, value in item.items():
                if name not in ("PK", "SK"):
                    state, _, queue = name.partition("#")
                    total[queue, State(state)] += int(value["N"])
        return {what: number for what, number in total.items() if number > 0}


def _worker(id_: str) -> Place:
    return Place(_WORKERS, items.short(f"worker#{id_}"))


def _schedule_place(name: str) -> Place:
    return Place(_SCHEDULES, items.short(f"schedule#{name}"))


def _schedule(item: Item) -> ScheduleRecord:
    return ScheduleRecord(**items.fields(item, ScheduleRecord._fields))
