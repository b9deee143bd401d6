"""Forks: a job run again as a new one from one of its steps on."""

from collections.abc import Sequence

from holdfast.client.durable import FORKED, UNDO, awake
from holdfast.domain import codec
from holdfast.domain.errors import BadInput
from holdfast.domain.job import NOTE, JobRecord, NewJob, StepRecord


def forked(job: JobRecord, recorded: Sequence[StepRecord], from_step: str, pipeline: Sequence[str]) -> NewJob:
    """Describe the new job: what the old one was asked to do, and the records of all that came before the step."""
    names = [step.name for step in recorded]
    if from_step in names:
        kept = list(recorded[: names.index(from_step)])
    elif from_step in pipeline:
        kept = [step for step in recorded if step.name not in pipeline[list(pipeline).index(from_step) :]]
    else:
        known = ", ".join(name for name in names if not name.startswith(NOTE)) or "none"
        msg = f"Job {job.id} has recorded no step {from_step!r}; recorded are: {known}."
        raise BadInput(msg)
    steps = tuple((step.name.partition("@")[0], awake(step.result)) for step in _standing(kept, recorded))
    return NewJob(
        job.kind, job.payload, job.queue, job.tenant, job.user, job.priority, job.retry, job.max_attempts,
        job.crash_cap, job.trigger, job.trace_id, steps_total=job.steps_total, code_version=job.code_version,
        credits=0 if job.flow is None else job.flow.estimate, steps=(*steps, (FORKED, codec.encode(job.id, "A fork"))),
    )  # fmt: skip


def _standing(kept: Sequence[StepRecord], recorded: Sequence[StepRecord]) -> list[StepRecord]:
    """Leave out what was undone, and the notes beside steps: a wait, or the children of the old job, are its own."""
    undone = {step.name.removeprefix(UNDO) for step in recorded if step.name.startswith(UNDO)}
    return [step for step in kept if not step.name.startswith((UNDO, NOTE)) and step.name not in undone]
