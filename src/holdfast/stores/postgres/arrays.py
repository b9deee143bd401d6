"""Arrays of a batch as they travel: packed or joined as a whole, because a driver spends time on every element of a
list, and a server on every UUID that it reads as text.
"""

from collections.abc import Sequence

from psycopg import adapters
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_UUID, _UUIDS = 2950, 2951
"""PostgreSQL's numbers for the type, and for arrays of it."""
_ID = 36
"""Characters of a UUID, as everybody writes one."""
_SIZE = "00000010"
"""Before each element stands its length, 16."""


class Ids(list[str]):
    """Ids that are known to be UUIDs, each written in the same number of characters."""


def ids(values: Sequence[str]) -> Sequence[str]:
    """Let ids travel packed; what no store has given out goes as it is, for the server to refuse."""
    try:
        bytes.fromhex("".join(values).replace("-", ""))
    except ValueError:
        return list(values)
    return Ids(values) if set(map(len, values)) == {_ID} else list(values)


def numbers(values: Sequence[int]) -> str:
    """Write an array of numbers."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Sequence[str]) -> Sequence[str]:
    """Write an array of texts of which few are different; a driver knows what to do with those that need care."""
    if any('"' in text or "\\" in text or "\x00" in text for text in set(values)):
        return list(values)
    return '{"' + '","'.join(values) + '"}' if values else "{}"


class _Packed(Dumper):
    format = Format.BINARY
    oid = _UUIDS

    def dump(self, obj: Ids) -> Buffer:
        head = f"{1:08x}{0:08x}{_UUID:08x}{len(obj):08x}{1:08x}{_SIZE}"
        return bytes.fromhex(head + _SIZE.join(obj).replace("-", ""))

    def quote(self, obj: Ids) -> Buffer:
        return ("'{" + ",".join(obj) + "}'").encode()


adapters.register_dumper(Ids, _Packed)
