"""Jobs that are put down before their keys are taken, and what tells whether they have them.

A transaction is billed double. So a job with a key is put down first, marked as unproved, and then the record of its
key, which decides: a job that is marked and that the record of its key does not name is not there for anybody. Whoever
comes across one looks at the record. What sends the job's first message removes the mark (ADR 24).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.domain.moments import MINUTE, SECOND, Micros
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Row
from holdfast.stores.dynamodb.wire import Failed, Wire

UNPROVED = "key_unproved"
"""The attribute of a job whose key may be another's."""
_SURE: Micros = 5 * SECOND
_LET_GO: Micros = MINUTE
"""A job that has been unproved for so long, and has no key, goes. Whoever stores one knows after much less time whether
it has to see that this did not happen to its own: between the two lies more than clocks may differ by.
"""
_HAS_MARK = {"ConditionExpression": f"attribute_exists({UNPROVED})"}


class Proofs:
    """What becomes of unproved jobs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def proved(self, item: Item) -> Item:
        """Give a job's item without its mark if the key is the job's; then nobody is to doubt it again. Any other stays
        as it is.
        """
        if UNPROVED not in item or not self._is_named(item) or not self.prove(item["job_id"]["S"]):
            return item
        return called(item)

    def _is_named(self, item: Item) -> bool:
        """Tell whether the record of a job's key names the job."""
        tenant, key = (item.get(name, {}).get("S", "") for name in ("workspace_id", "idempotency_key"))
        held = self._wire.get(items.dedup(tenant, key))
        return held is not None and held["job_id"] == item["job_id"]

    def prove(self, id_: str) -> bool:
        """Remove the mark of a job that has its key; false if the job is gone."""
        try:
            self._wire.update(Row(id_), {"UpdateExpression": f"REMOVE {UNPROVED}", **_HAS_MARK}, "")
        except Failed as failed:
            return bool(failed.parts[0][1])
        return True

    def stands(self, id_: str, since: Micros, clock: Callable[[], Micros]) -> bool:
        """Tell whether a job that was put down at a time, and now has its key, is still there."""
        return 0 <= clock() - since <= _SURE or self.prove(id_)

    def take_back(self, id_: str) -> None:
        """Remove an unproved job."""
        with suppress(Failed):  # it has been proved meanwhile
            self._wire.delete(Row(id_), **_HAS_MARK)

    def let_go(self, item: Item, since: Micros, now: Micros) -> None:
        """Remove a job that has turned out not to have its key, once nobody can be about to take it."""
        if since + _LET_GO <= now:
            self.take_back(item["job_id"]["S"])


def called(item: Item) -> Item:
    """Give the item of a job that a message is for: there is none for one that was not proved."""
    return {name: value for name, value in item.items() if name != UNPROVED}


def marked(request: dict[str, Any]) -> dict[str, Any]:
    """Say that a new job is put down unproved."""
    [what] = request.values()
    return {"Put": {**what, "Item": {**what["Item"], UNPROVED: {"BOOL": True}}}}
