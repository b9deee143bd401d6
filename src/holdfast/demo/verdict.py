"""A verdict on one promise, and the checks that need to know nothing of what was asked for. Pure.

The demo and `holdfast chaos` hold different runs against the promises; what both look at is judged here.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from holdfast.domain.job import AttemptRecord, JobRecord
from holdfast.port.store import Finding

_SHOWN = 2


class Verdict(NamedTuple):
    """One line of the table. `wrong` names what speaks against the promise; the promise holds if that is nothing."""

    promise: str
    claim: str
    shown: str
    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return not self.wrong

    @property
    def text(self) -> str:
        """What was seen; of a broken promise, the first things that are wrong."""
        if not self.wrong:
            return self.shown
        more = len(self.wrong) - _SHOWN
        return "; ".join(self.wrong[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


class Recorded(Protocol):
    """What a store tells of a run."""

    @property
    def records(self) -> Sequence[JobRecord]:
        """Every job in the store."""
        ...

    @property
    def attempts(self) -> Mapping[str, Sequence[AttemptRecord]]:
        """Every attempt by job id, oldest first, the successful one included."""
        ...

    @property
    def finals(self) -> Mapping[str, JobRecord]:
        """Each job as it was when first seen finished, during the run."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """What the store's own check found."""
        ...


def name_of(job: JobRecord) -> str:
    """Name a job as a verdict does: by its key, if it has one."""
    return job.key or f"{job.kind} {job.id}"


def one_worker_at_a_time(seen: Recorded) -> Verdict:
    wrong: list[str] = []
    leases = 0
    for job in seen.records:
        history = seen.attempts.get(job.id, ())
        leases += len(history)
        if [attempt.token for attempt in history] != list(range(1, job.token + 1)):
            wrong.append(f"{name_of(job)} has a gap in its leases")
        wrong += [
            f"{name_of(job)} was held by {before.owner} and {after.owner} at once"
            for before, after in pairwise(history)
            if (after.claimed_at or 0) < (before.ended_at or 0)
        ]
    return Verdict("S8", "one worker at a time", f"{leases} leases, no two of one job overlap", tuple(wrong))


def finished_is_final(seen: Recorded) -> Verdict:
    now = {job.id: job for job in seen.records}
    wrong = [
        f"{name_of(job)} changed after it was {job.state}" for job in seen.finals.values() if now.get(job.id) != job
    ]
    wrong += [] if seen.finals else ["no job was seen to finish"]
    return Verdict("S15", "finished is final", f"{len(seen.finals)} finished, not a byte changed since", tuple(wrong))


def books_balance(seen: Recorded) -> Verdict:
    wrong = tuple(f"{finding.promise}: {finding.text}" for finding in seen.findings)
    return Verdict("S36", "the books balance", f"file, counters, keys and {len(seen.records)} histories agree", wrong)
