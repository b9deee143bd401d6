"""Holdfast: durable jobs that keep their promises through crashes, duplicates, retries and races."""

from holdfast.app import Holdfast
from holdfast.client.context import Context
from holdfast.client.counts import Counts
from holdfast.client.drops import Dropped
from holdfast.client.explain import Explanation
from holdfast.client.function import JobFunction, Prepared
from holdfast.client.job import Job
from holdfast.client.logs import JsonFormatter
from holdfast.client.pipeline import Step
from holdfast.client.registry import JobHandler
from holdfast.client.schedules import Schedule
from holdfast.client.settings import retention
from holdfast.client.sinks import JsonLines, Webhook, verify_webhook
from holdfast.domain.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ArtifactsUnavailable,
    BadEnvelope,
    BadInput,
    BadPayload,
    BadSignature,
    ChildFailed,
    CommitUnknown,
    HoldfastError,
    IllegalMove,
    InsufficientCredits,
    JobCancelled,
    JobDead,
    JobNotFound,
    KeyConflict,
    Permanent,
    ResultTimeout,
    ScheduleNotFound,
    Snooze,
    StepTimeout,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    TokenNotFound,
    UnknownKind,
)
from holdfast.domain.redaction import Redaction
from holdfast.domain.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "ArtifactDamaged",
    "ArtifactMissing",
    "ArtifactsUnavailable",
    "BadEnvelope",
    "BadInput",
    "BadPayload",
    "BadSignature",
    "ChildFailed",
    "CommitUnknown",
    "Context",
    "Counts",
    "Dropped",
    "Explanation",
    "Holdfast",
    "HoldfastError",
    "IllegalMove",
    "InsufficientCredits",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobFunction",
    "JobHandler",
    "JobNotFound",
    "JsonFormatter",
    "JsonLines",
    "KeyConflict",
    "Permanent",
    "Prepared",
    "Redaction",
    "ResultTimeout",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "Snooze",
    "Step",
    "StepTimeout",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "TokenNotFound",
    "UnknownKind",
    "Webhook",
    "retention",
    "verify_webhook",
]
