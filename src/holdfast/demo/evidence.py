"""All that is known after a run: what was asked for, what the store keeps, what handlers really did, and who died."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.demo.ledger import Entry
from holdfast.demo.plan import Fate
from holdfast.domain.job import AttemptRecord, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Finding


class Accepted(NamedTuple):
    """One enqueue that was acknowledged."""

    key: str
    id: str
    duplicate: bool


class Death(NamedTuple):
    """A worker that died. `by` is "demo", "poison" or, which should not happen, "itself"."""

    worker: str
    at: Micros
    by: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known after a run."""

    fates: Mapping[str, Fate]
    """What must become of every job, by key."""
    accepted: Sequence[Accepted]
    records: Sequence[JobRecord]
    """Every job in the store."""
    attempts: Mapping[str, Sequence[AttemptRecord]]
    """Every attempt by job id, oldest first, the successful one included."""
    finals: Mapping[str, JobRecord]
    """Each job as it was when first seen finished, during the run."""
    ledger: Sequence[Entry]
    deaths: Sequence[Death]
    findings: Sequence[Finding]
    """What the store's own check found."""
    return_limit: Micros
    """How long after a worker's death its jobs may stay away, if no other worker dies meanwhile."""

    def words(self, word: str) -> Iterator[Entry]:
        """Give the ledger's lines of one sort."""
        return (entry for entry in self.ledger if entry.word == word)

    def dead(self) -> Iterator[JobRecord]:
        """Give the dead letters."""
        return (job for job in self.records if job.state is State.DEAD)
