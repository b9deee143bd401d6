"""Holdfast: durable jobs that keep their promises through crashes, duplicates, retries and races."""

from holdfast.app import Holdfast
from holdfast.client.context import Context
from holdfast.client.counts import Counts
from holdfast.client.explain import Explanation
from holdfast.client.function import JobFunction, Prepared
from holdfast.client.job import Job
from holdfast.client.registry import JobHandler
from holdfast.client.settings import retention
from holdfast.domain.errors import (
    BadEnvelope,
    BadInput,
    BadPayload,
    CommitUnknown,
    HoldfastError,
    IllegalMove,
    JobCancelled,
    JobDead,
    JobNotFound,
    KeyConflict,
    Permanent,
    ResultTimeout,
    Snooze,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    UnknownKind,
)
from holdfast.domain.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "BadEnvelope",
    "BadInput",
    "BadPayload",
    "CommitUnknown",
    "Context",
    "Counts",
    "Explanation",
    "Holdfast",
    "HoldfastError",
    "IllegalMove",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobFunction",
    "JobHandler",
    "JobNotFound",
    "KeyConflict",
    "Permanent",
    "Prepared",
    "ResultTimeout",
    "Retry",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "UnknownKind",
    "retention",
]
