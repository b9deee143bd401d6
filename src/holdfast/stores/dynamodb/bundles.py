"""More jobs than one transaction can write, and still all of them or none.

They are first put down as a bundle that nobody looks at. One transaction then writes the bundle's mark together with
all that must hold for it (keys, credits, the move that spawns them); from then on the jobs are as good as stored, and
whoever wrote the mark brings them in. If that process dies, upkeep brings in the rest.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain

from holdfast.domain.moments import SECOND, Micros
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.records import PARTS, Part, absent
from holdfast.stores.dynamodb.wire import Failed, Wire, op_token

_MARKS = "bundles"
_CHUNK = 256 * 1024
MOST = 3 * 1024 * 1024
"""The bytes that one transaction may carry, with room to spare."""
_PATIENCE: Micros = 15 * SECOND
"""How long a bundle is left to the process that wrote it."""

Entry = list[Part]
"""All items of one job; the first tells whether the job is there."""


def fits(parts: Sequence[Part]) -> bool:
    """Tell whether one transaction can write all of these."""
    return len(parts) <= PARTS and sum(map(_weight, parts)) <= MOST


def packed(entries: Sequence[Entry], room: int = PARTS) -> Iterator[list[Entry]]:
    """Divide jobs so that each share fits into a transaction."""
    share: list[Entry] = []
    for entry in entries:
        if share and not (
            sum(map(len, share)) + len(entry) <= room and sum(map(_weight, chain(*share, entry))) <= MOST
        ):
            yield share
            share = []
        share.append(entry)
    if share:
        yield share


def _weight(part: Part) -> int:
    """Estimate the bytes of a part: a text weighs, numbers hardly do."""
    [what] = part.request.values()
    return 200 + sum(len(value.get("S", "")) for value in what.get("Item", {}).values())


class Bundles:
    """The bundles of a table."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def store(self, core: Sequence[Part], entries: Sequence[Entry], now: Micros) -> None:
        """Store jobs together with the core of what is to be written; raises `Failed` for the parts of the core."""
        op = op_token()
        chunks = list(_chunks(op, entries))
        self._wire.write_all(puts=chunks)
        mark = Place(_MARKS, f"{now:020d}#{op}")
        marked = absent(mark.key | items.attributes({"chunks": len(chunks), "op_token": op}))
        try:
            self._wire.transact([*(part.request for part in core), marked], op)
        except Failed:
            self._wire.write_all(deletes=[_place(op, number) for number in range(len(chunks))])
            raise
        self._bring_in(mark, len(chunks))

    def sweep(self, now: Micros) -> None:
        """Bring in what others could not."""
        for item in list(self._wire.walk(_MARKS, "0", f"{max(now - _PATIENCE, 0):020d}")):
            self._bring_in(Place(_MARKS, item["SK"]["S"]), int(item["chunks"]["N"]))

    def _bring_in(self, mark: Place, number: int) -> None:
        op = mark.sk.partition("#")[2]
        places = [_place(op, at) for at in range(number)]
        for place in places:
            chunk = self._wire.get(place)
            if chunk is None:
                return  # somebody else has brought it in
            entries = [[Part("new", request) for request in entry] for entry in _opened(chunk)]
            self._wire.each(self._enter, list(packed(entries)))
        self._wire.delete(mark)
        self._wire.write_all(deletes=places)

    def _enter(self, entries: Sequence[Entry]) -> None:
        """Write the items of some jobs; those that are there already stay as they are."""
        try:
            self._wire.transact([part.request for entry in entries for part in entry], op_token())
        except Failed:
            if len(entries) > 1:
                for entry in entries:
                    self._enter([entry])


def _chunks(op: str, entries: Sequence[Entry]) -> Iterator[Item]:
    texts: list[str] = []
    number = 0
    for entry in entries:
        text = json.dumps([part.request for part in entry], ensure_ascii=False)
        if texts and sum(map(len, texts)) + len(text) > _CHUNK:
            yield _chunk(op, number, texts)
            texts, number = [], number + 1
        texts.append(text)
    yield _chunk(op, number, texts)


def _chunk(op: str, number: int, texts: Sequence[str]) -> Item:
    return {**_place(op, number).key, "jobs": {"B": zlib.compress(f"[{','.join(texts)}]".encode(), 1)}}


def _opened(chunk: Item) -> list[list[dict[str, dict[str, Item]]]]:
    return list(json.loads(zlib.decompress(chunk["jobs"]["B"])))


def _place(op: str, number: int) -> Place:
    return Place(f"bundle#{op}", f"{number:06d}")
