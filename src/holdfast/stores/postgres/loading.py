"""Many jobs at once, by COPY: rows as the server itself writes them, so that it has next to nothing to read.

A row that comes by COPY costs the server a good deal less than one by INSERT. What many jobs have in common is made
into bytes once.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple

from holdfast.domain.alike import Named
from holdfast.domain.moments import Micros
from holdfast.stores.postgres.rows import LARGEST, Batch, Template, template

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


class Rows(NamedTuple):
    """The rows of some jobs, slice by slice: so that the server stores one while the next is made."""

    jobs: Iterator[bytes]
    waiting: Iterator[bytes]
    """To be asked for when those of `jobs` have been."""


class Portion(NamedTuple):
    """Some jobs that have all in common but what stands here."""

    shared: Template
    ids: Sequence[str]
    payloads: Sequence[str]
    run_ats: Sequence[Micros | None]


def portions(batches: Iterable[Batch]) -> Iterator[Portion]:
    """Take batches apart."""
    for shared, ones in batches:
        news = [new for _, new in ones]
        yield Portion(shared, [id_ for id_, _ in ones], [new.payload for new in news], [new.run_at for new in news])


def series(group: Named) -> Iterator[Portion]:
    """Take jobs that are alike apart, so many at a time as are worth sending."""
    shared, run_at, payloads = template(group.jobs.like), group.jobs.like.run_at, group.jobs.payloads
    for start in range(0, len(group), LARGEST):
        ids = group.ids[start : start + LARGEST]
        yield Portion(shared, ids, payloads[start : start + LARGEST], [run_at] * len(ids))


def loaded(some: Iterable[Portion], now: Micros) -> Rows:
    """Give what each of the two COPYs takes for jobs that wait."""
    seen: list[list[tuple[Template, list[bytes], Sequence[Micros | None]]]] = []

    def jobs() -> Iterator[bytes]:
        for together in _gathered(some):
            seen.append([(each.shared, _raw(each.ids), each.run_ats) for each in together])
            yield b"".join([_jobs(*known, each.payloads, now) for known, each in zip(seen[-1], together, strict=True)])

    return Rows(_framed(jobs()), _framed(b"".join([_places(*each, now) for each in together]) for together in seen))


def _framed(slices: Iterator[bytes]) -> Iterator[bytes]:
    yield _HEAD + next(slices)
    yield from slices
    yield _TAIL


def _gathered(some: Iterable[Portion]) -> Iterator[list[Portion]]:
    """Put portions together until there is enough to send."""
    together, jobs = list[Portion](), 0
    for portion in some:
        together.append(portion)
        jobs += len(portion.ids)
        if jobs >= LARGEST:
            yield together
            together, jobs = [], 0
    if together:
        yield together


def _raw(ids: Sequence[str]) -> list[bytes]:
    """Give ids as the server keeps them."""
    raw = bytes.fromhex("".join(ids).replace("-", ""))
    return [raw[at : at + _UUID] for at in range(0, len(raw), _UUID)]


def _jobs(
    shared: Template,
    ids: Sequence[bytes],
    run_ats: Sequence[Micros | None],
    texts: Sequence[str],
    now: Micros,
) -> bytes:
    before = b"".join(
        (_text(shared.kind), _text(shared.queue), _text(shared.tenant), _text(shared.user), _INT(4, shared.priority))
    )
    asked = b"".join(
        (_text(shared.retry), _INT(4, shared.max_attempts), _INT(4, shared.crash_cap), _text(shared.trigger),
         _text(shared.trace_id), _LONG(8, now), _INT(4, shared.steps_total))
    )  # fmt: skip
    version = _INT(4, shared.code_version)
    payloads = list(map(str.encode, texts))
    # A few lengths and times, as a rule, of which each is written once.
    sizes = {size: before + _LENGTH(size) for size in set(map(len, payloads))}
    ends = {at: asked + _LONG(8, _due(shared, at, now)) + version for at in set(run_ats)}
    return _joined(
        repeat(_FIRST(_JOB_FIELDS, _UUID)),
        ids,
        map(sizes.__getitem__, map(len, payloads)),
        payloads,
        map(ends.__getitem__, run_ats),
    )


def _places(shared: Template, ids: Sequence[bytes], run_ats: Sequence[Micros | None], now: Micros) -> bytes:
    queue, rank = _text(shared.queue), _LONG(8, -shared.priority)
    first = _FIRST(_PLACE_FIELDS, len(queue) - 4) + queue[4:] + rank
    begins, ends = dict[Micros | None, bytes](), dict[Micros | None, bytes]()
    for at in set(run_ats):
        due = _due(shared, at, now)
        begins[at] = first + _LONG(8, due) + _LENGTH(_UUID)
        ends[at] = _NULL if shared.expires_after is None else _LONG(8, max(due, now) + shared.expires_after)
    return _joined(map(begins.__getitem__, run_ats), ids, map(ends.__getitem__, run_ats))


def _joined(*columns: Iterable[bytes]) -> bytes:
    """Put rows together of their parts."""
    return b"".join(chain.from_iterable(zip(*columns)))  # noqa: B905 - what is the same for all has no end


def _due(shared: Template, run_at: Micros | None, now: Micros) -> Micros:
    return now + shared.delay if run_at is None else run_at


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode()
    return _LENGTH(len(data)) + data
