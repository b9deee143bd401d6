"""Job ids: version 7 UUIDs as text, so that ids made later sort later and indexes grow at one end.

Time and randomness are arguments; `Ids` keeps the last value so that the ids of one process never run backwards.
"""

from collections.abc import Callable
from uuid import UUID

from holdfast.domain.errors import BadInput

_STEP_BITS = 32
EVERY = object()
"""Stands for no id at all, where none means every job: one that is None by mistake must not."""


class Ids:
    """A source of increasing version 7 UUIDs. Not thread-safe: its owner holds a lock."""

    def __init__(self, millis: Callable[[], int], bits: Callable[[int], int]) -> None:
        self._millis = millis
        self._bits = bits
        self._last_millis = -1
        self._tail = 0
        self._head = (-1, -1, "")

    def take(self, count: int) -> list[str]:
        """Make the next ids."""
        millis = self._millis()
        if millis > self._last_millis:
            self._last_millis, self._tail = millis, self._bits(73)
        ids = []
        for step in (self._bits(_STEP_BITS),) if count == 1 else self._steps(count):
            self._tail += step + 1
            if self._tail >> 74:
                self._last_millis, self._tail = self._last_millis + 1, self._bits(73)
            tail = self._tail
            head = tail >> 62
            if head != self._head[0] or self._last_millis != self._head[1]:
                self._head = (head, self._last_millis, self._spelled(head))
            ids.append(f"{self._head[2]}{0x8000 | tail >> 48 & 0x3FFF:04x}-{tail & 0xFFFF_FFFF_FFFF:012x}")
        return ids

    def _spelled(self, head: int) -> str:
        """Spell the first half of an id: the time, the version and the highest of the random bits."""
        text = f"{self._last_millis:012x}7{head:03x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:]}-"

    def _steps(self, count: int) -> list[int]:
        draw = self._bits(_STEP_BITS * count)
        mask = (1 << _STEP_BITS) - 1
        raw = draw.to_bytes(count * _STEP_BITS // 8)
        return [int.from_bytes(raw[i : i + 4]) & mask for i in range(0, len(raw), 4)]


def job_id(value: UUID | str) -> str:
    """Read an id given as a UUID or its text; anything else is bad input."""
    if isinstance(value, UUID):
        return str(value)
    try:
        return str(UUID(value))
    except (ValueError, AttributeError, TypeError) as error:
        msg = f"{value!r} is not a job id; job ids are UUIDs."
        raise BadInput(msg) from error
