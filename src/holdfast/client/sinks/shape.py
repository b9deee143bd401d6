"""What users see of an event: a plain dict, the same for every sink."""

from typing import Any, Protocol

from holdfast.domain import codec, events
from holdfast.domain.lifecycle import STARTED
from holdfast.domain.moments import Micros, to_datetime
from holdfast.port.store import EventRecord

Told = dict[str, Any]
NAMES = (
    STARTED,
    events.STEP,
    events.COMPLETED,
    events.DEAD,
    events.CANCELLED,
    events.RETRYING,
    events.REDRIVEN,
)
"""The names of all events that a sink can be given."""
INTERNAL = "holdfast."
"""Begins the names of events, and of sinks, that are for Holdfast itself."""
_MILLISECOND: Micros = 1_000


class Undelivered(Exception):
    """A sink did not take what it was given. The message is ours: it holds nothing secret and nothing personal."""


class Target(Protocol):
    """A way to hand events over."""

    @property
    def most(self) -> int:
        """The most events that are handed over at once."""
        ...

    def deliver(self, told: list[Told]) -> None:
        """Hand events over, in order; whatever is raised means that none of them counts as delivered."""
        ...

    def close(self) -> None:
        """Let go of what was kept from one delivery to the next."""
        ...


def shown(record: EventRecord) -> Told:
    """Give an event as users see it."""
    body = codec.decode(record.body)
    started = body.get("started_at")
    told = {"id": record.id, "name": record.name, "at": _written(record.at), "position": record.position, **body}
    for key in ("created_at", "started_at"):
        if key in body:
            told[key] = _written(body[key])
    if started is not None and record.name != STARTED:
        told["duration_ms"] = max(record.at - started, 0) // _MILLISECOND
    return told


def _written(at: Micros) -> str:
    return to_datetime(at).isoformat(timespec="microseconds")
