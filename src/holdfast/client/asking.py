"""What the scripts of durable steps ask for, of whoever carries them out: a thread, or a task."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.domain.moments import Micros
from holdfast.domain.move import Move

T = TypeVar("T")


class Call(NamedTuple):
    """Run a function as the body of a step."""

    step: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout: Micros | None


class Rest(NamedTuple):
    """Wait in place."""

    span: Micros


class Signals(NamedTuple):
    """Read the signals the job was sent."""


class Jobs(NamedTuple):
    """Read other jobs."""

    ids: Sequence[str]


class Keep(NamedTuple):
    """Put a text away that is too large for a record, and give what is recorded instead."""

    text: str
    what: str


class Load(NamedTuple):
    """Give the text that was put away."""

    reference: str


class Last(NamedTuple):
    """Record the last step of a pipeline, which gave this: together with the end of its job, or by itself."""

    record: Move
    value: Any


Request = Call | Move | Rest | Signals | Jobs | Keep | Load | Last
"""A move of the job is to be committed: comes back only if it was written."""
Script = Generator[Request, Any, T]
