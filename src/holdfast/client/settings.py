"""What can be tuned, with defaults that need no tuning."""

import os
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.client.artifacts import Artifacts
from holdfast.domain.codec import MAX_BYTES, MAX_RECORD
from holdfast.domain.errors import BadInput
from holdfast.domain.job import Retention
from holdfast.domain.moments import DAY, SECOND, Micros, duration
from holdfast.domain.redaction import Redaction

HARD_LIMIT = MAX_RECORD


def here() -> str | None:
    """Give the folder that this process is in, if it is still there."""
    try:
        return os.getcwd()  # noqa: PTH109 - text, as it is sent to processes
    except OSError:  # it was removed
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """One application's settings. Durations are in microseconds; `settings(...)` takes seconds."""

    lease: Micros = 15 * SECOND
    """How long a claim holds without a heartbeat."""
    heartbeat: Micros = 5 * SECOND
    """How often a worker renews its leases."""
    grace: Micros = 30 * SECOND
    """How long a stopping worker lets running handlers finish."""
    upkeep: Micros = 1 * SECOND
    """How often the leading worker looks for lost leases and old jobs."""
    unknown_kind_grace: Micros = 60 * SECOND
    """How long a job whose kind nobody knows waits for a deployment before it is rejected."""
    max_payload: int = MAX_BYTES
    """The largest payload or result, in bytes of JSON."""
    retention: Retention = field(default_factory=Retention)
    """How long finished jobs are kept."""
    events: bool = False
    """Whether moves are told as events."""
    artifacts: Artifacts = field(default_factory=lambda: Artifacts(None))
    """Where what is too large for a record is kept."""
    redaction: Redaction = field(default_factory=Redaction)
    """What is taken out of tracebacks, logs and reports."""
    folder: str | None = field(default_factory=here)
    """The folder that the application was made in, from which relative paths go."""


def settings(
    *,
    lease: float | timedelta = 15,
    heartbeat: float | timedelta | None = None,
    grace: float | timedelta = 30,
    upkeep: float | timedelta = 1,
    unknown_kind_grace: float | timedelta = 60,
    max_payload: int = MAX_BYTES,
    retention: Retention | None = None,
    events: bool = False,
    artifacts: Artifacts | None = None,
    redaction: Redaction | None = None,
) -> Settings:
    """Check settings given in seconds."""
    held = duration(lease, "lease")
    beat = held // 3 if heartbeat is None else duration(heartbeat, "heartbeat")
    if not 0 < beat <= held // 2:
        msg = "The heartbeat must be more often than twice per lease, or a healthy worker would lose its jobs."
        raise BadInput(msg)
    if not 1 <= max_payload <= HARD_LIMIT:
        msg = f"max_payload is between 1 and {HARD_LIMIT:,} bytes, not {max_payload!r}."
        raise BadInput(msg)
    if not isinstance(retention, Retention | None):
        kind = type(retention).__name__
        msg = f"retention is what holdfast.retention(succeeded=…, cancelled=…, dead=…) gives, not a {kind}."
        raise BadInput(msg)
    if not isinstance(events, bool):
        msg = f"events is True or False, not {events!r}."
        raise BadInput(msg)
    if not isinstance(redaction, Redaction | None):
        msg = f"redaction is a holdfast.Redaction(keys=…, patterns=…), not a {type(redaction).__name__}."
        raise BadInput(msg)
    return Settings(
        held, beat, duration(grace, "grace"), max(duration(upkeep, "upkeep"), SECOND // 100),
        duration(unknown_kind_grace, "unknown_kind_grace"), max_payload, retention or Retention(), events,
        artifacts or Artifacts(None, max_payload), redaction or Redaction(),
    )  # fmt: skip


def retention(
    *,
    succeeded: float | timedelta = 7 * DAY // SECOND,
    cancelled: float | timedelta = 7 * DAY // SECOND,
    dead: float | timedelta = 90 * DAY // SECOND,
) -> Retention:
    """Say in seconds (or timedeltas) how long finished jobs are kept, by terminal state."""
    return Retention(duration(succeeded, "succeeded"), duration(cancelled, "cancelled"), duration(dead, "dead"))
