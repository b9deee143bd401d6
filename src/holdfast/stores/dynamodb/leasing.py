"""A claim of one job as one conditional update, with nothing read before: `lifecycle.claim`, folded into an expression.

The item that the update found tells all the rest: what the job was, or why it cannot be claimed.

An entry of the index that nobody has looked at yet stays where it is, since moving it costs two units and most jobs are
done before its time comes. One that somebody has moved may stand much later than the lease ends, so it is moved there.
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
from holdfast.stores.dynamodb.contract import DUE, LISTED, QUEUED, STATUSES, UNSUBMITTED
from holdfast.stores.dynamodb.items import Item, Row
from holdfast.stores.dynamodb.layout import HELD, LOOK, LOOK_AT, look, shard
from holdfast.stores.dynamodb.proofs import UNPROVED, called
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
    *("op_token = :op", "#listed = if_not_exists(#listed, :listed)"),
)
_COUNTS = f"REMOVE begun_at, {UNPROVED} ADD #version :one, #token :one, attempts :one"
_CLAIM = f"SET {', '.join(_SETS)} {_COUNTS}"
_CLAIM_AND_MOVE = f"SET {', '.join((*_SETS, '#look = :look', '#look_at = :until'))} {_COUNTS}"
_NAMES = {
    "#status": "status",
    "#queue": "queue",
    "#token": "token",
    "#version": "version",
    "#listed": LISTED,
}
_ENTRY = {"#look": LOOK, "#look_at": LOOK_AT}


class Offer(NamedTuple):
    """A job that a message is for, and the queue that it is in by the message."""

    id: str
    queue: str
    fresh: bool = False
    """The message is so young that nobody is likely to have looked at the job's entry yet."""


class Refused(Exception):
    """A job cannot be claimed; `job` is what was found of it, if there is one that is understood."""

    def __init__(self, item: Item | None, job: JobRecord | None) -> None:
        super().__init__("it cannot be claimed")
        self.item = item
        self.job = job


def lease(wire: Wire, records: Records, offer: Offer, want: Claim, now: Micros) -> tuple[JobRecord, JobRecord]:
    """Claim a job that is offered, if it is runnable; give it as it was and as it is."""
    op, id_ = op_token(), offer.id
    try:
        old = wire.update(Row(id_), _change(wire, offer, _values(offer.queue, want, now, op)), op)
    except Failed as failed:
        item = failed.parts[0][1]
        raise Refused(item, records.layout.understood(called(item)) if item else None) from failed
    except StoreError as error:  # it may be that what is there cannot be counted up
        item = wire.get(Row(id_)) if type(error) is StoreError else None
        if item is None or records.layout.ours(called(item)):
            raise
        raise Refused(item, None) from error
    before = records.layout.understood(called(old)) if old else None
    if old and before is None:
        _put_back(wire, old, op)
        raise Refused(old, None)
    if before is not None:
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
    if offer.fresh and old.get(LOOK) != items.wire(look(DUE, id_, wire.address.shards)):
        hold(wire, after)
    return before, after


def hold(wire: Wire, job: JobRecord) -> None:
    """Let a leased job be looked at when its lease ends. If that cannot be written, it is looked at when its entry says
    so, or when its message comes again.
    """
    change = {
        "UpdateExpression": "SET #look = :look, #look_at = lease_expires_at",
        "ConditionExpression": "#status = :running AND lease_id = :lease_id",
        "ExpressionAttributeNames": {"#status": "status", **_ENTRY},
        "ExpressionAttributeValues": items.attributes(
            {
                ":look": look(HELD, job.id, wire.address.shards),
                ":running": STATUSES[State.RUNNING],
                ":lease_id": job.lease_id,
            }
        ),
    }
    with suppress(Failed, StoreError):
        wire.update(Row(job.id), change, "")


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


def _change(wire: Wire, offer: Offer, values: Mapping[str, Any]) -> dict[str, Any]:
    shards = wire.address.shards
    where = {":listed": f"{shard(offer.id, shards):02d}"}
    if not offer.fresh:
        where[":look"] = look(HELD, offer.id, shards)
    return {
        "UpdateExpression": _CLAIM if offer.fresh else _CLAIM_AND_MOVE,
        "ConditionExpression": _CONDITION,
        "ExpressionAttributeNames": _NAMES if offer.fresh else {**_NAMES, **_ENTRY},
        "ExpressionAttributeValues": items.attributes({**values, **where}),
        "ReturnValues": "ALL_OLD",
    }
