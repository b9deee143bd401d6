"""What is asked of DynamoDB: items read and written, in the table of jobs and in that of all else."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.calls import THREADS, Calls, pauses
from holdfast.stores.dynamodb.items import Item, Key, beside, place_of, wire
from holdfast.stores.dynamodb.trouble import Failed, TooLarge

__all__ = ["Failed", "Page", "TooLarge", "Wire", "op_token"]

T = TypeVar("T")
_GETS = 100
_PUTS = 25
_ASIDE = 4


class Page(NamedTuple):
    """A part of a query's answer; an empty one is not the end."""

    items: list[Item]
    after: Item | None


class Wire:
    """The tables of a store, as calls. What has a partition and a sort key lies beside the jobs; the rest are jobs."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._calls = Calls(address, "dynamodb")
        self._pools: dict[int, tuple[ThreadPoolExecutor, ThreadPoolExecutor]] = {}
        """By process: the threads that make calls, and those that have them make several at a time."""
        self._lock = threading.Lock()
        self._inside = threading.local()

    def table(self, item: Item) -> str:
        """Name the table that an item or a key belongs to."""
        return self.address.side if beside(item) else self.address.table

    def get(self, place: Key) -> Item | None:
        """Read one item as it is now."""
        key = place.key
        found: Item | None = self.call("get_item", table=self.table(key), Key=key, ConsistentRead=True).get("Item")
        return found

    def get_all(self, places: Sequence[Key]) -> dict[Key, Item]:
        """Read items as they are now; those that are not there are left out."""
        found: dict[Key, Item] = {}
        wanted = list(dict.fromkeys(places))
        batches = [wanted[at : at + _GETS] for at in range(0, len(wanted), _GETS)]
        for items in self.each(self._get_batch, batches):
            found |= items
        return found

    def _get_batch(self, places: Sequence[Key]) -> dict[Key, Item]:
        found: dict[Key, Item] = {}
        asked: Any = {}
        for place in places:
            key = place.key
            asked.setdefault(self.table(key), {"Keys": [], "ConsistentRead": True})["Keys"].append(key)
        for pause in pauses():
            answer = self._calls.call("batch_get_item", RequestItems=asked)
            found |= {place_of(item): item for items in answer["Responses"].values() for item in items}
            asked = answer.get("UnprocessedKeys")
            if not asked:
                return found
            time.sleep(pause)
        raise self._calls.busy()

    def query(
        self,
        pk: str,
        first: str,
        last: str,
        *,
        limit: int | None = None,
        after: Item | None = None,
        newest: bool = False,
        **more: Any,
    ) -> Page:
        """Read a page of a partition between two sort keys, in order, as it is now."""
        more = dict(more)
        names = {"#pk": "PK", "#sk": "SK", **more.pop("names", {})}
        values = {":pk": {"S": pk}, ":first": {"S": first}, ":last": {"S": last}, **more.pop("values", {})}
        if limit is not None:
            more["Limit"] = limit
        if after is not None:
            more["ExclusiveStartKey"] = after
        answer = self.call(
            "query",
            KeyConditionExpression="#pk = :pk AND #sk BETWEEN :first AND :last",
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
            ConsistentRead=True,
            ScanIndexForward=not newest,
            **more,
        )
        return Page(answer["Items"], answer.get("LastEvaluatedKey"))

    def walk(self, pk: str, first: str = " ", last: str = "\U0010ffff", **more: Any) -> Iterator[Item]:
        """Read a partition page by page for as long as it is looked at."""
        after: Item | None = None
        while True:
            page = self.query(pk, first, last, after=after, **more)
            yield from page.items
            after = page.after
            if after is None:
                return

    def walk_index(
        self,
        index: str,
        condition: str,
        names: Mapping[str, str],
        values: Mapping[str, str | int],
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> Iterator[Item]:
        """Read the keys that an index of the jobs has, page by page; it may lag behind what was written."""
        more: dict[str, Any] = {"Limit": limit} if limit else {}
        while True:
            answer = self.call(
                "query",
                table=self.address.table,
                IndexName=index,
                KeyConditionExpression=condition,
                ExpressionAttributeNames=dict(names),
                ExpressionAttributeValues={name: wire(value) for name, value in values.items()},
                ScanIndexForward=not newest,
                **more,
            )
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            more["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def scan(self, table: str) -> Iterator[Item]:
        """Read a whole table as it is now."""
        more: dict[str, Any] = {}
        while True:
            answer = self.call("scan", table=table, ConsistentRead=True, **more)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            more["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def update(self, place: Key, change: Mapping[str, Any], op: str) -> Item:
        """Change one item under a condition; raises `Failed` with the item that was found. Gives the old item, if that
        is asked for and known.
        """
        key = place.key
        try:
            answer = self.call(
                "update_item",
                table=self.table(key),
                writes=True,
                Key=key,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **change,
            )
        except Failed as failed:
            if not failed.own(op):
                raise
            return {}
        return dict(answer.get("Attributes", {}))

    def put(self, item: Item, op: str, **condition: Any) -> None:
        """Write one item under a condition."""
        try:
            self.call(
                "put_item",
                table=self.table(item),
                writes=True,
                Item=item,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **condition,
            )
        except Failed as failed:
            if not failed.own(op):
                raise

    def delete(self, place: Key, **condition: Any) -> bool:
        """Remove an item, if a condition holds; tell whether it was there."""
        key = place.key
        asked = {"Key": key, "ReturnValues": "ALL_OLD", **condition}
        return "Attributes" in self.call("delete_item", table=self.table(key), writes=True, **asked)

    def transact(self, parts: Sequence[Mapping[str, Any]], op: str) -> None:
        """Write all of these or nothing; raises `Failed` with one answer for each part."""
        named = [self._named(part) for part in parts]
        try:
            self._calls.call("transact_write_items", writes=True, TransactItems=named, ClientRequestToken=op)
        except Failed as failed:
            if not failed.own(op):
                raise

    def _named(self, part: Mapping[str, Any]) -> dict[str, Any]:
        [(verb, what)] = part.items()
        table = self.table(what["Item"] if verb == "Put" else what["Key"])
        return {verb: {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **what}}

    def write_all(self, puts: Sequence[Item] = (), deletes: Sequence[Key] = ()) -> None:
        """Put and remove items beside the jobs one by one in large calls, without conditions."""
        wanted = [{"PutRequest": {"Item": item}} for item in puts]
        wanted += [{"DeleteRequest": {"Key": place.key}} for place in deletes]
        for at in range(0, len(wanted), _PUTS):
            self._write_batch(wanted[at : at + _PUTS])

    def _write_batch(self, requests: Sequence[Mapping[str, Any]]) -> None:
        asked: Any = {self.address.side: requests}
        for pause in pauses():
            asked = self._calls.call("batch_write_item", writes=True, RequestItems=asked).get("UnprocessedItems")
            if not asked:
                return
            time.sleep(pause)
        raise self._calls.busy()

    def each(self, do: Any, arguments: Sequence[Any]) -> list[Any]:
        """Do something for each of these, several at a time; whoever is one of several does it alone."""
        if len(arguments) <= 1 or getattr(self._inside, "one", False):
            return [do(argument) for argument in arguments]
        return list(self._threads()[0].map(do, arguments))

    def beside(self, do: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Do something while the caller does something else."""
        return self._threads()[0].submit(do, *arguments)

    def aside(self, do: Callable[[], T]) -> "Future[T]":
        """The same for something that does several things at a time itself."""
        return self._threads()[1].submit(do)

    def _threads(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        with self._lock:
            pid = os.getpid()
            if pid not in self._pools:
                calls = ThreadPoolExecutor(THREADS, "holdfast-dynamodb", self._enter)
                self._pools[pid] = calls, ThreadPoolExecutor(_ASIDE, "holdfast-aside")
            return self._pools[pid]

    def _enter(self) -> None:
        """Mark a thread of the pool: if those waited for each other, nobody would be left to work."""
        self._inside.one = True

    def close(self) -> None:
        """Let go of the threads."""
        with self._lock:
            calls, aside = self._pools.pop(os.getpid(), (None, None))
        for pool in (aside, calls):  # those who wait for the others first
            if pool:
                pool.shutdown()

    def call(self, operation: str, *, table: str | None = None, writes: bool = False, **arguments: Any) -> Any:
        """Make one call on a table."""
        return self._calls.call(operation, writes=writes, TableName=table or self.address.side, **arguments)

    @property
    def client(self) -> Any:
        """The client of this process."""
        return self._calls.client


def op_token() -> str:
    """Name one write."""
    return secrets.token_hex(16)
