"""The SQLite store: every write in one `BEGIN IMMEDIATE` transaction on one writing connection, reads on another.

Claim, complete, checkpoint and heartbeat act on whole batches in single statements. Batches travel as JSON: one
statement and one row per batch, because each crossing gives up the interpreter lock and a busy handler thread may keep
it for milliseconds. How jobs are stored is in `insertion`, how moves are written in `settlement`, and what is kept
beside the jobs in `books`.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from holdfast.domain.errors import BadInput, KeyConflict, StoreError
from holdfast.domain.excess import Excess
from holdfast.domain.gates import Standing
from holdfast.domain.job import (
    Account,
    AttemptRecord,
    CreditEntry,
    JobRecord,
    SignalRecord,
    State,
    StepRecord,
)
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Move
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
    ScheduleRecord,
    WorkerRecord,
)
from holdfast.port.transaction import Transaction
from holdfast.stores.sqlite import adoption, books, guests, insertion, inspect, purging, rows, tally
from holdfast.stores.sqlite import connection as files
from holdfast.stores.sqlite.beats import extend
from holdfast.stores.sqlite.bell import Bell
from holdfast.stores.sqlite.claiming import claim
from holdfast.stores.sqlite.file import OpenFile
from holdfast.stores.sqlite.pages import list_pages, read_page, write_page
from holdfast.stores.sqlite.settlement import Settlement, are_checkpoints, checkpoint
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.storing import Storing, ruled
from holdfast.stores.sqlite.tally import Deltas
from holdfast.stores.sqlite.trips import Refused
from holdfast.stores.sqlite.turns import Turns

_MANY = 100
_LONG_LOG = 4_000
"""Pages of the log after which a busy worker carries them into the file: those that a claim and its completion both
change are carried once. Others keep to SQLite's 1,000: while a log still grows, a lone commit takes longer."""


