"""What a test reads off a job again and again."""

from typing import Any

from holdfast import Job, Retry

ONCE = Retry.fixed(0, retries=0)
AGAIN = Retry.fixed(0, retries=1)
OFTEN = Retry.fixed(0, retries=20)


def names(job: Job[Any]) -> list[str]:
    """Give the names of its recorded steps, in order."""
    return [step.name for step in job.steps()]


def code(job: Job[Any]) -> str | None:
    """Give the code of its last failure."""
    failure = job.refresh().failure
    return None if failure is None else failure.code
