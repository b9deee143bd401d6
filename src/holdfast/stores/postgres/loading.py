"""Many jobs at once, by COPY: rows as the server itself writes them, so that it has next to nothing to read.

A row that comes by COPY costs the server a good deal less than one by INSERT. What many jobs have in common is made
into bytes once.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from holdfast.domain.job import NewJob
from holdfast.domain.moments import Micros
from holdfast.stores.postgres.rows import LARGEST, Batch, Template

_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TAIL = b"\xff\xff"
_LENGTH = Struct("!i").pack
_NULL = _LENGTH(-1)
_LONG = Struct("!iq").pack
_INT = Struct("!ii").pack
_FIRST = Struct("!hi").pack
"""How many fields a row has, and how long the first one is."""
_JOB_FIELDS, _PLACE_FIELDS = 16, 5
_UUID = 16


class Load(NamedTuple):
    """What one COPY takes."""

    statement: str
    data: bytes


def loads(batches: Sequence[Batch], now: Micros) -> Iterator[Load]:
    """Give the rows of waiting jobs, portion by portion: those of `job`, and then those of `waiting`."""
    for portion in _portions(batches):
        each = [(shared, _raw(ones), ones) for shared, ones in portion]
        jobs = [part for shared, ids, ones in each for part in _jobs(shared, ids, [new for _, new in ones], now)]
        yield Load("copy_jobs", b"".join((_HEAD, *jobs, _TAIL)))
        places = [
            part for shared, ids, ones in each for part in _places(shared, ids, [new.run_at for _, new in ones], now)
        ]
        yield Load("copy_waiting", b"".join((_HEAD, *places, _TAIL)))


def _portions(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Put batches together until one COPY has enough."""
    portion, jobs = list[Batch](), 0
    for batch in batches:
        portion.append(batch)
        jobs += len(batch[1])
        if jobs >= LARGEST:
            yield portion
            portion, jobs = [], 0
    if portion:
        yield portion


def _raw(ones: Sequence[tuple[str, NewJob]]) -> list[bytes]:
    """Give the ids of some jobs as the server keeps them."""
    raw = bytes.fromhex("".join([id_ for id_, _ in ones]).replace("-", ""))
    return [raw[at : at + _UUID] for at in range(0, len(raw), _UUID)]


def _jobs(shared: Template, ids: Sequence[bytes], news: Sequence[NewJob], now: Micros) -> list[bytes]:
    first = _FIRST(_JOB_FIELDS, _UUID)
    before = b"".join(
        (_text(shared.kind), _text(shared.queue), _text(shared.tenant), _text(shared.user), _INT(4, shared.priority))
    )
    asked = b"".join(
        (_text(shared.retry), _INT(4, shared.max_attempts), _INT(4, shared.crash_cap), _text(shared.trigger),
         _text(shared.trace_id), _LONG(8, now), _INT(4, shared.steps_total))
    )  # fmt: skip
    version = _INT(4, shared.code_version)
    ends: dict[Micros | None, bytes] = {}
    parts: list[bytes] = []
    for id_, new in zip(ids, news, strict=True):
        end = ends.get(new.run_at)
        if end is None:
            end = ends[new.run_at] = asked + _LONG(8, _due(shared, new.run_at, now)) + version
        payload = new.payload.encode()
        parts += (first, id_, before, _LENGTH(len(payload)), payload, end)
    return parts


def _places(shared: Template, ids: Sequence[bytes], run_ats: Sequence[Micros | None], now: Micros) -> list[bytes]:
    queue, rank = _text(shared.queue), _LONG(8, -shared.priority)
    ends: dict[Micros | None, tuple[bytes, bytes]] = {}
    parts: list[bytes] = []
    for id_, run_at in zip(ids, run_ats, strict=True):
        around = ends.get(run_at)
        if around is None:
            due = _due(shared, run_at, now)
            expiry = _NULL if shared.expires_after is None else _LONG(8, max(due, now) + shared.expires_after)
            begin = _FIRST(_PLACE_FIELDS, len(queue) - 4) + queue[4:] + rank + _LONG(8, due) + _LENGTH(_UUID)
            around = ends[run_at] = (begin, expiry)
        parts += (around[0], id_, around[1])
    return parts


def _due(shared: Template, run_at: Micros | None, now: Micros) -> Micros:
    return now + shared.delay if run_at is None else run_at


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode()
    return _LENGTH(len(data)) + data
