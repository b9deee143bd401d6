"""Many new jobs that differ in nothing but their payloads, as most large batches are: what they have in common is kept
once, and a job is made when somebody looks at it.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

from holdfast.domain.job import NewJob

_BEHIND = NewJob._fields.index("payload") + 1
_new = tuple.__new__


class Alike(Sequence[NewJob]):
    """Jobs like one, each with a payload of its own."""

    __slots__ = ("like", "payloads")

    def __init__(self, like: NewJob, payloads: Sequence[str]) -> None:
        self.like = like
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[NewJob]:
        same = map(repeat, self.like[_BEHIND:])
        return map(_new, repeat(NewJob), zip(repeat(self.like.kind), self.payloads, *same))

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> "Alike": ...
    def __getitem__(self, at: int | slice) -> "NewJob | Alike":
        if isinstance(at, slice):
            return Alike(self.like, self.payloads[at])
        return self.like._replace(payload=self.payloads[at])


class Named(Sequence[tuple[str, NewJob]]):
    """The same with their ids."""

    __slots__ = ("ids", "jobs")

    def __init__(self, ids: Sequence[str], jobs: Alike) -> None:
        self.ids = ids
        self.jobs = jobs

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[str, NewJob]]:
        return zip(self.ids, self.jobs, strict=True)

    @overload
    def __getitem__(self, at: int) -> tuple[str, NewJob]: ...
    @overload
    def __getitem__(self, at: slice) -> "Named": ...
    def __getitem__(self, at: int | slice) -> "tuple[str, NewJob] | Named":
        if isinstance(at, slice):
            return Named(self.ids[at], self.jobs[at])
        return self.ids[at], self.jobs[at]
