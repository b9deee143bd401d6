"""Job ids: version 7 UUIDs as text, so that ids made later sort later and indexes grow at one end.

Time and randomness are arguments; `Ids` keeps the last value so that the ids of one process never run backwards.
"""

from collections.abc import Callable
from struct import unpack
from uuid import UUID

from holdfast.domain.errors import BadInput

EVERY = object()
"""Stands for no id at all, where none means every job: one that is None by mistake must not."""


class Ids:
    """A source of increasing version 7 UUIDs. Not thread-safe: its owner holds a lock."""

    def __init__(self, millis: Callable[[], int], bits: Callable[[int], int]) -> None:
        self._millis = millis
        self._bits = bits
        self._last_millis = -1
        self._tail = 0
        self._high = -1
        self._spelled = ""

    def take(self, count: int) -> list[str]:
        """Make the next ids."""
        millis = self._millis()
        if millis > self._last_millis:
            self._last_millis, self._tail, self._high = millis, self._bits(73), -1
        tail, high, ids = self._tail, self._high, []
        for step in (self._bits(32),) if count == 1 else _numbers(self._bits(32 * count), count):
            tail += step + 1
            if tail >> 48 != high:
                tail = self._spell(tail)
                high = tail >> 48
            ids.append(f"{self._spelled}{tail & 0xFFFF_FFFF_FFFF:012x}")
        self._tail, self._high = tail, high
        return ids

    def _spell(self, tail: int) -> int:
        """Spell what an id has in common with those around it: the time, the version and the highest random bits."""
        if tail >> 74:
            self._last_millis, tail = self._last_millis + 1, self._bits(73)
        high = tail >> 48
        text = f"{self._last_millis:012x}7{high >> 14:03x}{0x8000 | high & 0x3FFF:04x}"
        self._spelled = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:]}-"
        return tail


def _numbers(bits: int, count: int) -> tuple[int, ...]:
    """Divide random bits into numbers of 32."""
    return unpack(f">{count}I", bits.to_bytes(4 * count))


def job_id(value: UUID | str) -> str:
    """Read an id given as a UUID or its text; anything else is bad input."""
    if isinstance(value, UUID):
        return str(value)
    try:
        return str(UUID(value))
    except (ValueError, AttributeError, TypeError) as error:
        msg = f"{value!r} is not a job id; job ids are UUIDs."
        raise BadInput(msg) from error
