"""Watches the store from outside: reads every job a few times a second and remembers how each ended."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.domain.job import TERMINAL, JobRecord, State
from holdfast.domain.moments import Micros
from holdfast.port.store import Query, Store

_EVERYTHING = 1_000_000


@dataclass(slots=True)
class Watch:
    """What has been seen so far."""

    store: Store
    records: dict[str, JobRecord] = field(default_factory=dict)
    finals: dict[str, JobRecord] = field(default_factory=dict)
    _missed: dict[str, dict[str, int]] = field(default_factory=dict)

    def look(self) -> list[JobRecord]:
        """Read every job; give those that have finished since the last look."""
        self.records = {job.id: job for job in self.store.find(Query(limit=_EVERYTHING))}
        fresh = [job for job in self.records.values() if job.state in TERMINAL and job.id not in self.finals]
        self.finals.update((job.id, job) for job in fresh)
        return sorted(fresh, key=lambda job: job.finished_at or 0)

    def counts(self) -> dict[str, Counter[State]]:
        """Count jobs by queue and state."""
        counts: dict[str, Counter[State]] = {}
        for job in self.records.values():
            counts.setdefault(job.queue, Counter())[job.state] += 1
        return counts

    def finished(self, jobs: int) -> bool:
        """Tell whether all that is there is finished, and all is there."""
        return len(self.finals) == len(self.records) >= jobs

    def keyed(self, key: str) -> JobRecord | None:
        """Find a job by its key."""
        return next((job for job in self.records.values() if job.key == key), None)

    def held_by(self, worker: str) -> dict[str, int]:
        """Give the jobs that a worker holds, with their tokens."""
        return {
            job.id: job.token
            for job in self.records.values()
            if job.state is State.RUNNING and job.lease_owner == worker
        }

    def lost(self, worker: str) -> int:
        """Remember what a dead worker held; give the number of its jobs."""
        held = self.held_by(worker)
        if held:
            self._missed[worker] = held
        return len(held)

    def recovered(self) -> Iterator[tuple[str, int]]:
        """Give each dead worker all of whose jobs have been taken back since, with their number."""
        for worker, held in list(self._missed.items()):
            if not self.held_by(worker).items() & held.items():
                del self._missed[worker]
                yield worker, len(held)

    def lease_left(self, job: JobRecord) -> Micros:
        """Tell how long a running job's lease still lasts."""
        return (job.lease_expires_at or 0) - self.store.now()
