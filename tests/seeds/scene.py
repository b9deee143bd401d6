"""What the seeds' tests share: an application on a store, workers by name, and a job told in a seed's own words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast import Holdfast, Job
from holdfast.domain import lifecycle
from holdfast.domain.dialects import DIALECTS
from holdfast.domain.job import Failure, JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Beat, Claim
from holdfast.runtime import upkeep
from holdfast.testing.clock import ManualClock

TRANSIENT = Failure("unavailable", "the other side did not answer", retryable=True)


@dataclass(frozen=True)
class Scene:
    """One application. `another` opens it once more on the same store, as another worker process would."""

    app: Holdfast
    clock: ManualClock
    another: Callable[[], Holdfast]

    def tell(self, dialect: str, job: Job[Any]) -> dict[str, Any]:
        """Give a job's record in a seed's vocabulary."""
        return DIALECTS[dialect].render(self.record(job), self.app.store.now())

    def status(self, dialect: str, job: Job[Any]) -> str:
        """Give a job's status in a seed's word."""
        return DIALECTS[dialect].status(self.record(job), self.app.store.now())

    def record(self, job: Job[Any]) -> JobRecord:
        """Read all there is of a job's row."""
        return self.app.get(job.id).record

    def row(self, job: Job[Any]) -> bytes:
        """Give the bytes of a job's row and of its history."""
        id_ = str(job.id)
        return repr((self.record(job), self.app.store.attempts(id_), self.app.store.steps(id_))).encode()

    def deliver(self, job: Job[Any], **changes: Any) -> str:
        """Hand the worker a message for the job."""
        return self.app.process({**self.app.envelope(job.id), **changes})

    def claim(self, worker: str, limit: int = 1, job: Job[Any] | None = None) -> list[JobRecord]:
        """Let a worker take what is due, best first; or one job, if it can be had."""
        id_ = None if job is None else str(job.id)
        lease_id = f"{worker}-{self.clock.now()}"
        return self.app.store.claim(Claim(worker, lease_id, self.app.settings.lease, limit, id=id_))

    def write(self, move: Move) -> str:
        """Let a worker write; give the store's answer."""
        (answer,) = self.app.store.commit([move])
        return answer.value

    def complete(self, held: JobRecord) -> str:
        """Let a worker report success."""
        return self.write(lifecycle.complete(held, None, self.app.settings.retention))

    def fail(self, held: JobRecord, failure: Failure = TRANSIENT) -> str:
        """Let a worker report a failure."""
        return self.write(lifecycle.fail(held, failure, draw=0.0, retention=self.app.settings.retention))

    def heartbeat(self, held: JobRecord, *, begun: bool = True) -> Answer:
        """Let a worker report that it is alive."""
        beat = Beat(held.id, held.token, held.lease_id or "", begun)
        (answer,) = self.app.store.heartbeat([beat], self.app.settings.lease)
        return answer

    def reap(self) -> int:
        """Let the reaper make one round."""
        return upkeep.reap(self.app.store, self.app.settings)

    def purge(self) -> int:
        """Let retention make one round."""
        return upkeep.purge(self.app.store, self.app.settings)
