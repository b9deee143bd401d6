"""What one store hands to another when a job moves."""

from typing import NamedTuple

from holdfast.domain.job import AttemptRecord, JobRecord, SignalRecord, StepRecord
from holdfast.domain.moments import Micros


class Parcel(NamedTuple):
    """A job with its whole past, as one store hands it to another."""

    job: JobRecord
    attempts: list[AttemptRecord]
    steps: list[StepRecord]
    signals: list[SignalRecord]
    keyed: bool = False
    """The job's key is its own."""
    keyed_until: Micros | None = None
    """When the key is free again; None if it is the job's as long as that is kept."""
