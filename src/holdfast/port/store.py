"""The store port: the few batched operations that every engine must offer, and the values they exchange.

A store selects, locks and writes what the lifecycle decided; it holds no rule about states, attempts or delays. Calls
block and are thread-safe: each engine we serve has a blocking driver that is faster than its asynchronous twin, and a
worker makes so few, large calls that a thread per role costs nothing (ADR 2).

What every store guarantees:

- **Guarded.** A move is written only if its guard still holds at the moment of writing, and then bumps `version` by
  one. A refused move changes nothing. `commit` answers for each move on its own, and writes the moves of one job in
  the order given.
- **Three outcomes.** A call returns (done or refused, per item), raises `StoreUnavailable` (nothing changed), or
  raises `CommitUnknown` (all or nothing changed). Every call may be asked again: a settlement that already went through
  answers `ok` to its own token, a checkpoint whose step is recorded answers `ok` and changes nothing, and an insert
  with the same ids stores nothing twice.
- **Atomic.** The jobs of one insert group appear together or not at all, with the credits set aside for them. A move
  appears together with all it carries: its attempt record, step, signal, children, credits and events.
- **Ruled.** The pages of the book `flow` hold from the next claim on (`domain.limits`): a claim takes what
  `domain.ring` says, and counts it in its own transaction. Only stores with `fair` and `limits` know of them.
- **One clock.** `now` is the clock by which leases end and jobs come due; instants are never compared with another
  clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits, KeyConflict
from holdfast.domain.excess import Excess
from holdfast.domain.gates import Standing
from holdfast.domain.job import (
    Account,
    AttemptRecord,
    CreditEntry,
    JobRecord,
    NewJob,
    SignalRecord,
    State,
    StepRecord,
)
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Move
from holdfast.port.parcel import Parcel
from holdfast.port.transaction import Transaction


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
    messages: bool = False
    """Each attempt has a message in a queue, which the store sends: a message that was claimed has served."""
    joins: bool = False
    """A completion that records its job's last step takes one write less than the two by themselves."""
    fair: bool = False
    """Queues can be served lane by lane, with weights and aging; tenants and kinds can be paused."""
    limits: bool = False
    """Rates and jobs at once can be limited."""


class Inserted(NamedTuple):
    """The answer to one inserted job: what was stored and when, or the job that was there already. The record is made
    only when it is looked at: most callers of a large batch never do.
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


UPKEEP = "upkeep"
"""The role of the one worker that keeps a store in order, and may look for all others."""
InsertGroup = Sequence[tuple[str, NewJob]]
Refusal = KeyConflict | InsufficientCredits
"""Why a group was not stored."""


class Claim(NamedTuple):
    """A wish for work. `queues` maps each queue to the most jobs wanted from it; `None` takes all up to `limit`."""

    owner: str
    lease_id: str
    lease: Micros
    limit: int
    queues: Mapping[str, int] | None = None
    full: frozenset[str] = frozenset()
    """Queues to pass over when `queues` is None."""
    id: str | None = None
    """Take exactly this job, if it is runnable; `queues` and `full` are then of no account."""
    tenant: str | None = None
    """Take this tenant's jobs alone."""
    defers: bool = False
    """It may be turned away, if many others are claiming."""


class TurnedAway(list[JobRecord]):
    """The nothing that a claim got which defers to others: there may be jobs, and it had better come again later."""


class Beat(NamedTuple):
    """A holder's wish to keep its lease. `begun` tells that the handler is running."""

    id: str
    token: int
    lease_id: str
    begun: bool
    progress: str | None = None
    """How far the job is (see `Flow.progress`), if there is news of that."""


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
    parent: str | None = None

    def matches(self, job: JobRecord) -> bool:
        """Tell whether a job passes the filter."""
        return (
            (self.state is None or job.state is self.state)
            and (self.kind is None or job.kind == self.kind)
            and (self.queue is None or job.queue == self.queue)
            and (self.tenant is None or job.tenant == self.tenant)
            and (self.error_code is None or job.failure_code == self.error_code)
            and (self.key is None or job.key == self.key)
            and (self.parent is None or job.parent == self.parent)
            and (self.before is None or job.id < self.before)
        )


