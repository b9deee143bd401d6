"""A layout: how a job becomes an item of a table, and how jobs are found there.

There are two, one for each text that other programs read a table by: the scheduled queue (`scheduled`) and the
orchestrator's contract (`contract`). All else about a table is the same for both.

Both have the sparse index `holdfast_look`: a job has an entry while somebody may have to look at it at some time, in a
partition that tells why. An index lags, so it only suggests jobs; what is done about one is decided by its item.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.port.store import Query
from holdfast.stores.dynamodb.items import Item, Key, place_of
from holdfast.stores.dynamodb.wire import Wire

LOOK, LOOK_AT = "look", "look_at"
"""The attributes that an entry of the index has: why to look at a job, with its shard, and when."""
LOOK_INDEX = "holdfast_look"
HELD = "held"
"""Somebody works on it; its lease may be over."""
FOREVER = 2**62
_PAGE = 100


class Part(NamedTuple):
    """One item of a transaction. `label` names what it is about, for when its condition fails."""

    label: str
    request: dict[str, Any]


class Layout(Protocol):
    """How jobs lie in a table."""

    @property
    def notes_ends(self) -> bool:
        """Whether finished jobs are found by entries of the index, so that a note of several is cheaper."""
        ...

    @property
    def proves_keys(self) -> bool:
        """Whether a job is one item that is found by its id, so that its key can be taken behind it (`proofs`)."""
        ...

    def place(self, job: JobRecord) -> Key:
        """Give the key of a job's item."""
        ...

    def item(self, job: JobRecord, op: str | None) -> Item:
        """Write a job's item. `op` names the write, so that whoever wrote it recognises its own."""
        ...

    def pair(self, before: JobRecord, after: JobRecord, op: str) -> tuple[Item, Item]:
        """Write the items of a job before and after a change; what is the same in both may be left out of both."""
        ...

    def record(self, item: Item) -> JobRecord:
        """Read a job's item; a result that is kept apart is left out."""
        ...

    def ours(self, item: Item) -> bool:
        """Tell whether an item is a job that this engine understands."""
        ...

    def understood(self, item: Item) -> JobRecord | None:
        """Read a job's item if it is one that this engine understands."""
        ...

    def pointers(self, job: JobRecord) -> list[Item]:
        """Give the items by which a job's item is found; the first of them tells whether the id is taken."""
        ...

    def redirected(self, job: JobRecord) -> list[Part]:
        """Say how all that points to a job changes when its item moves to where it is now."""
        ...

    def fetch(self, wire: Wire, ids: Sequence[str]) -> dict[str, Item]:
        """Read the items of jobs by id as they are now, understood or not; those that are not there are left out."""
        ...

    def waiting(self, wire: Wire, upto: Micros | None, page: int) -> Iterator[Iterator[JobRecord]]:
        """Walk through the jobs that have not ended, by the time they are due: several walks beside each other."""
        ...

    def leased(self, wire: Wire, upto: Micros | None = None) -> Iterator[JobRecord]:
        """Walk through the leased jobs whose lease may be over by this time; or through all there are."""
        ...

    def ended(self, wire: Wire, upto: Micros, page: int) -> Iterator[Item]:
        """Walk through the items of the finished jobs that may go by this time."""
        ...

    def listed(self, wire: Wire, query: Query) -> Iterator[str]:
        """Name the jobs that a filter may match, newest first."""
        ...

    def strange(self, item: Item) -> str | None:
        """Say what is wrong with an item that lies where jobs lie, if it is none of ours."""
        ...

    def pointed(self, item: Item) -> str | None:
        """Name the job that an item is the pointer of, if it is one."""
        ...


def shard(id_: str, shards: int) -> int:
    """Give the shard of a job."""
    return zlib.crc32(id_.encode()) % shards


def looks(why: str, shards: int) -> list[str]:
    """Name the partitions of the index that hold the jobs to be looked at for a reason."""
    return [f"{why}#{number:02d}" for number in range(shards)]


def look(why: str, id_: str, shards: int) -> str:
    """Name the partition of the index that holds a job."""
    return f"{why}#{shard(id_, shards):02d}"


def seen(wire: Wire, why: str, upto: Micros = FOREVER, page: int = _PAGE) -> Iterator[Item]:
    """Walk through the items of the jobs that are to be looked at by this time: found by the index, read as they are
    now. One that is gone, or is looked at for another reason now, may be among them.
    """
    names, at_once = {"#p": LOOK, "#at": LOOK_AT}, min(page or _PAGE, _PAGE)
    for partition in looks(why, wire.address.shards):
        values: dict[str, str | int] = {":p": partition, ":at": upto}
        found = wire.walk_index(LOOK_INDEX, "#p = :p AND #at <= :at", names, values, limit=page or None)
        while places := [place_of(item) for item in islice(found, at_once)]:
            rows = wire.get_all(places)
            yield from (rows[place] for place in places if place in rows)
