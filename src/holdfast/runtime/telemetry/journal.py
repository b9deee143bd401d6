"""The journal: a line in the log for whatever happens to a job, and the job's name on what its handler logs."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from holdfast.client.logs import about, handling
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Move
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.telemetry.watch import Settled, Watch

log = logging.getLogger("holdfast.journal")


class Journal(Watch):
    """Writes at the level DEBUG; failures and refusals are logged in any case, by whoever decides on them."""

    def began(self, attempt: Attempt) -> None:
        """Tell of a handler's start."""
        job = attempt.job
        log.debug("job %s: attempt %d of %s begins", job.id, job.attempt, job.kind, extra=about(job))

    def scope(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Let what the handler logs carry its job."""
        return handling(attempt.job)

    def step(self, attempt: Attempt, name: str) -> AbstractContextManager[None]:
        """Tell of a step's start."""
        log.debug("job %s: step %s begins", attempt.job.id, name, extra=about(attempt.job))
        return super().step(attempt, name)

    def settled(self, settled: Sequence[Settled]) -> None:
        """Tell of the ends of attempts."""
        for attempt, move in settled:
            job = attempt.job
            log.debug("job %s: attempt %d: %s, it is %s", job.id, job.attempt, move.verb, move.state, extra=about(job))

    def reaped(self, reaped: Sequence[tuple[JobRecord, Move]]) -> None:
        """Tell of what was taken back."""
        for job, move in reaped:
            log.debug("job %s: %s, it is %s", job.id, move.verb, move.state, extra=about(job))
