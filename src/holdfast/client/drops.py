"""The drops of an application: places that are watched, and the job that each new object in them becomes.

A drop is declared in code and nowhere stored; a worker that knows it watches (`runtime.drop`). The job of an object is
known by its key, which names the drop, the object's path and its content as far as the listing tells it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import translate
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.client.function import JobFunction, repeatable
from holdfast.client.inbox import Found, Inbox, inbox_of
from holdfast.client.registry import text
from holdfast.domain.errors import BadInput, BadPayload
from holdfast.domain.job import NewJob, Trigger
from holdfast.domain.moments import SECOND, Micros, duration, to_datetime

LONGEST_NAME = 200
"""Short enough for the name to be part of a key."""
_OFTENEST: Micros = SECOND // 20
_SHAPE = ("missing", "extra_forbidden")


class Dropped(BaseModel):
    """The payload of a drop's job: an object as it lay there when it was enqueued."""

    model_config = ConfigDict(defer_build=True)  # so that those who drop nothing do not wait for it

    path: str
    """Its absolute path, or its URL."""
    size: int
    """In bytes."""
    modified: datetime | None = None
    """When it was last written, as far as the place tells."""
    etag: str | None = None
    """The tag of its content, where the place has one; files of a folder have none."""


@dataclass(frozen=True, slots=True)
class Drop:
    """One declared drop. Durations are in microseconds."""

    name: str
    job: JobFunction[..., Any]
    inbox: Inbox
    pattern: str
    every: Micros
    settle: Micros

    def digest(self, found: Found) -> str:
        """Name one content of one path."""
        return sha256(f"{found.path}\0{found.content}".encode(errors="surrogatepass")).hexdigest()[:32]

    def new_job(self, found: Found) -> NewJob:
        """Give the job of an object; raises `BadPayload` if its kind does not take it."""
        try:
            found.path.encode()
        except UnicodeEncodeError:
            msg = f"{self.job.name}: its path is not valid UTF-8, and cannot be part of a payload."
            raise BadPayload(msg) from None
        new = self.job.prepare_json(_payload(found).model_dump_json()).new
        return new._replace(key=f"drop:{self.name}:{self.digest(found)}", trigger=Trigger.FILE_DROP.value)


class Drops:
    """All drops of one application."""

    def __init__(self) -> None:
        self._drops: dict[str, Drop] = {}

    def declare(
        self,
        name: str,
        job: JobFunction[..., Any],
        *,
        watch: str | os.PathLike[str],
        pattern: str = "*",
        every: float | timedelta = 5,
        settle: float | timedelta = 2,
    ) -> None:
        """Have workers enqueue a job for each new object of a folder or prefix."""
        _check_name(name)
        if name in self._drops:
            msg = f"The drop {name!r} is declared already; give one of the two another name."
            raise BadInput(msg)
        _check_pattern(pattern)
        often = duration(every, "every")
        if often < _OFTENEST:
            msg = f"every is {_OFTENEST / SECOND:g} seconds or more; {every!r} was given."
            raise BadInput(msg)
        taken = repeatable(job, f"The drop {name!r}")
        _check_shape(taken)
        self._drops[name] = Drop(name, taken, inbox_of(watch), pattern, often, duration(settle, "settle"))

    def __iter__(self) -> Iterator[Drop]:
        return iter(self._drops.values())

    def __len__(self) -> int:
        return len(self._drops)


def _payload(found: Found) -> Dropped:
    modified = None if found.modified is None else to_datetime(found.modified)
    return Dropped(path=found.path, size=found.size, modified=modified, etag=found.etag)


def _check_name(name: str) -> None:
    if len(text(name, "drop's name")) > LONGEST_NAME:
        msg = f"A drop's name is at most {LONGEST_NAME} characters; {name[:40]!r}… has {len(name)}."
        raise BadInput(msg)


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or not pattern or "/" in pattern or not translate(pattern):
        msg = f"pattern is that of a file's name, as in '*.pdf'; {pattern!r} is not."
        raise BadInput(msg)


def _check_shape(job: JobFunction[..., Any]) -> None:
    """Refuse a kind whose payload has other fields; whether it likes the values shows when there are some."""
    try:
        job.prepare_json(_payload(Found("/", 0, 0, "", "")).model_dump_json())
    except BadPayload as refused:
        problems = refused.__cause__.errors() if isinstance(refused.__cause__, ValidationError) else []
        if any(problem["type"] in _SHAPE for problem in problems):
            fields = ", ".join(Dropped.model_fields)
            msg = f"A drop's job is given {fields}; write {job.name}(file: Dropped), with holdfast's Dropped. {refused}"
            raise BadInput(msg) from refused
