"""Events: written with their move under the job's own key, and numbered when they are first looked at.

Numbers given by the writers would make every move of the table wait for every other. So an event is first put where
nobody waits for anybody, and whoever lists events moves it, in one transaction with the counter, to the numbered ones:
what is seen later has a later number, and the events of a job keep their order.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Event
from holdfast.port.store import EventRecord
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.records import Part, put
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_FRESH = "events-fresh"
_NUMBERED = "events"
_COUNTER = Place("events-counter", "position")
_SINKS = "sinks"
_AT_ONCE = 45
"""Two items for each event, and the counter, stay within one transaction."""


def told(job: JobRecord, events: tuple[Event, ...], now: Micros) -> list[Part]:
    """Write down what is told of a move that left this record."""
    return [
        Part(
            "event",
            put(
                Place(_FRESH, f"{job.id}#{job.version:012d}#{number:04d}").key
                | items.attributes(
                    {"id": event.id, "job_id": job.id, "name": event.name, "body": event.body, "at": now}
                )
            ),
        )
        for number, event in enumerate(events)
    ]


class Outbox:
    """The events of a table."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position."""
        self._number()
        return [_event(item) for item in islice(self._numbered(after + 1, limit), limit)]

    def _numbered(self, first: int, limit: int) -> Iterator[Item]:
        return self._wire.walk(_NUMBERED, _position(max(first, 0)), limit=max(1, min(limit, 1_000)))

    def _number(self) -> None:
        """Number the fresh events there are now."""
        fresh = list(self._wire.walk(_FRESH))
        while fresh:
            done = self._number_some(fresh[:_AT_ONCE])  # or somebody else numbered them
            fresh = fresh[_AT_ONCE:] if done else list(self._wire.walk(_FRESH))

    def _number_some(self, fresh: Sequence[Item]) -> bool:
        op = op_token()
        counter = self._wire.get(_COUNTER)
        last = int(counter["position"]["N"]) if counter else 0
        parts = [
            {
                "Update": {
                    "Key": _COUNTER.key,
                    "UpdateExpression": "SET #position = :next, op_token = :op",
                    "ConditionExpression": "#position = :last" if counter else "attribute_not_exists(PK)",
                    "ExpressionAttributeNames": {"#position": "position"},
                    "ExpressionAttributeValues": {
                        ":next": items.wire(last + len(fresh)),
                        ":op": items.wire(op),
                        **({":last": items.wire(last)} if counter else {}),
                    },
                }
            }
        ]
        for number, item in enumerate(fresh, last + 1):
            key = {"PK": item["PK"], "SK": item["SK"]}
            parts.append({"Delete": {"Key": key, "ConditionExpression": "attribute_exists(PK)"}})
            parts.append(put({**item, **Place(_NUMBERED, _position(number)).key, "position": items.wire(number)}))
        try:
            self._wire.transact(parts, op)
        except Failed:
            return False
        return True

    def sinks(self) -> dict[str, int]:
        """Give the position of each sink."""
        return {item["name"]["S"]: int(item["position"]["N"]) for item in self._wire.walk(_SINKS)}

    def reach(self, sink: str, position: int) -> None:
        """Record how far a sink is; it never goes back."""
        op = op_token()
        item = _sink(sink).key | items.attributes({"name": sink, "position": position, "op_token": op})
        condition = {
            "ConditionExpression": "attribute_not_exists(PK) OR #position < :position",
            "ExpressionAttributeNames": {"#position": "position"},
            "ExpressionAttributeValues": {":position": items.wire(position)},
        }
        try:
            self._wire.put(item, op, **condition)
        except Failed:
            return  # it is as far already

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        self._wire.delete(_sink(name))

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had."""
        sinks = self.sinks()
        self._number()
        upto = min(sinks.values(), default=None)
        over = [
            Place(_NUMBERED, item["SK"]["S"])
            for item in islice(self._numbered(0, limit), limit)
            if upto is None or int(item["position"]["N"]) <= upto
        ]
        self._wire.write_all(deletes=over)
        return len(over)


def _position(number: int) -> str:
    return f"{number:020d}"


def _sink(name: str) -> Place:
    return Place(_SINKS, items.short(f"sink#{name}"))


def _event(item: Item) -> EventRecord:
    values = items.plain(item)
    return EventRecord(**{name: values[name] for name in EventRecord._fields})
