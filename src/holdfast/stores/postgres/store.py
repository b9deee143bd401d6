"""The PostgreSQL store: batches travel as arrays, one round trip each, and every decision is the lifecycle's.

Where jobs lie is told in `migrations/0001_jobs.sql`; claim, complete and heartbeat are folded into single statements,
every other move is read, decided and written under its guard (`settlement`).
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

from holdfast.domain import codec
from holdfast.domain.errors import KeyConflict, StoreError
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
from holdfast.domain.limits import ALL
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Move, Verb, refusal
from holdfast.port.clock import Clock
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
from holdfast.stores.postgres import address, adoption, books, guests, insertion, inspect, rows, schema, sql
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.claiming import Claims
from holdfast.stores.postgres.marks import START
from holdfast.stores.postgres.pages import list_pages, read_page, remove_page, write_page
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.reckoning import Reckoning
from holdfast.stores.postgres.settlement import Settlement, completable
from holdfast.stores.postgres.storing import Storing
from holdfast.stores.postgres.transaction import HandlerTransaction
from holdfast.stores.postgres.turns import Outlook, Turns

_MAKES_CLAIMABLE = frozenset({Verb.REDRIVE, Verb.RELEASE, Verb.SUBMIT, Verb.REAP, Verb.SIGNAL, Verb.ARRIVE})
"""After these, somebody who waits may have something to do."""
_RENEWED = 0.6
"""Seconds after which whoever looks on behalf of all reads the rules again."""
_LATEST: Micros = 10 * SECOND
"""So long after a lease has ended it may still come into sight: what set it was being committed."""
_WHOLE = 20
"""Of so many looks for ended leases, one looks at all."""


class PostgresStore:
    """Jobs in one schema of a database."""

    capabilities = Capabilities(
        durable=True,
        shared=True,
        caller_transactions=True,
        handler_transactions=True,
        concurrent=True,
        calls=True,
        fair=True,
        limits=True,
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.address = address.parse(url)
        self._clock = clock
        self.pool = Pool(self.address)
        self._schema = self.address.schema
        self._reckoning = Reckoning()
        self._turns = Turns(self.pool, lambda: self._given)
        self._reaped: Micros = START.at
        """No lease ended before this, as far as was seen; forgotten at times, because a clock may be set back."""
        self._reapings = 0
        schema.ready(self.pool)
        self._bell = Bell(self.pool, self._schema, self._callable, lambda: self._claims.busy, lambda: self._claims.full)
        self._claims = Claims(self.pool, self._turns, lambda: self._given, self._bell.nearest)
        self._storing = Storing(self.pool, self._turns, self._bell, lambda: self._given)

    def now(self) -> Micros:
        """Give the server's time, reckoned from this machine's clock between two looks at it."""
        if self._clock is not None:
            return self._clock.now()
        reckoned = self._reckoning.now()
        return self._told_time("now", {}) if reckoned is None else reckoned

    def _told_time(self, name: str, parameters: dict[str, Any], *, writes: bool = False) -> Micros:
        """Run a statement that tells the time."""
        began = time.monotonic()
        ((there,),) = self._all(name, parameters, writes=writes)
        return self._reckoning.asked(began, there)

    @property
    def _given(self) -> Micros | None:
        """The time to pass to statements: none, so that they take the server's; a test's clock otherwise."""
        return None if self._clock is None else self._clock.now()

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all; all in one transaction, if nothing stands in the way of any."""
        return self._storing.insert(groups)

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Store a group through the caller's own connection: it is there if and only if the caller commits."""
        return guests.insert(connection, insertion.insertion(group, self._given), self._sql)

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`, for connections that are awaited."""
        return await guests.ainsert(connection, insertion.insertion(group, self._given), self._sql)

    def transaction(self) -> HandlerTransaction:
        """Give a handler a transaction that its job's completion becomes part of."""
        return HandlerTransaction(self.pool, lambda: self._given)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first."""
        _, claimed = self._claims.trip((), want)
        return self._heard(claimed)

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        answers = self.pool.run(lambda db: Settlement(db, self._schema, self._given).settle(moves)) if moves else []
        self._ring(moves)
        return answers

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim; a batch of completions and a claim make one trip and one transaction."""
        if not moves:
            return [], self.claim(want)
        completes = completable(moves) if len({move.id for move in moves}) == len(moves) else []
        if len(completes) < len(moves):
            at_once = {move.id for move in completes}
            early = iter(self.commit([move for move in moves if move.id not in at_once]))
            answers = [Answer.OK if move.id in at_once else next(early) for move in moves]
        else:
            answers = [Answer.OK] * len(moves)
        done, claimed = self._claims.trip(completes, want)
        self._heard(claimed)
        if len(done) < len(completes):
            rest = {move.id: move for move in completes if move.id not in done}
            late = dict(zip(rest, self.commit(list(rest.values())), strict=True))
            answers = [late.get(move.id, answer) for move, answer in zip(moves, answers, strict=True)]
        if self._turns.known.rules:
            self._bell.ring(set(self._turns.ended({move.queue for move in completes})))
        return answers, claimed

    def _heard(self, claimed: list[JobRecord]) -> list[JobRecord]:
        """Learn the time from what was claimed."""
        if claimed:
            self._reckoning.heard(claimed[0].updated_at)
        return claimed

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        if not beats:
            return []
        parameters = rows.beaten(beats, lease, self._given)
        text = self._sql("heartbeat", "progress" if "progress" in parameters else "")
        held = dict(self.pool.run(lambda db: db.execute(text, parameters).fetchall(), apart=True))
        lost = [beat.id for beat in beats if beat.id not in held]
        states = {job.id: job.state for job in self.read(lost) if job is not None} if lost else {}
        return [
            refusal(states.get(beat.id))
            if beat.id not in held
            else (Answer.CANCEL_REQUESTED if held[beat.id] else Answer.OK)
            for beat in beats
        ]

    def abandon(self, owner: str) -> int:
        """End at once every lease of a dead owner."""
        parameters = {"now": self._given, "owner": owner}
        self._reaped = START.at
        return self.pool.run(lambda db: db.execute(self._sql("abandon"), parameters).rowcount)

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id."""
        found = {record.id: record for record in map(rows.record, self._all("read", {"ids": list(ids)}))}
        return [found.get(id_) for id_ in ids]

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        return self.pool.run(lambda db: inspect.find(db, self._schema, query), writes=False)

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002
        """List the ended attempts of a job."""
        return [AttemptRecord(*row) for row in self._all("attempts", {"id": id})]

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002
        """List the recorded steps of a job."""
        return [StepRecord(*row) for row in self._all("steps", {"id": id})]

    def signals(self, id: str) -> list[SignalRecord]:  # noqa: A002
        """List the signals a job was sent."""
        return [SignalRecord(*row) for row in self._all("signals", {"id": id})]

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        return frozenset(id_ for (id_,) in self._all("open_children", {"ids": list(parents)}))

    def parcels(self, ids: Sequence[str]) -> list[Parcel]:
        """Read jobs with their whole past."""
        return self.pool.run(lambda db: adoption.parcels(db, self._schema, ids, self._given), writes=False)

    def adopt(self, parcels: Sequence[Parcel]) -> list[Answer | KeyConflict]:
        """Store jobs from another store."""
        return self.pool.run(lambda db: adoption.adopt(db, self._schema, parcels, self._given))

    def counts(self) -> dict[tuple[str, State], int]:
        """Add up the counters."""
        return {(queue, State(state)): jobs for queue, state, jobs in self._all("counts", {})}

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on."""
        now, given = self.now(), self._given
        self._reapings += 1
        if self._reapings % _WHOLE == 0:
            self._reaped = START.at

        def work(db: Connection) -> tuple[list[Any], list[Any]]:
            with db.pipeline():
                late = db.execute(self._sql("expired_leases"), {"now": given, "mark": self._reaped, "limit": limit})
                overdue = db.execute(self._sql("overdue"), {"now": given, "limit": limit})
            return late.fetchall(), overdue.fetchall()

        late, overdue = self.pool.run(work, writes=False)
        if not late:
            self._reaped = max(self._reaped, now - _LATEST)
        return [rows.record(row) for row in (*late, *overdue)][:limit]

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        found = self._all("unsubmitted", {"now": self._given, "older_than": older_than, "limit": limit})
        return [rows.record(row) for row in found]

    def sweep(self, limit: int) -> int:
        """Give none: nothing is sent about jobs."""
        return min(limit, 0)

    def purge(self, limit: int) -> Purged:
        """Remove finished jobs and pages whose time is over; and fold the counters, which is as often wanted."""

        def work(db: Connection) -> Any:
            with db.pipeline():
                gone = db.execute(self._sql("purge"), {"now": self._given, "limit": limit, "artifact": codec.ARTIFACT})
                db.execute(self._sql("fold"))
                self._turns.drain(db)
            return gone.fetchone()

        return Purged(*self.pool.run(work))

    def grant(self, tenant: str, amount: int, id: str) -> Account | None:  # noqa: A002
        """Add credits to a tenant's account."""
        return self.pool.run(lambda db: books.grant(db, self._schema, (tenant, amount, id), self._given))

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's account."""
        return self.pool.run(lambda db: books.account(db, self._schema, tenant), writes=False)

    def accounts(self) -> list[Account]:
        """List all accounts."""
        return self.pool.run(lambda db: books.accounts(db, self._schema), writes=False)

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        return self.pool.run(lambda db: books.entries(db, self._schema, tenant, limit), writes=False)

    def schedules(self) -> list[ScheduleRecord]:
        """List the stored schedules."""
        return self.pool.run(lambda db: books.schedules(db, self._schema), writes=False)

    def save_schedule(self, schedule: ScheduleRecord, seen: int | None) -> bool:
        """Write a schedule that has not changed."""
        return self.pool.run(lambda db: books.save_schedule(db, self._schema, schedule, seen))

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule."""
        return self.pool.run(lambda db: books.remove_schedule(db, self._schema, name))

    def pages(self, book: str, after: str | None = None, limit: int = 100, newest: bool = False) -> list[Page]:  # noqa: FBT001, FBT002
        """List the pages of a book."""
        asked = (book, after, limit)
        return self.pool.run(lambda db: list_pages(db, self._schema, asked, self._given, newest=newest), writes=False)

    def page(self, book: str, name: str) -> Page | None:
        """Read one page."""
        return self.pool.run(lambda db: read_page(db, self._schema, book, name, self._given), writes=False)

    def write_page(self, page: Page, seen: int | None) -> bool:
        """Write a page that has not changed."""
        written = self.pool.run(lambda db: write_page(db, self._schema, page, seen, self._given))
        self._turns.forget()
        return written

    def remove_page(self, book: str, name: str) -> bool:
        """Forget a page."""
        removed = self.pool.run(lambda db: remove_page(db, self._schema, book, name, self._given))
        self._turns.forget()
        return removed

    def events(self, after: int, limit: int) -> list[EventRecord]:
        """List events from behind a position."""
        return self.pool.run(lambda db: books.events(db, self._schema, after, limit))

    def sinks(self) -> dict[str, int]:
        """Give the position of each sink."""
        return dict(self._all("sinks", {}))

    def reach(self, sink: str, position: int) -> None:
        """Record how far a sink is."""
        self._do("reach", {"name": sink, "position": position})

    def remove_sink(self, name: str) -> None:
        """Forget a sink."""
        self._do("remove_sink", {"name": name})

    def trim(self, limit: int) -> int:
        """Remove events that every sink has had."""
        return self.pool.run(lambda db: books.trim(db, self._schema, limit))

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        self._do("pause", {"queue": queue})

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        self._do("resume", {"queue": queue})
        self._turns.stirred([queue])
        self._bell.ring({queue})

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        return frozenset(queue for (queue,) in self._all("paused", {}))

    def standing(self, queue: str) -> Standing:
        """Say what is in use of the limits of a queue."""
        return self.pool.run(lambda db: self._turns.standing(db, queue), writes=False)

    def overflow(self, limit: int) -> list[Excess]:
        """List jobs beyond full limits."""
        sheds = self._turns.learn().rules.sheds
        return self.pool.run(lambda db: self._turns.overflow(db, limit)) if sheds else []

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process, which hears the time by that and need not ask for it."""
        values = {"id": worker.id, "record": json.dumps(worker), "expires_at": worker.expires_at}
        self._told_time("enlist", values, writes=True)

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process, and those that are long gone."""
        self._do("dismiss", {"id": worker_id, "now": self._given})

    def workers(self) -> list[WorkerRecord]:
        """List the workers that are alive."""
        found = [WorkerRecord(*json.loads(record)) for (record,) in self._all("workers", {"now": self._given})]
        return [w._replace(queues=w.queues and tuple(w.queues), kinds=tuple(w.kinds)) for w in found]

    def lead(self, role: str, owner: str, term: Micros) -> bool:
        """Take or keep a role for a term; who was refused does not ask again before the term can be over."""
        if self._clock is None and self._bell.knows_leader(role):
            return False
        parameters = {"name": role, "owner": owner, "now": self._given, "term": term}
        ((leads, crowd),) = self._all("lead", parameters, writes=True)
        if self._clock is None:
            self._bell.told_leader(role, leads=leads, term=term / 1_000_000, crowd=crowd)
        return bool(leads)

    def next_due(self, queues: Sequence[str] | None) -> Micros | None:
        """Give the instant when a job can next be claimed; what is due is so by the time as we reckon it."""
        outlook = self._outlook(queues)
        return self.now() if outlook.found else outlook.later

    def _outlook(self, queues: Sequence[str] | None) -> Outlook:
        if self._turns.learn():
            return self.pool.run(lambda db: self._turns.outlook(db, queues))
        text, names = self._sql("outlook", "all_lanes" if queues is None else "named_lanes"), list(queues or ())
        values = {"now": self._given, "limit": 1, "full": [], "queues": names, "most": [1] * len(names)}
        ((now, found, later),) = self.pool.run(lambda db: db.execute(text, values).fetchall(), writes=False)
        return Outlook(now, found or [], later)

    def due_since(self) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due."""
        self._turns.learn()
        return self.pool.run(self._turns.due_since, writes=False)

    def _callable(self) -> tuple[list[str], float | None]:
        """Name the queues that have a job to be claimed, and tell in how many seconds the next one comes due.

        The rules are read again before they are stale, so that no claim of a waiting job has to wait for that.
        """
        self._turns.learn(_RENEWED)
        now, found, later = self._outlook(None)
        return found, None if later is None else (later - now) / SECOND

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until called, or until the timeout."""
        if called := self._bell.wait(queues, timeout):
            self._turns.stirred()
        return called

    def wake(self) -> None:
        """Make every `wait` of this store object return now."""
        self._bell.ring_own()

    def check(self) -> Iterator[Finding]:
        """Verify the counters, the keys, and that every job stands in one place."""
        yield from self.pool.run(lambda db: inspect.check(db, self._schema), writes=False, snapshot=True)

    def backup(self, path: str) -> None:
        """Refuse: PostgreSQL has better means."""
        msg = f"A PostgreSQL store is backed up with pg_dump or a base backup, not to {path}."
        raise StoreError(msg)

    def close(self) -> None:
        """Close every connection and stop listening."""
        self._bell.close()
        self.pool.close()

    def _ring(self, moves: Sequence[Move]) -> None:
        queues = {move.queue for move in moves if move.verb in _MAKES_CLAIMABLE or move.ending is not None}
        queues |= {new.queue for move in moves for _, new in move.children}
        freed = self._turns.ended({move.queue for move in moves if move.state is not State.RUNNING})
        self._bell.ring(freed if ALL in freed else queues.union(freed))

    def _sql(self, name: str, part: str = "") -> LiteralString:
        return sql.statement(self._schema, name, part)

    def _all(self, name: str, parameters: dict[str, Any], *, writes: bool = False) -> list[Any]:
        return self.pool.run(lambda db: db.execute(self._sql(name), parameters).fetchall(), writes=writes)

    def _do(self, name: str, parameters: dict[str, Any]) -> None:
        self.pool.run(lambda db: db.execute(self._sql(name), parameters))
