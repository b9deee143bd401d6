"""The DynamoDB store: a table that other programs can read, as the scheduled queue or (`calling`) as the contract.

Every change reads consistently, is decided by the lifecycle, and is written under the condition that the record still
is what was read; every write carries a token, so that one whose reply was lost is recognised. Items are in `items`,
calls in `wire`, how jobs enter, change and leave in `insertion`, `settlement` and `removal`, where they lie in
`scheduled` and `contract`.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from holdfast.domain import lifecycle
from holdfast.domain.errors import BadInput, CommitUnknown, KeyConflict, StoreError, StoreUnavailable
from holdfast.domain.excess import Excess
from holdfast.domain.gates import Standing
from holdfast.domain.job import (
    TERMINAL,
    Account,
    AttemptRecord,
    CreditEntry,
    JobRecord,
    SignalRecord,
    State,
    StepRecord,
)
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Held, Move
from holdfast.port.clock import Clock, SystemClock
from holdfast.port.parcel import Parcel
from holdfast.port.store import (
    Beat,
    Capabilities,
    Claim,
    EventRecord,
    Finding,
    Inserted,
    InsertGroup,
    Page,
    Purged,
    Query,
    Refusal,
    ScheduleRecord,
    WorkerRecord,
)
from holdfast.port.transaction import Transaction
from holdfast.stores.dynamodb import address as addresses
from holdfast.stores.dynamodb import past, table
from holdfast.stores.dynamodb.accounts import Accounts
from holdfast.stores.dynamodb.adoption import Adoption
from holdfast.stores.dynamodb.bell import bell_of
from holdfast.stores.dynamodb.bundles import Bundles
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.crew import Crew
from holdfast.stores.dynamodb.ends import Ends
from holdfast.stores.dynamodb.insertion import Insertion
from holdfast.stores.dynamodb.layout import Layout
from holdfast.stores.dynamodb.looking import Looking
from holdfast.stores.dynamodb.lookout import Lookout
from holdfast.stores.dynamodb.outbox import Outbox
from holdfast.stores.dynamodb.pages import Pages
from holdfast.stores.dynamodb.records import Records
from holdfast.stores.dynamodb.removal import Removal
from holdfast.stores.dynamodb.scheduled import Scheduled
from holdfast.stores.dynamodb.settlement import Settlement
from holdfast.stores.dynamodb.tally import tally_of
from holdfast.stores.dynamodb.wire import Wire


class DynamoStore:
    """Jobs in one table."""

    capabilities = Capabilities(
        durable=True, shared=True, strict_order=False, exact_counts=False, concurrent=True, calls=True, joins=True
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.address = addresses.parse(url)
        self._clock = clock or SystemClock()
        self._bell = bell_of(self.address.endpoint, self.address.table)
        self._lookout = Lookout(SystemClock(), self.address.poll)
        self._closed = False
        self._ready = False
        self._lock = threading.Lock()
        self._wire = Wire(self.address)
        self._records = Records(self._wire, self._layout())
        self._bundles = Bundles(self._wire)
        self._ledger = Accounts(self._wire)
        self._insertion = Insertion(self._wire, self._records, self._ledger, self._bundles, self._clock.now)
        self._ends = Ends(self._wire, self._records.layout)
        self._settlement = Settlement(self._wire, self._records, self._ledger, self._insertion, self._ends)
        self._adoption = Adoption(self._wire, self._records, self._ledger)
        self._looking = Looking(self._wire, self._records)
        self._outbox = Outbox(self._wire)
        self._crew = Crew(self._wire)
        self._tally = tally_of(self.address.endpoint, self.address.table, self._crew.count)
        weakref.finalize(self, self._tally.flush)
        self._pages = Pages(self._wire)

    def _layout(self) -> Layout:
        return Scheduled(self.address.shards)

    def now(self) -> Micros:
        """Give the machine's time; clocks of workers may differ by the skew that the URL states."""
        return self._clock.now()

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all."""
        self._open()
        with self._counted() as changes:
            return self._insertion.store(groups, self.now(), changes)

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Refuse: DynamoDB has no transactions that stay open."""
        msg = f"DynamoDB cannot store {len(group)} job(s) through a {type(connection).__name__}."
        raise StoreError(msg)

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`."""
        return self.insert_on(connection, group)

    def transaction(self) -> Transaction:
        """Refuse: DynamoDB has no transactions that stay open."""
        msg = "DynamoDB has no transactions for handlers; ctx.transaction() needs PostgreSQL."
        raise BadInput(msg)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, the best of a look first."""
        self._open()
        if want.limit <= 0:
            return []
        with self._counted(wake=False) as changes:
            return self._looking.claim(want, self._crew.paused(), self.now(), changes)

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        self._open()
        with self._counted() as changes:
            return self._settlement.commit(moves, self.now(), changes)

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim."""
        return self._both(moves, partial(self.commit, moves), partial(self.claim, want))

    def _both(
        self, moves: Sequence[Move], commit: Callable[[], list[Answer]], claim: Callable[[], list[JobRecord]]
    ) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and then claim; beside each other, if it makes no difference. If the commit fails, nobody learns what
        was claimed, so others may have it.
        """
        if not moves or not all(map(_leads_to_no_claim, moves)):
            return commit(), claim()
        claiming = self._wire.aside(claim)
        try:
            answers = commit()
        except Exception:
            with suppress(StoreError):
                self.commit([lifecycle.release(job) for job in claiming.result()])
            raise
        return answers, claiming.result()

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        self._open()
        return self._settlement.heartbeat(beats, lease, self.now())

    def abandon(self, owner: str) -> int:
        """End at once every lease of a dead owner."""
        self._open()
        now = self.now()
        return sum(self._settlement.end_lease(job.id, owner, now) for job in self._looking.held_by(owner))

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id. Whoever asks for one that is there and not understood is told so."""
        self._open()
        found = self._records.fetch(ids) if ids else {}
        if not found and len(ids) == 1 and (strange := self._records.strange(ids[0])) is not None:
            raise StoreError(strange)
        return [found.get(id_) for id_ in ids]

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        self._open()
        return self._looking.find(query)

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002
        """List the ended attempts of a job."""
        self._open()
        return past.attempts(self._wire, id)

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002
        """List the recorded steps of a job."""
        self._open()
        return past.steps(self._wire, id, self._records.item(id))

    def signals(self, id: str) -> list[SignalRecord]:  # noqa: A002
        """List the signals a job was sent."""
        self._open()
        return past.signals(self._wire, id)

    def parcels(self, ids: Sequence[str]) -> list[Parcel]:
        """Read jobs with their whole past."""
        self._open()
        return self._adoption.parcels(ids, self.now())

    def adopt(self, parcels: Sequence[Parcel]) -> list[Answer | KeyConflict]:
        """Store jobs from another store, one by one."""
        self._open()
        with self._counted() as changes:
            return [self._adoption.adopt(parcel, self.now(), changes) for parcel in parcels]

    def counts(self) -> dict[tuple[str, State], int]:
        """Give the numbers of jobs by (queue, state), as they were counted."""
        self._open()
        self._tally.flush()
        return self._crew.counts()

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        self._open()
        return self._looking.open_children(parents)

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on."""
        self._open()
        return self._looking.expired(limit, self.now())

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this; bring in bundles that were left."""
        self._open()
        now = self.now()
        self._bundles.sweep(now)
        return self._looking.unsubmitted(now - older_than, limit)

    def sweep(self, limit: int) -> int:
        """Give none: nothing is sent about jobs."""
        self._open()
        return min(limit, 0)

    def purge(self, limit: int) -> Purged:
        """Remove finished jobs and pages whose time is over."""
        self._open()
        now = self.now()
        with self._counted() as changes:
            notes, over = self._ends.due(limit, now)
            over += self._looking.purgeable(limit - len(over), now) if len(over) < limit else []
            purged = Removal(self._wire, self._records).purge(over, changes)
            self._ends.settle(notes, {job.id for job, _ in changes.all if job is not None}, now)
        return purged._replace(pages=self._pages.purge(limit, self.now()))

    def grant(self, tenant: str, amount: int, id: str) -> Account | None:  # noqa: A002
        """Add credits to a tenant's account."""
        self._open()
        return self._ledger.grant(tenant, amount, id, self.now())

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's account."""
        self._open()
        return self._ledger.read([tenant]).get(tenant)

    def accounts(self) -> list[Account]:
        """List all accounts."""
        self._open()
        return self._ledger.all()

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        self._open()
        return self._ledger.entries(tenant, limit)

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules."""
        self._open()
        return self._crew.schedules()

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule that has not changed."""
        self._open()
        return self._crew.save_schedule(schedule, seen)

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        self._open()
        return self._crew.remove_schedule(name)

    def pages(self, book: str, after: str | None = None, limit: int = 100, newest: bool = False) -> list[Page]:  # noqa: FBT001, FBT002
        """List the pages of a book."""
        self._open()
        return self._pages.list(book, after, limit, self.now(), newest=newest)

    def page(self, book: str, name: str) -> Page | None:
        """Read one page."""
        self._open()
        return self._pages.read(book, name, self.now())

    def write_page(self, page: Page, seen: int | None) -> bool:
        """Write a page that has not changed."""
        self._open()
        return self._pages.write(page, seen, self.now())

    def remove_page(self, book: str, name: str) -> bool:
        """Forget a page."""
        self._open()
        return self._pages.remove(book, name, self.now())

    def events(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position."""
        self._open()
        return self._outbox.list(after, limit)

    def sinks(self) -> dict[str, int]:
        """Give the position of each sink."""
        self._open()
        return self._outbox.sinks()

    def reach(self, sink: str, position: int) -> None:
        """Record how far a sink is."""
        self._open()
        self._outbox.reach(sink, position)

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        self._open()
        self._outbox.remove_sink(name)

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had."""
        self._open()
        return self._outbox.trim(limit)

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        self._open()
        self._crew.pause(queue)

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        self._open()
        self._crew.resume(queue)
        self._bell.ring()

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        self._open()
        return self._crew.paused()

    def standing(self, queue: str) -> Standing:
        """Nothing is limited here."""
        return Standing({}, {})

    def overflow(self, limit: int) -> list[Excess]:
        """Nothing is limited here."""
        return []

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process."""
        self._open()
        self._crew.enlist(worker)

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process."""
        self._open()
        self._crew.dismiss(worker_id)

    def workers(self) -> list[WorkerRecord]:
        """List the workers that are alive."""
        self._open()
        return self._crew.workers(self.now())

    def lead(self, role: str, owner: str, term: Micros) -> bool:
        """Take or keep a role for a term."""
        self._open()
        now = self.now()
        return self._crew.lead(role, owner, now + term, now)

    def next_due(self, queues: Sequence[str] | None) -> Micros | None:
        """Give the instant when a job can next be claimed."""
        self._open()
        return self._looking.next_due(queues, self._crew.paused(), self.now())

    def due_since(self) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due."""
        self._open()
        return self._looking.due_since(self._crew.paused(), self.now())

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until this process changed something, or a look every so often shows that a job is due."""
        self._open()
        seen, end = self._bell.times, time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            if self._bell.heard(seen, min(left, self._lookout.left), lambda: self._closed):
                self._lookout.stir()
                return True
            if not self._lookout.left and self._sees(queues):
                self._lookout.stir()
                return True
        return False

    def _sees(self, queues: Sequence[str] | None) -> bool:
        """Look whether a job is due."""
        due, now = self.next_due(queues), self.now()
        self._lookout.looked(None if due is None else max(due - now, 0))
        return due is not None and due <= now

    def wake(self) -> None:
        """Make every `wait` return now."""
        self._bell.ring()

    def check(self) -> Iterator[Finding]:
        """Look for pointers and keys that lead nowhere, and for items that are not ours; count all jobs anew."""
        self._open()
        self._tally.flush()
        return Removal(self._wire, self._records).check(self._crew)

    def backup(self, path: str) -> None:
        """Refuse: DynamoDB makes its own backups."""
        msg = f"A DynamoDB table cannot be copied to {path}; use its own backups (point-in-time recovery) instead."
        raise StoreError(msg)

    def close(self) -> None:
        """Let go of the threads; waiters leave."""
        self._closed = True
        self._tally.flush()
        self._wire.close()
        self._bell.ring()

    def _open(self) -> None:
        """See that the store is open, and at the first call that its table is there."""
        if self._closed:
            msg = "The store is closed."
            raise StoreUnavailable(msg)
        if not self._ready:
            with self._lock:
                if not self._ready:
                    self._prepare()
                    self._ready = True

    def _prepare(self) -> None:
        table.prepare(self._wire, table.SCHEDULED)

    @contextmanager
    def _counted(self, *, wake: bool = True, tell: Callable[[Changes], object] | None = None) -> Iterator[Changes]:
        """Count what changes in a block, and wake whoever waits; a block that fails halfway says so. `tell` takes the
        place of `_tell`.
        """
        changes = Changes()
        try:
            yield changes
        except StoreUnavailable as error:
            if not changes.all:
                raise
            msg = f"{str(error).removesuffix('.')}; a part of what was asked is written, and it is safe to ask again."
            raise CommitUnknown(msg) from error
        finally:
            if changes.all:
                self._tally.add(changes.counts())
                (tell or self._tell)(changes)
                if wake:
                    self._bell.ring()

    def _tell(self, changes: Changes) -> None:
        """Do what follows from changes: nothing, here."""


def _leads_to_no_claim(move: Move) -> bool:
    """Tell whether there is no job that can be claimed after a move, and not before it: what its job's holder ends, or
    puts off, nobody could claim before, nor can anybody after it.
    """
    over = move.state in TERMINAL or (move.delay or 0) > 0
    return over and isinstance(move.guard, Held) and not move.children