class WorkerRecord(NamedTuple):
    """A worker process as it last reported itself."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...] | None
    kinds: tuple[str, ...]
    """Empty if it did not say."""
    concurrency: int
    started_at: Micros
    beat_at: Micros
    expires_at: Micros
    running: int
    version: str = ""
    """The version of Holdfast that it runs; empty if it did not say."""


class EventRecord(NamedTuple):
    """An event that was committed. Positions grow in the order in which events became visible."""

    position: int
    id: str
    job_id: str
    name: str
    body: str
    at: Micros


class ScheduleRecord(NamedTuple):
    """A stored schedule. `spec` is JSON that only `domain.schedule` reads."""

    name: str
    spec: str
    next_at: Micros
    """When it is to fire next."""
    last_at: Micros | None = None
    """The time for which it last fired."""
    paused: bool = False
    version: int = 1
    """Grows by one with every write."""


class Page(NamedTuple):
    """A document of a surface: a token, an entry of the trail. `body` is JSON that the store does not read.

    `book` and `name` are short and not empty; in a book, names stand by the order of their code points.
    """

    book: str
    name: str
    body: str
    version: int = 1
    """Grows by one with every write."""
    expires_at: Micros | None = None
    """When it is gone, whether or not `purge` has removed it yet."""


class Purged(NamedTuple):
    """What a purge removed."""

    jobs: int
    artifacts: list[str]
    """The references (payloads and results, as stored) to what lies outside the store and has no owner now."""
    pages: int = 0


class Finding(NamedTuple):
    """One thing `check` found wrong. `promise` is the id of the promise it breaks."""

    promise: str
    job: str | None
    text: str


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

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all; a key conflict or a lack of credits refuses its own group only."""
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
        """Commit and then claim, in one trip. Only who defers is ever `TurnedAway`."""
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

    def parcels(self, ids: Sequence[str]) -> list[Parcel]:
        """Read jobs with their whole past, in the order asked for; those that are not there are left out."""
        ...

    def adopt(self, parcels: Sequence[Parcel]) -> list[Answer | KeyConflict]:
        """Store jobs from another store as they are (`moving.welcome` says which), each with its whole past and the
        credits set aside for it, or not at all. One that is there already is answered `ok` and stays as it is.
        """
        ...

    def counts(self) -> dict[tuple[str, State], int]:
        """Count jobs by (queue, state), without reading them."""
        ...

    def signals(self, id: str) -> list[SignalRecord]:  # noqa: A002 - the record's own word
        """List the signals a job was sent, oldest first."""
        ...

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        ...

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on: leases that ended, waiting jobs past their expiry."""
        ...

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        ...

    def sweep(self, limit: int) -> int:
        """Send the messages about jobs that are owed or lost, where the store sends messages; give the number of jobs
        that were seen to.
        """
        ...

    def purge(self, limit: int) -> Purged:
        """Remove finished jobs whose time is over, with their keys, attempts, steps and signals; and pages whose time
        is over. No more than `limit` of each.
        """
        ...

    def grant(self, tenant: str, amount: int, id: str) -> Account | None:  # noqa: A002 - the record's own word
        """Add credits to a tenant's account, which the first grant opens; a grant of the same id counts once.

        A negative amount takes back; nothing changes, and nothing is given, if the account does not hold as many to
        spare.
        """
        ...

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's account, if there is one."""
        ...

    def accounts(self) -> list[Account]:
        """List all accounts, by tenant."""
        ...

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        ...

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules, by name."""
        ...

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule if it still is at the version `seen` (or, if None, is not there yet); it is stored as one
        version later (or as version 1).
        """
        ...

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule; false if there is none."""
        ...

    def pages(self, book: str, after: str | None = None, limit: int = 100, newest: bool = False) -> list[Page]:  # noqa: FBT001, FBT002
        """List the pages of a book by name, from behind one name on; `newest` lists them from the last one back."""
        ...

    def page(self, book: str, name: str) -> Page | None:
        """Read one page."""
        ...

    def write_page(self, page: Page, seen: int | None) -> bool:
        """Write a page if it still is at the version `seen` (or, if None, is not there yet, or expired); it is stored
        as one version later (or as version 1).
        """
        ...

    def remove_page(self, book: str, name: str) -> bool:
        """Forget a page; false if there is none."""
        ...

    def events(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position, in order; an event that is seen later always has a later position."""
        ...

    def sinks(self) -> dict[str, int]:
        """Give the position up to which each sink has had the events."""
        ...

    def reach(self, sink: str, position: int) -> None:
        """Record that a sink has had all events up to a position; a sink never goes back."""
        ...

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        ...

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had (all, if there is no sink); give their number."""
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

    def standing(self, queue: str) -> Standing:
        """Say what is in use of the limits of a queue, or of those of all queues (`*`)."""
        ...

    def overflow(self, limit: int) -> list[Excess]:
        """List due jobs beyond full limits at which jobs do not just wait, and running ones that they replace, by id
        (see `domain.excess`).
        """
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
        ones left out, and those that wait for others to end. What comes due later may still find a gate closed.
        """
        ...

    def due_since(self) -> dict[str, Micros]:
        """Give, for each queue with due jobs, since when the one that has waited longest is; paused ones left out.

        A store without `exact_counts` looks at the first thousand or so; what lies behind them is younger.
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