class SqliteStore:
    """Jobs in one file."""

    capabilities = Capabilities(
        durable=True, shared=True, caller_transactions=True, backup=True, fair=True, limits=True
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.path = files.path_of(url)
        self._clock = clock or SystemClock()
        self.file = OpenFile(self.path)
        self._turns = Turns()
        self._bell = Bell(self.file.place)
        self.insert = Storing(self.file, self._turns, self._bell, self._clock).insert

    def now(self) -> Micros:
        """Give the machine's time, which every process on the file shares."""
        return self._clock.now()

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Store a group through the caller's own connection: it is there if and only if the caller commits."""
        with guests.welcome(connection, self.path) as db:
            deltas: Deltas = defaultdict(int)
            answer = insertion.store_group(db, group, self.now(), deltas)
            if isinstance(answer, Exception):
                raise answer
            tally.change(db, deltas)
            return answer

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`."""
        return self.insert_on(connection, group)

    def transaction(self) -> Transaction:
        """Refuse: one writer at a time cannot be kept waiting by a handler."""
        msg = "A SQLite file has no transactions for handlers; ctx.transaction() needs PostgreSQL."
        raise BadInput(msg)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first."""
        return self.exchange((), want)[1]

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds; the steps of a batch of pipelines by one statement, if all do."""
        if moves and are_checkpoints(moves):
            with suppress(apsw.ConstraintError):  # something is in the way, which takes a closer look
                self.file.at_once(*checkpoint(moves, self.now()), repeatable=True)
                return [Answer.OK] * len(moves)
        return self._exchange(moves, None)[0]

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim in one transaction: one wait for the disk."""
        try:
            return self._exchange(moves, want, joint=True)
        except Refused:
            return self._exchange(moves, want)

    def _exchange(
        self, moves: Sequence[Move], want: Claim | None, *, joint: bool = False
    ) -> tuple[list[Answer], list[JobRecord]]:
        with ruled(self.file, self._turns) as db:
            now, turns = self.now(), self._turns
            settlement = Settlement(db, now)
            if len(moves) > _MANY:
                db.wal_autocheckpoint(_LONG_LOG)
            answers = settlement.settle(moves, joint=joint) if moves else []
            if want is not None:
                told, ringing = claim(db, want, now, turns, settlement)
            else:
                told, ringing = "[]", turns.ended(db, settlement.ended()) if turns.refresh(db) else ()
                settlement.finish()
        if ringing is None or ringing or settlement.rung:
            self._bell.ring(None if ringing is None else {*settlement.rung, *ringing})
        return answers, [] if want is None else rows.claimed(told, want, now)

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        if not beats:
            return []
        with self.file.write() as db:
            return extend(db, beats, self.now(), lease)

    def abandon(self, owner: str) -> int:
        """End at once every lease of a dead owner."""
        with self.file.write() as db:
            db.execute(SQL["abandon"], (owner, self.now()))
            return int(db.changes())

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id."""
        with self.file.read() as db:
            return [rows.read(db, id_) for id_ in ids]

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        with self.file.read() as db:
            return inspect.find(db, query)

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002
        """List the ended attempts of a job."""
        with self.file.read() as db:
            return [AttemptRecord(*row) for row in db.execute(SQL["attempts"], (id,))]

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002
        """List the recorded steps of a job."""
        with self.file.read() as db:
            return [StepRecord(*row) for row in db.execute(SQL["steps"], (id,))]

    def parcels(self, ids: Sequence[str]) -> list[Parcel]:
        """Read jobs with their whole past."""
        with self.file.read() as db:
            return adoption.parcels(db, ids, self.now())

    def adopt(self, parcels: Sequence[Parcel]) -> list[Answer | KeyConflict]:
        """Store jobs from another store, all in one transaction."""
        deltas: Deltas = defaultdict(int)
        with self.file.write() as db:
            answers = [adoption.adopt(db, parcel, self.now(), deltas) for parcel in parcels]
            tally.change(db, deltas)
        return answers

    def counts(self) -> dict[tuple[str, State], int]:
        """Read the counters."""
        with self.file.read() as db:
            return {(queue, State(state)): jobs for queue, state, jobs in db.execute(SQL["counts"])}

    def signals(self, id: str) -> list[SignalRecord]:  # noqa: A002
        """List the signals a job was sent."""
        with self.file.read() as db:
            return [SignalRecord(*row) for row in db.execute(SQL["signals"], (id,))]

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        with self.file.read() as db:
            return frozenset(parent for (parent,) in db.execute(SQL["open_children"], (json.dumps(list(parents)),)))

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on."""
        now = self.now()
        with self.file.read() as db:
            late = [rows.record(row) for row in db.execute(SQL["expired_leases"], (now, limit))]
            return late + [rows.record(row) for row in db.execute(SQL["overdue"], (now, limit - len(late)))]

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        with self.file.read() as db:
            if not any(state == State.CREATED for _, state, _ in db.execute(SQL["counts"])):
                return []
            return [rows.record(row) for row in db.execute(SQL["unsubmitted"], (self.now() - older_than, limit))]

    def sweep(self, limit: int) -> int:
        """Give none: nothing is sent about jobs."""
        return min(limit, 0)

    def purge(self, limit: int) -> Purged:
        """Remove finished jobs and pages whose time is over; looking in vain costs a read only."""
        now = self.now()
        with self.file.read() as db:
            if not purging.due(db, now):
                return Purged(0, [])
        with self.file.write() as db:
            return purging.purge(db, now, limit)

    def grant(self, tenant: str, amount: int, id: str) -> Account | None:  # noqa: A002
        """Add credits to a tenant's account."""
        with self.file.write() as db:
            return books.grant(db, tenant, amount, id, self.now())

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's account."""
        with self.file.read() as db:
            return books.account(db, tenant)

    def accounts(self) -> list[Account]:
        """List all accounts."""
        with self.file.read() as db:
            return books.all_accounts(db)

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        with self.file.read() as db:
            return books.entries(db, tenant, limit)

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules."""
        with self.file.read() as db:
            return books.schedules(db)

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule that has not changed."""
        with self.file.write() as db:
            return books.save_schedule(db, schedule, seen)

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        return bool(self._execute("remove_schedule", name))

    def pages(self, book: str, after: str | None = None, limit: int = 100, newest: bool = False) -> list[Page]:  # noqa: FBT001, FBT002
        """List the pages of a book."""
        with self.file.read() as db:
            return list_pages(db, (book, after, limit), self.now(), newest=newest)

    def page(self, book: str, name: str) -> Page | None:
        """Read one page."""
        with self.file.read() as db:
            return read_page(db, book, name, self.now())

    def write_page(self, page: Page, seen: int | None) -> bool:
        """Write a page that has not changed."""
        self._turns.forget()
        with self.file.write() as db:
            return write_page(db, page, seen, self.now())

    def remove_page(self, book: str, name: str) -> bool:
        """Forget a page."""
        self._turns.forget()
        return bool(self._execute("remove_page", book, name, self.now()))

    def events(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position."""
        with self.file.read() as db:
            return books.events(db, after, limit)

    def sinks(self) -> dict[str, int]:
        """Give the position of each sink."""
        with self.file.read() as db:
            return dict(db.execute(SQL["sinks"]).fetchall())

    def reach(self, sink: str, position: int) -> None:
        """Record how far a sink is."""
        self._execute("reach", sink, position)

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        self._execute("remove_sink", name)

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had; looking in vain costs a read only."""
        with self.file.read() as db:
            if db.execute(SQL["told"]).get is None:
                return 0
        return self._execute("trim", limit)

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        self._execute("pause", queue)

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        self._execute("resume", queue)
        self._bell.ring({queue})

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        with self.file.read() as db:
            return frozenset(queue for (queue,) in db.execute(SQL["paused"]))

    def standing(self, queue: str) -> Standing:
        """Say what is in use of the limits of a queue."""
        with self.file.read() as db:
            return self._turns.standing(db, queue, self.now())

    def overflow(self, limit: int) -> list[Excess]:
        """List jobs beyond full limits; where there are none of that kind, this costs nothing."""
        rules = self._turns.glance(self.file)
        if rules is not None and not rules.sheds:
            return []
        with ruled(self.file, self._turns) as db:
            return self._turns.overflow(db, self.now(), limit)

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process."""
        self._execute("enlist", worker.id, json.dumps(worker), worker.expires_at)

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process, and those that are long gone."""
        self._execute("dismiss", worker_id, self.now())

    def workers(self) -> list[WorkerRecord]:
        """List the workers that are alive."""
        with self.file.read() as db:
            found = [WorkerRecord(*json.loads(record)) for (record,) in db.execute(SQL["workers"], (self.now(),))]
        return [w._replace(queues=w.queues and tuple(w.queues), kinds=tuple(w.kinds)) for w in found]

    def lead(self, role: str, owner: str, term: Micros) -> bool:
        """Take or keep a role for a term; asking in vain costs a read only."""
        now = self.now()
        with self.file.read() as db:
            row = db.execute(SQL["leader"], (role,)).fetchone()
        if row is not None and row[0] != owner and row[1] > now:
            return False
        with self.file.write() as db:
            db.execute(SQL["lead"], (role, owner, now, term))
            return bool(db.changes())

    def next_due(self, queues: Sequence[str] | None) -> Micros | None:
        """Give the instant when a job can next be claimed."""
        now = self.now()
        with self.file.read() as db:
            paused = self._turns.known(db)
            names = [queue for (queue,) in db.execute(SQL["waiting_queues"]) if queues is None or queue in queues]
            plain = [] if paused is None else [queue for queue in names if self._turns.plain([queue])]
            due = [db.execute(SQL["next_due"], (queue, now)).get for queue in plain if queue not in (paused or ())]
        if len(plain) < len(names):
            with ruled(self.file, self._turns) as db:
                held = {*self._turns.look(db), *plain}
                due += [self._turns.next_at(db, queue, now) for queue in names if queue not in held]
        return min((max(now, at) for at in due if at is not None), default=None)

    def due_since(self) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due."""
        now = self.now()
        with self.file.read() as db:
            if (paused := self._turns.known(db)) is not None:
                return self._turns.all_since(db, paused, now)
        with ruled(self.file, self._turns) as db:
            return self._turns.all_since(db, self._turns.look(db, claims=False), now)

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until rung, or until the timeout."""
        return self._bell.wait(queues, timeout)

    def wake(self) -> None:
        """Make every `wait` of this store object return now."""
        self._bell.ring_own()

    def check(self) -> Iterator[Finding]:
        """Verify the file's integrity, the counters and the keys."""
        with self.file.read() as db:
            findings = inspect.check(db)
        yield from findings

    def backup(self, path: str) -> None:
        """Copy a consistent snapshot to a new file while work goes on."""
        if os.path.lexists(path):
            msg = f"{path} is there already; a backup is written to a new file only."
            raise StoreError(msg)
        files.create(Path(path))
        try:
            with self.file.read(), files.sentences(Path(path)):
                files.copy(self.file.reader, Path(path))
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Close both connections and stop listening."""
        self._bell.close()
        self.file.close()

    def _execute(self, name: str, *parameters: Any) -> int:
        """Execute one statement; give the number of rows it changed."""
        with self.file.write() as db:
            db.execute(SQL[name], parameters)
            return db.changes()
