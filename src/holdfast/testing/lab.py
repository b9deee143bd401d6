"""The bench a case works at: a store, the clock it runs by, and short ways to bring a job into any state.

Every way goes through the port alone, so a case says nothing about how a store keeps its jobs.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple, assert_never

import pytest

from holdfast.domain import history, lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import (
    Account,
    AttemptRecord,
    CreditEntry,
    Failure,
    JobRecord,
    NewJob,
    Retention,
    SignalRecord,
    State,
    StepRecord,
)
from holdfast.domain.moments import MINUTE, SECOND, Micros
from holdfast.domain.move import Answer, Move
from holdfast.domain.retry import Retry
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Claim, EventRecord, Inserted, Refusal, Store
from holdfast.testing.clock import ManualClock

LEASE: Micros = MINUTE
RETENTION = Retention()
FLAKY = Failure("flaky", "the other side hung up", retryable=True)
HOPELESS = Failure("hopeless", "no such document", retryable=False)
BACKOFF = Retry.fixed(10).spec
DELAY: Micros = 10 * SECOND


class Stored(NamedTuple):
    """The answer to one inserted job, as far as every store must agree on it."""

    job: JobRecord
    duplicate: bool


class Held(NamedTuple):
    """All that a store keeps of one job."""

    job: JobRecord | None
    attempts: tuple[AttemptRecord, ...]
    steps: tuple[StepRecord, ...]
    signals: tuple[SignalRecord, ...]


class Books(NamedTuple):
    """All that a store keeps beside its jobs and that a move may change."""

    accounts: list[Account]
    entries: list[CreditEntry]
    events: list[EventRecord]
    counts: dict[tuple[str, State], int]


@dataclass(frozen=True, slots=True)
class Lab:
    """One store under test. `other` is a second object on the same data, or the same object where none can be had."""

    store: Store
    other: Store
    clock: ManualClock
    reopen: Callable[[], Store]
    ids: Ids
    numbers: Iterator[int] = field(default_factory=count)

    def need(self, capability: str) -> None:
        """Skip the case on a store that does not claim this capability."""
        if not getattr(self.store.capabilities, capability):
            pytest.skip(f"the store does not claim to be {capability}")

    def new(self, **fields: Any) -> NewJob:
        """Describe a job of which only these fields matter."""
        return NewJob("echo", '{"n":1}', retry=BACKOFF)._replace(**fields)

    def insert(self, *news: NewJob) -> list[JobRecord]:
        """Store a group that must be accepted."""
        return [answer.job for answer in self.accepted(news)]

    def accepted(self, news: Sequence[NewJob]) -> list[Stored]:
        """Store a group that must be accepted; give the whole answers."""
        [answer] = self.store.insert([list(zip(self.ids.take(len(news)), news, strict=True))])
        return stored(answer)

    def job(self, **fields: Any) -> JobRecord:
        """Store one job."""
        return self.insert(self.new(**fields))[0]

    def jobs(self, number: int, **fields: Any) -> list[JobRecord]:
        """Store many jobs that are alike."""
        return self.insert(*[self.new(**fields)] * number)

    def want(self, limit: int = 1, **fields: Any) -> Claim:
        """Wish for work under a fresh lease id."""
        return Claim("ada", f"lease-{next(self.numbers)}", LEASE, limit)._replace(**fields)

    def claim(self, limit: int = 1, **fields: Any) -> list[JobRecord]:
        """Claim what is there."""
        return self.store.claim(self.want(limit, **fields))

    def take(self, job: JobRecord, **fields: Any) -> JobRecord:
        """Claim this job, which must be runnable."""
        [claimed] = self.claim(id=job.id, **fields)
        return claimed

    def running(self, **fields: Any) -> JobRecord:
        """Store a job and claim it."""
        return self.take(self.job(**fields))

    def in_state(self, state: State, **fields: Any) -> JobRecord:
        """Store a job and bring it into this state."""
        match state:
            case State.CREATED:
                return self.job(state=State.CREATED, **fields)
            case State.QUEUED:
                return self.job(**fields)
            case State.RUNNING:
                return self.running(**fields)
            case State.RETRYING:
                job = self.running(**fields)
                return self.done(lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION))
            case State.SUCCEEDED:
                return self.done(lifecycle.complete(self.running(**fields), '"fine"', RETENTION))
            case State.DEAD:
                return self.done(lifecycle.fail(self.running(**fields), HOPELESS, draw=0, retention=RETENTION))
            case State.CANCELLED:
                return self.done(lifecycle.cancel(self.job(**fields), RETENTION))
            case _:
                assert_never(state)

    def answer(self, move: Move) -> Answer:
        """Commit one move."""
        [answer] = self.store.commit([move])
        return answer

    def done(self, move: Move) -> JobRecord:
        """Commit one move that must be written, and written as the lifecycle says; give the record it leaves."""
        before = self.held(move.id)
        assert before.job is not None, move
        assert self.answer(move) is Answer.OK, move
        now = self.clock.now()
        after = self.held(move.id)
        assert after.job == lifecycle.apply(before.job, move, now)
        ended = history.ended_attempt(before.job, move, now)
        assert after.attempts == (*before.attempts, *([ended] if ended else []))
        step = StepRecord(move.step, move.result, now) if move.step is not None else None
        fresh = step is not None and step.name not in {each.name for each in before.steps}
        assert after.steps == (*before.steps, *([step] if fresh else []))
        assert after.signals == (*before.signals, *([SignalRecord(*move.signal, now)] if move.signal else []))
        return after.job

    def refused(self, move: Move, answer: Answer) -> None:
        """Commit one move that must be answered so and change nothing."""
        before, books = self.held(move.id), self.books()
        assert self.answer(move) is answer, move
        assert self.held(move.id) == before, f"{move.verb} was refused and changed something"
        assert self.books() == books, f"{move.verb} was refused and changed the books"
        assert not any(self.store.read([id_ for id_, _ in move.children])), "children of a move that was refused"

    def beat(
        self, job: JobRecord, *, lease: Micros = LEASE, begun: bool = False, progress: str | None = None
    ) -> Answer:
        """Send one heartbeat for a claimed job."""
        [answer] = self.store.heartbeat([Beat(job.id, job.token, job.lease_id or "", begun, progress)], lease)
        return answer

    def lapse(self) -> None:
        """Let every lease of the usual length end."""
        self.clock.advance(microseconds=LEASE)

    def reap(self) -> list[JobRecord]:
        """Reap all that is expired; give the records left behind."""
        late = self.store.expired(1_000)
        return [self.done(lifecycle.reap(job, self.clock.now(), RETENTION)) for job in late]

    def read(self, job: JobRecord) -> JobRecord:
        """Read a job that must be there."""
        [found] = self.store.read([job.id])
        assert found is not None
        return found

    def held(self, id_: str) -> Held:
        """Read all that is kept of a job."""
        store = self.store
        lists = store.attempts(id_), store.steps(id_), store.signals(id_)
        return Held(store.read([id_])[0], tuple(lists[0]), tuple(lists[1]), tuple(lists[2]))

    def books(self) -> Books:
        """Read all that is kept beside the jobs."""
        accounts = self.store.accounts()
        entries = [entry for account in accounts for entry in self.store.entries(account.tenant, 1_000)]
        counts = self.counts() if self.store.capabilities.exact_counts else {}  # else they may still be on their way
        return Books(accounts, entries, self.store.events(0, 1_000), counts)

    def counts(self) -> dict[tuple[str, State], int]:
        """Count by (queue, state), leaving out what is zero."""
        return {what: number for what, number in self.store.counts().items() if number}


Case = Callable[[Lab], None]


def stored(answer: list[Inserted] | Refusal) -> list[Stored]:
    """Read the answer to a group that must be accepted."""
    assert isinstance(answer, list), answer
    return [Stored(one.job, one.duplicate) for one in answer]


def cases(*modules: ModuleType) -> tuple[Case, ...]:
    """Gather the cases of some modules: their own public functions, in the order written."""
    return tuple(
        thing
        for module in modules
        for name, thing in vars(module).items()
        if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", "") == module.__name__
    )


def sentence(case: Case) -> str:
    """Name a case by what it says."""
    return getattr(case, "__name__", str(case))


@contextmanager
def lab(open_store: Callable[[Clock], Store]) -> Iterator[Lab]:
    """Open a store for one case and close every object that was opened on it.

    `open_store` is asked more than once where the store is durable or shared, and must open the same data each time.
    """
    clock = ManualClock()
    with ExitStack() as opened:

        def again() -> Store:
            return opened.enter_context(closing(open_store(clock)))

        store = again()
        other = again() if store.capabilities.shared else store
        seeded = random.Random(7)  # noqa: S311 - ids that are the same in every run
        yield Lab(store, other, clock, again, Ids(lambda: clock.now() // 1000, seeded.getrandbits))
