"""A claim of one job as one conditional update, with nothing read before: `lifecycle.claim`, folded into an expression.

The item that the update found tells all the rest: what the job was, or why it cannot be claimed.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.dialects import timestamp
from holdfast.domain.errors import StoreError
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Claim
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.contract import LISTED, QUEUED, STATUSES, UNSUBMITTED
from holdfast.stores.dynamodb.items import Item, Row
from holdfast.stores.dynamodb.layout import HELD, LOOK, LOOK_AT, look
from holdfast.stores.dynamodb.records import Records
from holdfast.stores.dynamodb.steps import Steps, steps_of
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_CONDITION = (
    f"#status IN (:pending, :queued, :failed) AND attribute_not_exists({UNSUBMITTED})"
    " AND (attribute_not_exists(next_attempt_at) OR next_attempt_at <= :time)"
    " AND (attribute_not_exists(expires_at) OR expires_at > :now)"
    " AND (attribute_not_exists(#queue) OR #queue = :queue)"
)
_SETS = (
    *("#status = :running", "lease_id = :lease_id", "lease_owner = :owner", "lease_expires_at = :until"),
    *("claimed_at = :now", "updated_at = :time", "started_at = if_not_exists(started_at, :time)"),
    *("op_token = :op", "#look = :look", "#look_at = :until", "#listed = if_not_exists(#listed, :listed)"),
)
_NAMES = {
    "#status": "status",
    "#queue": "queue",
    "#token": "token",
    "#version": "version",
    "#look": LOOK,
    "#look_at": LOOK_AT,
    "#listed": LISTED,
}


class Offer(NamedTuple):
    """A job that a message is for, and the queue that it is in by the message."""

    id: str
    queue: str


class Refused(Exception):
    """A job cannot be claimed; `job` is what was found of it, if there is one that is understood."""

    def __init__(self, item: Item | None, job: JobRecord | None) -> None:
        super().__init__("it cannot be claimed")
        self.item = item
        self.job = job


def lease(wire: Wire, records: Records, offer: Offer, want: Claim, now: Micros) -> tuple[JobRecord, JobRecord]:
    """Claim a job that is offered, if it is runnable; give it as it was and as it is."""
    op, (id_, queue) = op_token(), offer
    try:
        old = wire.update(Row(id_), _change(wire, id_, _values(queue, want, now, op)), op)
    except Failed as failed:
        item = failed.parts[0][1]
        known = item is not None and records.layout.ours(item)
        raise Refused(item, records.layout.record(item) if item and known else None) from failed
    except StoreError as error:  # it may be that what is there cannot be counted up
        item = wire.get(Row(id_)) if type(error) is StoreError else None
        if item is None or records.layout.ours(item):
            raise
        raise Refused(item, None) from error
    if old and not records.layout.ours(old):
        _put_back(wire, old, op)
        raise Refused(old, None)
    if old:
        before = records.layout.record(old)
        if before.available_at > now:  # another program, whose clock is ahead, says only when it was created
            before = before._replace(available_at=now)
        after = lifecycle.claim(before, lease_id=want.lease_id, owner=want.owner, lease=want.lease, now=now)
        steps: Steps | None = steps_of(old)
    else:  # the reply was lost, and the second try found the first
        found = records.fetch_one(id_)
        if found is None:
            raise Refused(None, None)
        after, steps = found, records.known_steps(found)
        before = after._replace(state=State.QUEUED if after.attempt == 1 else State.RETRYING)
    records.remember(after, steps)
    return before, after


def _put_back(wire: Wire, item: Item, op: str) -> None:
    """Let an item that was claimed and is not understood be as it was."""
    with suppress(Failed):  # somebody else has changed it meanwhile
        wire.put(item, "", ConditionExpression="op_token = :op", ExpressionAttributeValues={":op": items.wire(op)})


def _values(queue: str, want: Claim, now: Micros, op: str) -> dict[str, Any]:
    return {
        ":pending": STATUSES[State.QUEUED],
        ":queued": QUEUED,
        ":failed": STATUSES[State.RETRYING],
        ":running": STATUSES[State.RUNNING],
        ":queue": queue,
        ":now": now,
        ":time": timestamp(now),
        ":until": now + want.lease,
        ":lease_id": want.lease_id,
        ":owner": want.owner,
        ":op": op,
        ":one": 1,
    }


def _change(wire: Wire, id_: str, values: Mapping[str, Any]) -> dict[str, Any]:
    shards = wire.address.shards
    where = {":look": look(HELD, id_, shards), ":listed": look("", id_, shards).removeprefix("#")}
    return {
        "UpdateExpression": f"SET {', '.join(_SETS)} REMOVE begun_at ADD #version :one, #token :one, attempts :one",
        "ConditionExpression": _CONDITION,
        "ExpressionAttributeNames": _NAMES,
        "ExpressionAttributeValues": items.attributes({**values, **where}),
        "ReturnValues": "ALL_OLD",
    }
