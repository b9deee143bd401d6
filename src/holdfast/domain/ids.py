"""Job ids: version 7 UUIDs as text, so that ids made later sort later and indexes grow at one end.

Time and randomness are arguments; `Ids` keeps the last value so that the ids of one process never run backwards.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import pack, unpack
from uuid import UUID

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import Micros

_AHEAD = 32
"""How many ids are made at once for those who ask for one right after another."""
_TICK = 14
"""Ids that were made ahead are given away for 2**14 microseconds at the most: so exactly they tell the time."""
EVERY = object()
"""Stands for no id at all, where none means every job: one that is None by mistake must not."""

_MANY = 16
"""So many ids are worth being made together."""
_LOW = 1 << 48
"""What the last twelve digits of an id can hold."""


class Ids:
    """A source of increasing version 7 UUIDs. Not thread-safe: its owner holds a lock."""

    def __init__(self, millis: Callable[[], int], bits: Callable[[int], int]) -> None:
        self._millis = millis
        self._bits = bits
        self._last_millis = -1
        self._tail = 0
        self._high = -1
        self._spelled = ""
        self._ahead: list[str] = []
        """Ids to be given away, the next one last."""
        self._tick = -1

    def one(self, now: Micros) -> str:
        """Give the next id; whoever asks again within a tick is given one that was made ahead, which takes no time."""
        tick = now >> _TICK
        if not self._ahead or tick != self._tick:
            self._ahead = self._made(now // 1000, _AHEAD if tick == self._tick else 1)
            self._ahead.reverse()
            self._tick = tick
        return self._ahead.pop()

    def take(self, count: int) -> list[str]:
        """Make the next ids."""
        self._ahead = []
        return self._made(self._millis(), count)

    def _made(self, millis: int, count: int) -> list[str]:
        if millis > self._last_millis:
            self._last_millis, self._tail, self._high = millis, self._bits(73), -1
        steps = (self._bits(32),) if count == 1 else _numbers(self._bits(32 * count), count)
        return self._many(steps) if count >= _MANY else self._few(steps)

    def _few(self, steps: Sequence[int]) -> list[str]:
        tail, high, ids = self._tail, self._high, list[str]()
        for step in steps:
            tail += step + 1
            if tail >> 48 != high:
                tail = self._spell(tail)
                high = tail >> 48
            ids.append(f"{self._spelled}{tail & 0xFFFF_FFFF_FFFF:012x}")
        self._tail, self._high = tail, high
        return ids

    def _many(self, steps: Sequence[int]) -> list[str]:
        """Make the same ids as one by one: added up, and written in hexadecimal, all at once."""
        above, low = divmod(self._tail, _LOW)
        sums = list(accumulate(map((1).__add__, steps), initial=low))[1:]
        if (above << 48) + sums[-1] >> 74:  # it is about to be spelled from new random bits
            return self._few(steps)
        text, ids, start = pack(f">{len(sums)}Q", *sums).hex(), list[str](), 0
        while start < len(sums):
            high = sums[start] // _LOW
            end = bisect_left(sums, (high + 1) * _LOW, start)
            if above + high != self._high:
                self._spell((above + high) * _LOW)
                self._high = above + high
            spelled = self._spelled
            ids += [spelled + text[at : at + 12] for at in range(16 * start + 4, 16 * end + 4, 16)]
            start = end
        self._tail = above * _LOW + sums[-1]
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
