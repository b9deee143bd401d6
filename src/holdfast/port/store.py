"""The store port: the few batched operations that every engine must offer, and the values they exchange.

A store selects, locks and writes what the lifecycle decided; it holds no rule about states, attempts or delays. Calls
block and are
thread-safe: each engine we serve has a blocking driver that is faster than its asynchronous twin, and a worker makes
so few, large calls
that a thread per role costs nothing (ADR 2).

What every store guarantees:

- **Guarded.** A move is written only if its guard still holds at the moment of writing, and then bumps `version` by
  one. A refused move
  changes nothing. `commit` answers for each move on its own, and writes the moves of one job in the order given.
- **Three outcomes.** A call returns (done or refused, per item), raises `StoreUnavailable` (nothing changed), or
  raises `CommitUnknown` (all or
  nothing changed). Every call may be asked again: a settlement that already went through answers `ok` to its own
  token, a checkpoint whose step
  is recorded answers `ok` and changes nothing, and an insert with the same ids stores nothing twice.
- **Atomic.** The jobs of one insert group appear together or not at all. A move, its attempt record and its step
  appear together.
- **One clock.** `now` is the clock by which leases end and jobs come due; instants are never compared with another
  clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import AttemptRecord, JobRecord, NewJob, State, StepRecord
from holdfast.domain.lifecycle import Answer, Move
from holdfast.domain.moments import Micros


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can and cannot give; the conformance suite skips by these, never by a store's name."""

    durable: bool
    """What was acknowledged survives the death of every process."""
    shared: bool
    """Several processes may work on it at once."""
    strict_order: bool = True
    """Claims follow priority, then available_at, then age, exactly."""
    exact_counts: bool = True
    """`counts` equals a recount of the rows at any quiet moment."""
    caller_transactions: bool = False
    """A job can be enqueued inside the caller's own transaction."""
    handler_transactions: bool = False
    """A handler's own writes can commit together with its job's completion."""
    backup: bool = False
    """`backup` copies a consistent snapshot while work goes on."""
    concurrent: bool = False
    """One object serves several threads at once, each on a connection of its own."""
    calls: bool = False
    """`wait` also returns when a job comes due, whoever stored it: an idle worker need not look for itself."""


class Inserted(NamedTuple):
    """The answer to one inserted job: what was stored and when, or the job that was there already.

    The record is made only when it is looked at: most callers of a large batch never do.
    """

    id: str
    new: NewJob
    at: Micros
    found: JobRecord | None = None
    duplicate: bool = False
    """The key already belonged to `found`."""

    @property
    def job(self) -> JobRecord:
        """The job as it stood in the store when this was answered."""
        return self.found or lifecycle.create(self.id, self.new, self.at)


InsertGroup = Sequence[tuple[str, NewJob]]


class Claim(NamedTuple):
    """A wish for work. `queues` maps each queue to the most jobs wanted from it; `None` takes every queue up to
    `limit`.
    """

    owner: str
    lease_id: str
    lease: Micros
    limit: int
    queues: Mapping[str, int] | None = None
    full: frozenset[str] = frozenset()
    """Queues to pass over when `queues` is None."""
    id: str | None = None
    """Take exactly this job, if it is runnable; `queues` and `full` are then of no account."""


class Beat(NamedTuple):
    """A holder's wish to keep its lease. `begun` tells that the handler is running."""

    id: str
    token: int
    lease_id: str
    begun: bool


class Query(NamedTuple):
    """A filter for `find`; newest first. `before` continues after the job with this id."""

    state: State | None = None
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error_code: str | None = None
    key: str | None = None
    before: str | None = None
    limit: int = 100


class WorkerRecord(NamedTuple):
    """A worker process as it last reported itself."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...] | None
    kinds: tuple[str, ...]
    concurrency: int
    started_at: Micros
    beat_at: Micros
    expires_at: Micros
    running: int


class Finding(NamedTuple):
    """One thing `check` found wrong. `promise` is the id of the promise it breaks."""

    promise: str
    job: str | None
    text: str


class Transaction(Protocol):
    """A handler's transaction. It stays open when its block ends, until the job is settled in it or it is undone."""

    @property
    def open(self) -> bool: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *error: object) -> None: ...
    def settle(self, move: Move) -> Answer: ...
    async def asettle(self, move: Move) -> Answer: ...
    def rollback(self) -> None: ...
    async def arollback(self) -> None: ...


class Store(Protocol):
    """The operations; see the module's own text for what each one guarantees."""

    @property
    def url(self) -> str:
        """The address this store was opened with."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can give."""
        ...

    def now(self) -> Micros:
        """Give the store's time."""
        ...

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | KeyConflict]:
        """Store each group whole or not at all; a key conflict refuses its own group only."""
        ...

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Store a group through the caller's own connection, if `caller_transactions` allows; raises `KeyConflict`."""
        ...

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`, which takes connections that are awaited as well."""
        ...

    def transaction(self) -> Transaction:
        """Give a handler a transaction that its job's completion becomes part of, if `handler_transactions` allows."""
        ...

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first, never more than asked for."""
        ...

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        ...

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and then claim, in one trip."""
        ...

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases. `cancel-requested` means extended, and that the job should stop."""
        ...

    def abandon(self, owner: str) -> int:
        """End at once every lease of an owner that is known to be dead, so that `reap` can take the jobs; give their
        number.
        """
        ...

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id, in the order asked for."""
        ...

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        ...

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002 - the record's own word
        """List the ended attempts of a job, oldest first (a successful one is told by the record alone)."""
        ...

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002 - the record's own word
        """List the recorded steps of a job, in order."""
        ...

    def counts(self) -> dict[tuple[str, State], int]:
        """Count jobs by (queue, state), without reading them."""
        ...

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on: leases that ended, waiting jobs past their expiry."""
        ...

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        ...

    def purge(self, limit: int) -> int:
        """Remove finished jobs whose time is over, with their keys, attempts and steps; give their number."""
        ...

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        ...

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        ...

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        ...

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process, or that it is still alive."""
        ...

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process."""
        ...

    def workers(self) -> list[WorkerRecord]:
        """List the worker processes that are alive by the store's clock."""
        ...

    def lead(self, role: str, owner: str, term: Micros) -> bool:
        """Take or keep a role for a term; false while another owner's term lasts."""
        ...

    def next_due(self, queues: Sequence[str] | None) -> Micros | None:
        """Give the instant, never before now, when a job of these queues (all, if None) can next be claimed; paused
        ones left out.
        """
        ...

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until something may have become claimable in these queues, or the timeout (seconds) is over."""
        ...

    def wake(self) -> None:
        """Make every `wait` of this store object return now."""
        ...

    def check(self) -> Iterator[Finding]:
        """Verify what only the engine can see: integrity, counters, keys."""
        ...

    def backup(self, path: str) -> None:
        """Copy a consistent snapshot to a new file."""
        ...

    def close(self) -> None:
        """Let go of every resource; later calls raise `StoreUnavailable`."""
        ...
