"""The PostgreSQL store: batches travel as arrays, one round trip each, and every decision is the lifecycle's.

Where jobs lie is told in `migrations/0001_jobs.sql`; claim, complete and heartbeat are folded into single statements,
every other move is read, decided and written under its guard (`settlement`).
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, LiteralString

from psycopg import errors

from holdfast.domain import lifecycle
from holdfast.domain.errors import KeyConflict, StoreError
from holdfast.domain.job import AttemptRecord, JobRecord, NewJob, State, StepRecord
from holdfast.domain.lifecycle import Answer, Move, Verb
from holdfast.domain.moments import MINUTE, Micros
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Capabilities, Claim, Finding, Inserted, InsertGroup, Query, WorkerRecord
from holdfast.stores.postgres import address, guests, insertion, inspect, rows, schema, sql
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.marks import START, Lane, Mark, Marks
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.settlement import Settlement, apart, completable, completion
from holdfast.stores.postgres.transaction import HandlerTransaction
from holdfast.stores.postgres.trouble import BAD_ROW

_MAKES_CLAIMABLE = frozenset({Verb.REDRIVE, Verb.RELEASE, Verb.SUBMIT, Verb.REAP})
"""After these, somebody who waits may have something to do."""
_FRESH = 60.0
"""Seconds for which the server's clock is reckoned from this machine's, before it is read again."""


_WHOLE = 60
"""Of so many looks for ended leases, one looks at all."""


class PostgresStore:
    """Jobs in one schema of a database."""

    capabilities = Capabilities(
        durable=True, shared=True, caller_transactions=True, handler_transactions=True, concurrent=True, calls=True
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.address = address.parse(url)
        self._clock = clock
        self.pool = Pool(self.address)
        self._schema = self.address.schema
        self._offset: tuple[float, Micros] | None = None
        self._marks = Marks()
        self._unanswered: set[str] = set()
        """Lease ids of claims of which it is not known what they took."""
        self._reaped: Micros = START.at
        """No lease ended before this, as far as was seen; forgotten at times, because a clock may be set back."""
        self._reapings = 0
        schema.ready(self.pool)
        self._bell = Bell(self.pool, self._schema, self._callable)

    def now(self) -> Micros:
        """Give the server's time, reckoned from this machine's clock between two looks at it."""
        if self._clock is not None:
            return self._clock.now()
        here = time.monotonic()
        if self._offset is None or here - self._offset[0] > _FRESH:
            (there,) = self._one("now")
            self._offset = (time.monotonic(), there)
            return int(there)
        return self._offset[1] + int((here - self._offset[0]) * 1_000_000)

    @property
    def _given(self) -> Micros | None:
        """The time to pass to statements: none, so that they take the server's; a test's clock otherwise."""
        return None if self._clock is None else self._clock.now()

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | KeyConflict]:
        """Store each group whole or not at all; all in one transaction, if nothing stands in the way of any."""
        jobs = [one for group in groups for one in group]
        if not jobs:
            return [[] for _ in groups]
        if len(groups) == len(jobs) == 1 and jobs[0][1].key is None and jobs[0][1].state is State.QUEUED:
            with suppress(errors.UniqueViolation):
                return [self._insert_alone(*jobs[0])]
        try:
            stored = iter(self.pool.run(lambda db: self._insert_on_own(db, jobs, again=False)))
            answers: list[list[Inserted] | KeyConflict] = [[next(stored) for _ in group] for group in groups]
        except (errors.UniqueViolation, KeyConflict):
            answers = [self._insert_group(group) for group in groups]
        self._bell.ring({new.queue for _, new in jobs})
        return answers

    def _insert_alone(self, id_: str, new: NewJob) -> list[Inserted]:
        """Store one job, the most common call; with the notification in the same trip, if none was sent just now."""
        text, values = self._sql("insert_one"), rows.alone(id_, new, self._given)
        call = self._bell.turn((new.queue,))

        def work(db: Connection) -> Any:
            if call is None:
                return db.execute(text, values)
            with db.pipeline():
                done = db.execute(text, values)
                db.execute(self._sql("call"), call)
            return done

        ((at,),) = self.pool.run(work).fetchall()
        if call is None:
            self._bell.ring((new.queue,))
        return [Inserted(id_, new, at)]

    def _insert_group(self, group: InsertGroup) -> list[Inserted] | KeyConflict:
        try:
            return self.pool.run(lambda db: self._insert_on_own(db, group, again=True))
        except KeyConflict as conflict:
            return conflict

    def _insert_on_own(self, db: Connection, group: InsertGroup, *, again: bool) -> list[Inserted]:
        if not again and all(new.key is None for _, new in group):
            return self._insert_plain(db, group)
        steps = insertion.store(group, self._given, again=again)
        with db.transaction():
            return guests.run(steps, lambda name, values: db.execute(self._sql(name), values).fetchall())

    def _insert_plain(self, db: Connection, group: InsertGroup) -> list[Inserted]:
        """Store jobs that nothing can stand in the way of but themselves: one trip, and no transaction around it."""
        batches = rows.batches(group)
        with db.pipeline():
            done = [db.execute(self._sql("insert"), rows.inserted(batch, self._given)) for batch in batches]
        stored: dict[str, Inserted] = {}
        for (_, ones), cursor in zip(batches, done, strict=True):
            (at,) = cursor.fetchone()  # type: ignore[misc]
            stored.update({id_: Inserted(id_, new, at) for id_, new in ones})
        return [stored[id_] for id_, _ in group]

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Store a group through the caller's own connection: it is there if and only if the caller commits."""
        return guests.insert(connection, insertion.store(group, self._given, again=False), self._sql)

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`, for connections that are awaited."""
        return await guests.ainsert(connection, insertion.store(group, self._given, again=False), self._sql)

    def transaction(self) -> HandlerTransaction:
        """Give a handler a transaction that its job's completion becomes part of."""
        return HandlerTransaction(self.pool, lambda: self._given)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first."""
        return self.exchange((), want)[1]

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        answers = self.pool.run(lambda db: Settlement(db, self._schema, self._given).settle(moves)) if moves else []
        self._ring(moves)
        return answers

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim; a batch of completions and a claim make one trip and one transaction."""
        completes = completable(moves) if len({move.id for move in moves}) == len(moves) else []
        if len(completes) < len(moves):
            at_once = {move.id for move in completes}
            early = iter(self.commit([move for move in moves if move.id not in at_once]))
            answers = [Answer.OK if move.id in at_once else next(early) for move in moves]
        else:
            answers = [Answer.OK] * len(moves)
        tries = iter([want.lease_id in self._unanswered])
        try:
            done, claimed = self.pool.run(lambda db: self._trip(db, completes, want, again=next(tries, True)))
        except StoreError:
            self._unanswered.add(want.lease_id)
            raise
        self._unanswered.discard(want.lease_id)
        if len(done) < len(completes):
            rest = {move.id: move for move in completes if move.id not in done}
            late = dict(zip(rest, self.commit(list(rest.values())), strict=True))
            answers = [late.get(move.id, answer) for move, answer in zip(moves, answers, strict=True)]
        return answers, claimed

    def _trip(
        self, db: Connection, completes: Sequence[Move], want: Claim, *, again: bool
    ) -> tuple[set[str], list[JobRecord]]:
        statement, parameters, front = self._look(want)
        if again and (ours := db.execute(self._sql("leased"), {"lease_id": want.lease_id}).fetchall()):
            return set(), [rows.record(row) for row in ours]
        began = time.monotonic()
        try:
            with apart(db), db.pipeline():
                done = db.execute(self._sql("complete"), completion(completes, self._given)) if completes else None
                found = db.execute(statement, parameters) if want.limit > 0 else None
        except BAD_ROW:
            if not completes:
                raise
            return Settlement(db, self._schema, self._given).complete(completes), []
        claimed = rows.claimed(found.fetchall(), want) if found is not None else []
        if want.id is None:
            self._marks.took(claimed, want.limit, time.monotonic() - began, front=front)
        return set() if done is None else {id_ for (id_,) in done}, claimed

    def _look(self, want: Claim) -> tuple[LiteralString, dict[str, Any], bool]:
        """Choose the statement that claims: from the front of every lane, or from the marks."""
        shared = {
            "now": self._given,
            "limit": want.limit,
            "lease_id": want.lease_id,
            "owner": want.owner,
            "lease": want.lease,
        }
        if want.id is not None:
            return self._sql("claim_one"), {**shared, "id": want.id}, False
        lanes = self._marks.lanes(time.monotonic())
        if lanes is not None and (marked := _wanted(lanes, want)):
            parameters = {
                **shared,
                "queues": [lane.queue for lane, _, _ in marked],
                "most": [most for _, most, _ in marked],
                "ranks": [lane.rank for lane, _, _ in marked],
                "mark_ats": [mark.at for _, _, mark in marked],
                "mark_ids": [mark.id for _, _, mark in marked],
            }
            return self._sql("claim", "marked_lanes"), parameters, False
        if want.queues is None:
            return self._sql("claim", "all_lanes"), {**shared, "full": list(want.full)}, True
        named = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
        parameters = {**shared, "queues": list(named), "most": list(named.values())}
        return self._sql("claim", "named_lanes"), parameters, True

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        if not beats:
            return []
        ordered = sorted(beats)
        parameters = {
            "now": self._given,
            "lease": lease,
            "ids": [beat.id for beat in ordered],
            "tokens": [beat.token for beat in ordered],
            "lease_ids": [beat.lease_id for beat in ordered],
            "begun": [beat.id for beat in ordered if beat.begun],
        }
        held = dict(self._all("heartbeat", parameters, writes=True))
        lost = [beat.id for beat in beats if beat.id not in held]
        states = {job.id: job.state for job in self.read(lost) if job is not None} if lost else {}
        return [
            lifecycle.refusal(states.get(beat.id))
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
            self._reaped = max(self._reaped, now - MINUTE)
        return [rows.record(row) for row in (*late, *overdue)][:limit]

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        found = self._all("unsubmitted", {"now": self._given, "older_than": older_than, "limit": limit})
        return [rows.record(row) for row in found]

    def purge(self, limit: int) -> int:
        """Remove finished jobs whose time is over; and fold the counters, which is as often wanted."""

        def work(db: Connection) -> int:
            with db.pipeline():
                gone = db.execute(self._sql("purge"), {"now": self._given, "limit": limit})
                db.execute(self._sql("fold"))
            return int(gone.fetchone()[0])  # type: ignore[index]

        return self.pool.run(work)

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        self._do("pause", {"queue": queue})

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        self._do("resume", {"queue": queue})
        self._bell.ring({queue})

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        return frozenset(queue for (queue,) in self._all("paused", {}))

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process."""
        self._do("enlist", {"id": worker.id, "record": json.dumps(worker), "expires_at": worker.expires_at})

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
        """Give the instant when a job can next be claimed."""
        due, _ = self._next_due(queues)
        return due

    def _next_due(self, queues: Sequence[str] | None) -> tuple[Micros | None, Micros]:
        if queues is None:
            text = self._sql("next_due", "all_lanes")
            parameters: dict[str, Any] = {"now": self._given, "limit": 1, "full": []}
        else:
            text = self._sql("next_due", "named_lanes")
            parameters = {"now": self._given, "queues": list(queues), "most": [1] * len(queues)}
        ((due, now),) = self.pool.run(lambda db: db.execute(text, parameters).fetchall(), writes=False)
        return due, now

    def _callable(self) -> tuple[list[str], float | None]:
        """Name the queues that have a job to be claimed; or tell in how many seconds the next one comes due."""
        due, now = self._next_due(None)
        if due is None or due > now:
            return [], None if due is None else (due - now) / 1_000_000
        text = self._sql("callable", "all_lanes")
        parameters: dict[str, Any] = {"now": self._given, "limit": 1, "full": []}
        found = self.pool.run(lambda db: db.execute(text, parameters).fetchall(), writes=False)
        return [queue for (queue,) in found], None

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until called, or until the timeout."""
        return self._bell.wait(queues, timeout)

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
        if queues := {move.queue for move in moves if move.verb in _MAKES_CLAIMABLE}:
            self._bell.ring(queues)

    def _sql(self, name: str, lanes: str = "") -> LiteralString:
        return sql.statement(self._schema, name, lanes)

    def _all(self, name: str, parameters: dict[str, Any], *, writes: bool = False) -> list[Any]:
        return self.pool.run(lambda db: db.execute(self._sql(name), parameters).fetchall(), writes=writes)

    def _one(self, name: str) -> Any:
        return self.pool.run(lambda db: db.execute(self._sql(name)).fetchone(), writes=False)

    def _do(self, name: str, parameters: dict[str, Any]) -> None:
        self.pool.run(lambda db: db.execute(self._sql(name), parameters))


def _wanted(lanes: dict[Lane, Mark], want: Claim) -> list[tuple[Lane, int, Mark]]:
    """Keep the lanes a claim asks for, with the most it wants of each."""
    if want.queues is None:
        return [(lane, want.limit, mark) for lane, mark in lanes.items() if lane.queue not in want.full]
    room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
    return [(lane, room[lane.queue], mark) for lane, mark in lanes.items() if lane.queue in room]
