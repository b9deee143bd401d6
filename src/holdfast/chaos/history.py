"""All that is known after a chaos run: what was asked for and answered, what the store keeps, what bodies really did,
and what went wrong when.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from holdfast.chaos.ledger import Entry, Word
from holdfast.chaos.plan import Orders, Sort, Task
from holdfast.domain.job import AttemptRecord, JobRecord, State, StepRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Verb
from holdfast.port.store import Finding


class Offer(NamedTuple):
    """One enqueue, and the answer: a job's id, or none if the key was refused to another payload."""

    number: int
    id: str | None
    duplicate: bool = False
    other: bool = False
    """Whether the key was offered with another payload than the task's."""


class Fault(NamedTuple):
    """A worker that was struck at work. `held` are the jobs that it held then, with their tokens."""

    sort: Sort
    worker: str
    at: Micros
    """By the store's clock, as are the attempts."""
    held: Mapping[str, int]


class Counts(NamedTuple):
    """What a run came to."""

    jobs: int
    succeeded: int
    dead: int
    attempts: int
    bodies: int
    kills: int
    freezes: int
    taken_over: int
    """Leases that ended and were taken back."""
    run_again: int
    """Bodies that began anew because the one before had been lost with its lease."""
    refused: int
    """Writes under a lease that was over, which the store turned away."""
    let_go: int
    """Jobs that a worker stopped by itself, because it could not rely on its lease any more."""


@dataclass(frozen=True)
class History:
    """What a run left."""

    orders: Orders
    tasks: Sequence[Task]
    offers: Sequence[Offer]
    records: Sequence[JobRecord]
    """Every job in the store."""
    attempts: Mapping[str, Sequence[AttemptRecord]]
    """Every attempt by job id, oldest first, the successful one included."""
    steps: Mapping[str, Sequence[StepRecord]]
    """The recorded steps of each job that has some, in order."""
    finals: Mapping[str, JobRecord]
    """Each job as it was when first seen finished, during the run."""
    ledger: Sequence[Entry]
    faults: Sequence[Fault]
    strays: Sequence[str]
    """What became of workers that ended though nobody had killed them."""
    backwards: Sequence[str]
    """What was seen to go back between two looks: a cursor, a version or a token."""
    missed: Sequence[str]
    """The jobs that were seen once, and were not there at a later look."""
    findings: Sequence[Finding]
    """What the store's own check found."""
    violations: Sequence[Finding]
    """What the lifecycle never leaves behind, and was found."""
    return_limit: Micros
    """How long after a fault its jobs may stay away, if no other fault happens meanwhile."""

    @cached_property
    def job(self) -> dict[str, JobRecord]:
        """Every job by its id."""
        return {job.id: job for job in self.records}

    @cached_property
    def task(self) -> dict[str, Task]:
        """What was asked for, by the id that was answered."""
        return {offer.id: self.tasks[offer.number] for offer in self.offers if offer.id is not None and not offer.other}

    def asked(self) -> Iterator[tuple[JobRecord, Task]]:
        """Give each job that was asked for, with its task."""
        return ((job, self.task[job.id]) for job in self.records if job.id in self.task)

    def words(self, word: Word) -> Iterator[Entry]:
        """Give the ledger's lines of one sort."""
        return (entry for entry in self.ledger if entry.word == word)

    def seen(self, sort: Sort) -> int:
        """Count the faults of one sort."""
        return sum(fault.sort == sort for fault in self.faults)

    def late(self) -> Iterator[Entry]:
        """Give the writes that were refused because their lease was over. A heartbeat that crosses its own job's
        success on the way is none.
        """
        for entry in self.words("refused"):
            job = self.job.get(entry.job)
            if job is None or (job.state, job.token) != (State.SUCCEEDED, entry.token):
                yield entry

    @property
    def void(self) -> list[str]:
        """Why the run proves nothing, if it does not: a fault that was asked for did not happen at work."""
        asked: dict[Sort, tuple[int, str]] = {
            "kill": (self.orders.kills, "killed at work"),
            "freeze": (self.orders.freezes, "frozen until its work was taken over"),
        }
        return [
            f"{number} workers were to be {how}, and {self.seen(sort)} were"
            for sort, (number, how) in asked.items()
            if self.seen(sort) < number
        ]

    def counts(self) -> Counts:
        """Count what the run came to."""
        ended = [attempt for history in self.attempts.values() for attempt in history]
        outcomes = Counter(attempt.outcome for attempt in ended)
        states = Counter(job.state for job in self.records)
        bodies = Counter((entry.job, entry.step) for entry in self.words("begin"))
        charged = Counter(id_ for id_, history in self.attempts.items() for each in history if each.outcome in _MEANT)
        again = sum(max(0, times - max(1, charged[id_])) for (id_, step), times in bodies.items() if not step)
        again += sum(times - 1 for (_, step), times in bodies.items() if step)
        return Counts(
            jobs=len(self.records),
            succeeded=states[State.SUCCEEDED],
            dead=states[State.DEAD],
            attempts=len(ended),
            bodies=bodies.total(),
            kills=self.seen("kill"),
            freezes=self.seen("freeze"),
            taken_over=outcomes[Verb.REAP],
            run_again=again,
            refused=sum(1 for _ in self.late()),
            let_go=sum(1 for _ in self.words("lost")),
        )


_MEANT = frozenset({Verb.FAIL.value, Verb.SNOOZE.value, Verb.COMPLETE.value})
"""How an attempt ends that went as it was meant to; a job may have several such."""
