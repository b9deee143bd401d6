"""How values become attributes and back, and where each kind of item lies that is not a job.

A job lies where the layout of its table says (`scheduled`, `contract`). What belongs to it, and all else that is kept,
lies under a partition and a sort key of its own, whatever the layout.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from holdfast.domain.dialects import timestamp
from holdfast.domain.job import TERMINAL, JobRecord, State
from holdfast.domain.moments import Micros

Item = dict[str, Any]
"""An item as it travels: attribute names to typed values."""

CREATED = "created"
DEADLINES = "deadlines"
_LONG_KEY = 900
APART = 64 * 1024
"""A result longer than this is kept in an item of its own: an item holds 400 KB, and the payload may be large too."""


class Key(Protocol):
    """The key of an item."""

    @property
    def key(self) -> Item:
        """The key as attributes."""
        ...

    def __hash__(self) -> int: ...


class Place(NamedTuple):
    """The key of an item that has a partition and a sort key."""

    pk: str
    sk: str

    @property
    def key(self) -> Item:
        """The key as attributes."""
        return {"PK": {"S": self.pk}, "SK": {"S": self.sk}}


class Row(NamedTuple):
    """The key of a job's item in a table that is keyed by jobs."""

    id: str

    @property
    def key(self) -> Item:
        """The key as attributes."""
        return {"job_id": {"S": self.id}}


def beside(item: Item) -> bool:
    """Tell whether an item, or a key, has a partition and a sort key."""
    return "PK" in item


def place_of(item: Item) -> Place | Row:
    """Give the key that an item has."""
    return Place(item["PK"]["S"], item["SK"]["S"]) if beside(item) else Row(item["job_id"]["S"])


def wire(value: str | int | bool) -> dict[str, Any]:  # noqa: FBT001 - a value like any other
    """Write a value as a typed attribute."""
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": value}


def attributes(values: Mapping[str, Any]) -> Item:
    """Write values as attributes; what is None is left out."""
    return {name: wire(value) for name, value in values.items() if value is not None}


def plain(item: Item) -> dict[str, Any]:
    """Read attributes back."""
    return {name: _value(typed) for name, typed in item.items()}


def _value(typed: dict[str, Any]) -> Any:
    [(kind, value)] = typed.items()
    return int(value) if kind == "N" else value


def fields(item: Item, names: Sequence[str]) -> dict[str, Any]:
    """Read the fields of a record; those that are not there are None."""
    values = plain(item)
    return {name: values.get(name) for name in names}


def upto(prefix: str, at: Micros) -> str:
    """Give the last sort key of this prefix and time; `~` sorts after every id."""
    return f"{prefix}{timestamp(at)}#~"


def dedup(tenant: str, key: str) -> Place:
    """Give the key of the record that an idempotency key is taken."""
    return Place(short(f"scheduled-job#{quote(tenant, safe='')}#{key}", 2 * _LONG_KEY), "key")


def side(id_: str, kind: str, name: str) -> Place:
    """Give the key of something that belongs to one job: a step, a signal, an attempt, its result."""
    return Place(f"of#{id_}", short(f"{kind}#{name}"))


def marks(job: JobRecord) -> dict[Place, None]:
    """Give the keys of the items by which upkeep finds a job: when it must have started, and since when it has been
    waiting to be submitted.
    """
    found: dict[Place, None] = {}
    if job.expires_at is not None and job.state not in TERMINAL:
        found[Place(DEADLINES, f"{timestamp(job.expires_at)}#{job.id}")] = None
    if job.state is State.CREATED:
        found[Place(CREATED, f"{timestamp(job.updated_at)}#{job.id}")] = None
    return found


def child(parent: str, id_: str) -> Place:
    """Give the key of the item that tells that a job has a child."""
    return Place(f"children#{parent}", id_)


def short(text: str, most: int = _LONG_KEY) -> str:
    """Keep a key within what the engine takes: the end of a long one becomes its digest."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    return f"{raw[: most - 70].decode(errors='ignore')}#{hashlib.sha256(raw).hexdigest()}"


def apart(job: JobRecord) -> bool:
    """Tell whether a job's result is kept in an item of its own."""
    return job.result is not None and len(job.result) > APART // 4 and len(job.result.encode()) > APART


def result_item(job: JobRecord) -> Item:
    """Write a result that is kept apart."""
    return side(job.id, "result", "").key | attributes({"job_id": job.id, "result": job.result})
