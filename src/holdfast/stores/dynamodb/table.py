"""The tables themselves: what they must be like, made on an emulator, looked at anywhere, and marked with the number of
their shards.
"""

from typing import Any, NamedTuple

from holdfast.domain.errors import StoreUnusable
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.contract import LISTED, LISTED_INDEX
from holdfast.stores.dynamodb.items import Place
from holdfast.stores.dynamodb.layout import LOOK, LOOK_AT, LOOK_INDEX
from holdfast.stores.dynamodb.trouble import missing
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_MARK = Place("holdfast", "table")
_FORMAT = 2


class Index(NamedTuple):
    """An index: its keys, by their types, and what it shows beside them; None for the keys alone."""

    name: str
    keys: dict[str, str]
    shows: tuple[str, ...] | None = None


class Shape(NamedTuple):
    """What a table must be like."""

    keys: dict[str, str]
    indexes: tuple[Index, ...] = ()
    ttl: str | None = None
    """The attribute that tells when an item may go. An emulator is not told of it: upkeep removes what is over."""

    @property
    def said(self) -> str:
        """The keys, for people."""
        return " and ".join(self.keys)


_LOOKS = Index(LOOK_INDEX, {LOOK: "S", LOOK_AT: "N"})
SIDE = Shape({"PK": "S", "SK": "S"})
"""The table of all that is not a job, beside a table of the contract."""
SCHEDULED = Shape({"PK": "S", "SK": "S"}, (_LOOKS,))
CONTRACT = Shape(
    {"job_id": "S"},
    (
        Index(
            "workspace_created_at",
            {"workspace_id": "S", "created_at": "S"},
            ("status", "workflow_id", "trigger_type", "credits_estimate"),
        ),
        _LOOKS,
        Index(LISTED_INDEX, {LISTED: "S", "job_id": "S"}),
    ),
    "ttl_at",
)


def request(name: str, shape: Shape) -> dict[str, Any]:
    """Say how a table is made."""
    types = dict(shape.keys)
    for index in shape.indexes:
        types |= index.keys
    asked: dict[str, Any] = {
        "TableName": name,
        "KeySchema": _schema(shape.keys),
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": type_} for key, type_ in types.items()],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if shape.indexes:
        asked["GlobalSecondaryIndexes"] = [
            {"IndexName": index.name, "KeySchema": _schema(index.keys), "Projection": _projection(index)}
            for index in shape.indexes
        ]
    return asked


def _schema(keys: dict[str, str]) -> list[dict[str, str]]:
    kinds = ("HASH", "RANGE")
    return [{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, kinds, strict=False)]


def _projection(index: Index) -> dict[str, Any]:
    if index.shows is None:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(index.shows)}


def prepare(wire: Wire, shape: Shape, side: Shape | None = None) -> None:
    """See that the tables are there and are ours; on an emulator, make them."""
    wanted = {wire.address.table: shape}
    if side is not None:
        wanted[wire.address.side] = side
    for name, wish in wanted.items():
        try:
            _look(wire, name, wish)
        except StoreUnusable:
            if not wire.address.emulated:
                raise
            if not _there(wire, name):
                _make(wire, name, wish)
            _look(wire, name, wish)
    _mark(wire)


def _there(wire: Wire, name: str) -> bool:
    try:
        wire.client.describe_table(TableName=name)
    except wire.client.exceptions.ResourceNotFoundException:
        return False
    return True


def _look(wire: Wire, name: str, shape: Shape) -> None:
    found = wire.call("describe_table", table=name)["Table"]
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}

    def keys(of: Any) -> dict[str, str]:
        return {each["AttributeName"]: types[each["AttributeName"]] for each in of["KeySchema"]}

    if keys(found) != shape.keys:
        msg = (
            f"The table {name!r} has another key than {shape.said}, of text; name another table, or make "
            "one with `holdfast init aws`."
        )
        raise StoreUnusable(msg)
    there = {index["IndexName"]: keys(index) for index in found.get("GlobalSecondaryIndexes", ())}
    for index in shape.indexes:
        if there.get(index.name) != index.keys:
            said = " and ".join(index.keys)
            msg = f"The table {name!r} has no index {index.name!r} by {said}; add it with `holdfast init aws`."
            raise StoreUnusable(msg)


def _make(wire: Wire, name: str, shape: Shape) -> None:
    try:
        wire.client.create_table(**request(name, shape))
    except wire.client.exceptions.ResourceInUseException:
        pass  # another process was quicker
    except wire.client.exceptions.ClientError as error:
        raise missing(wire.address) from error
    wire.client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})


def _mark(wire: Wire) -> None:
    """Write down how many shards the table has, or see that it has as many as the URL says."""
    shards = wire.address.shards
    found = wire.get(_MARK)
    if found is None:
        op = op_token()
        item = _MARK.key | items.attributes({"format": _FORMAT, "shards": shards, "op_token": op})
        try:
            wire.put(item, op, ConditionExpression="attribute_not_exists(PK)")
        except Failed as failed:
            found = failed.parts[0][1] or wire.get(_MARK)
    if found is not None and int(found["shards"]["N"]) != shards:
        msg = (
            f"The table {wire.address.table!r} has its jobs in {found['shards']['N']} shards, and the URL says "
            f"{shards}; write shards={found['shards']['N']}."
        )
        raise StoreUnusable(msg)
    if found is not None and int(found["format"]["N"]) > _FORMAT:
        msg = f"The table {wire.address.table!r} was written by a newer version of Holdfast; upgrade this one."
        raise StoreUnusable(msg)
