"""The SQLite store: every write in one `BEGIN IMMEDIATE` transaction on one writing connection, reads on another.

Claim, complete and heartbeat act on whole batches in single statements; every other move is read, checked and applied
by the lifecycle's own
functions inside the transaction. Batches travel as JSON: one statement and one row per batch, because each crossing
gives up the interpreter
lock and a busy handler thread may keep it for milliseconds.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from holdfast.domain import lifecycle
from holdfast.domain.errors import BadInput, KeyConflict, StoreError
from holdfast.domain.job import AttemptRecord, JobRecord, NewJob, State, StepRecord
from holdfast.domain.lifecycle import Answer, Move, Verb
from holdfast.domain.moments import Micros
from holdfast.port.clock import Clock, SystemClock
from holdfast.port.store import (
    Beat,
    Capabilities,
    Claim,
    Finding,
    Inserted,
    InsertGroup,
    Query,
    Transaction,
    WorkerRecord,
)
from holdfast.stores import statements
from holdfast.stores.sqlite import connection as files
from holdfast.stores.sqlite import guests, inspect, rows
from holdfast.stores.sqlite.bell import Bell
from holdfast.stores.sqlite.file import OpenFile
from holdfast.stores.sqlite.guests import Connection, OwnConnection

_RAW = statements.load("holdfast.stores.sqlite", "statements.sql")
SQL = {name: text.replace("{columns}", _RAW["columns"]) for name, text in _RAW.items()}

_QUEUE, _STATE = JobRecord._fields.index("queue"), JobRecord._fields.index("state")
Deltas = defaultdict[tuple[str, State], int]
_ONE_STATEMENT = 32
"""Up to so many jobs are inserted by one statement, which needs no savepoint and gives up the interpreter once."""
_MAKES_CLAIMABLE = frozenset({Verb.REDRIVE, Verb.RELEASE, Verb.SUBMIT, Verb.REAP, Verb.CANCEL})
"""After these, somebody who waits may have something to do (or, for a cancellation, to stop)."""


class SqliteStore:
    """Jobs in one file."""

    capabilities = Capabilities(durable=True, shared=True, caller_transactions=True, backup=True)

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.path = files.path_of(url)
        self._clock = clock or SystemClock()
        self.file = OpenFile(self.path)
        self._bells = {self.file.pid: Bell(self.path)}

    @property
    def _bell(self) -> Bell:
        """The bell of this process: like a connection, it must not cross a fork."""
        pid = os.getpid()
        if pid not in self._bells:
            self._bells[pid] = Bell(self.path)
        return self._bells[pid]

    def now(self) -> Micros:
        """Give the machine's time, which every process on the file shares."""
        return self._clock.now()

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | KeyConflict]:
        """Store each group whole or not at all."""
        if 0 < len(groups) <= _ONE_STATEMENT and all(len(group) == 1 and group[0][1].key is None for group in groups):
            return self._insert_few([group[0] for group in groups])
        deltas: Deltas = defaultdict(int)
        with self.file.write() as db:
            now = self.now()
            answers = self._insert_groups(db, groups, now, deltas)
            _tally(db, deltas)
        self._bell.ring({queue for queue, _ in deltas})
        return answers

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Store a group through the caller's own connection: it is there if and only if the caller commits."""
        with guests.welcome(connection, self.path) as db:
            deltas: Deltas = defaultdict(int)
            answer = self._insert_group(db, group, self.now(), deltas)
            if isinstance(answer, KeyConflict):
                raise answer
            _tally(db, deltas)
            return answer

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`."""
        return self.insert_on(connection, group)

    def _insert_few(self, jobs: InsertGroup) -> list[list[Inserted] | KeyConflict]:
        """Store a few callers' jobs that have no key, each a group of its own: the common call, in one statement."""
        now = self.now()
        values = [value for id_, new in jobs for value in rows.fresh(id_, new, now)]
        try:
            self.file.write().at_once(_entry(len(jobs)), values)
        except apsw.ConstraintError:  # asked again, and some are there already: look closer
            return [self._insert_again(job) for job in jobs]
        self._bell.ring({new.queue for _, new in jobs})
        return [[Inserted(id_, new, now)] for id_, new in jobs]

    def _insert_again(self, job: tuple[str, NewJob]) -> list[Inserted]:
        deltas: Deltas = defaultdict(int)
        with self.file.write() as db:
            answers = self._insert_group(db, [job], self.now(), deltas)
            _tally(db, deltas)
        assert isinstance(answers, list)
        return answers

    def _insert_groups(
        self, db: Connection, groups: Sequence[InsertGroup], now: Micros, deltas: Deltas
    ) -> list[list[Inserted] | KeyConflict]:
        """Store groups one by one; or, if no key could refuse one of them, all in one go."""
        if len(groups) == 1 or any(new.key is not None for group in groups for _, new in group):
            return [self._insert_group(db, group, now, deltas) for group in groups]
        answers = self._insert_group(db, [one for group in groups for one in group], now, deltas)
        assert isinstance(answers, list)
        each = iter(answers)
        return [list(islice(each, len(group))) for group in groups]

    def _insert_group(
        self, db: Connection, group: InsertGroup, now: Micros, deltas: Deltas
    ) -> list[Inserted] | KeyConflict:
        """Store a group as if it were new; if an id of it is there already, the group is asked again: look closer."""
        several = len(group) > _ONE_STATEMENT
        if several:
            db.execute("SAVEPOINT insertion")
        try:
            answers = self._store_group(db, group, set(), now, deltas)
        except apsw.ConstraintError:
            if several:
                db.execute("ROLLBACK TO insertion")
            answers = self._store_group(db, group, self._known(db, group), now, deltas)
        if several:
            db.execute("RELEASE insertion")
        return answers

    def _store_group(
        self, db: Connection, group: InsertGroup, known: set[str], now: Micros, deltas: Deltas
    ) -> list[Inserted] | KeyConflict:
        stored: list[tuple[Any, ...]] = []
        answers: list[Inserted] = []
        keys: dict[tuple[str, str], JobRecord] = {}
        lifetimes: list[tuple[str, str, Micros | None, str]] = []
        for id_, new in group:
            if id_ in known:
                answers.append(Inserted(id_, new, now, _read(db, id_)))
                continue
            known.add(id_)
            if new.key is not None:
                owner = keys.get((new.tenant, new.key)) or self._key_owner(db, new.tenant, new.key, now)
                if owner:
                    if not lifecycle.same_request(owner, new):
                        return lifecycle.key_conflict(new, owner)
                    answers.append(Inserted(id_, new, now, owner, duplicate=owner.id != id_))
                    continue
                keys[new.tenant, new.key] = lifecycle.create(id_, new, now)
                lifetimes.append((new.tenant, new.key, None if new.key_ttl is None else now + new.key_ttl, id_))
            stored.append(rows.fresh(id_, new, now))
            answers.append(Inserted(id_, new, now))
        if len(stored) > _ONE_STATEMENT:
            db.executemany(SQL["insert"], stored)
        elif stored:
            db.execute(_insert_statement(len(stored)), [value for row in stored for value in row])
        if lifetimes:
            db.executemany(SQL["take_key"], lifetimes)
        for row in stored:
            deltas[row[_QUEUE], row[_STATE]] += 1
        return answers

    def _known(self, db: Connection, group: InsertGroup) -> set[str]:
        """Find the ids of a group that are stored already."""
        return set(json.loads(db.execute(SQL["known"], (json.dumps([id_ for id_, _ in group]),)).fetchone()[0]))

    def _key_owner(self, db: Connection, tenant: str, key: str, now: Micros) -> JobRecord | None:
        owner = db.execute(SQL["key_owner"], (tenant, key, now)).fetchone()
        return None if owner is None else _read(db, owner[0])

    def transaction(self) -> Transaction:
        """Refuse: one writer at a time cannot be kept waiting by a handler."""
        msg = "A SQLite file has no transactions for handlers; ctx.transaction() needs PostgreSQL."
        raise BadInput(msg)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first."""
        return self.exchange((), want)[1]

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        return self._exchange(moves, None)[0]

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim in one transaction: one wait for the disk."""
        return self._exchange(moves, want)

    def _exchange(self, moves: Sequence[Move], want: Claim | None) -> tuple[list[Answer], list[JobRecord]]:
        deltas: Deltas = defaultdict(int)
        with self.file.write() as db:
            now = self.now()
            answers = self._commit(db, moves, now, deltas) if moves else []
            _tally(db, deltas)
            claimed = self._claim(db, want, now) if want else []
        if rung := {move.queue for move in moves if move.verb in _MAKES_CLAIMABLE}:
            self._bell.ring(rung)
        return answers, claimed

    def _claim(self, db: OwnConnection, want: Claim, now: Micros) -> list[JobRecord]:
        seqs, picked = self._pick(db, want, now)
        if not picked:
            return []
        db.execute(SQL["claim"], (seqs, want.lease_id, want.owner, now, want.lease))
        deltas: Deltas = defaultdict(int)
        for (queue, state), jobs in picked.items():
            deltas[queue, state] -= jobs
            deltas[queue, State.RUNNING] += jobs
        _tally(db, deltas)
        return rows.claimed(db.execute(SQL["claimed"], (seqs,)).get, want, now)

    def _pick(self, db: OwnConnection, want: Claim, now: Micros) -> tuple[str, dict[tuple[str, State], int]]:
        """Choose the jobs to claim; give their seqs as JSON, and their number by queue and state."""
        paused = {queue for (queue,) in db.execute(SQL["paused"])}
        if want.id is not None:
            row = db.execute(SQL["pick_one"], (want.id, now)).fetchone()
            if row is None or row[1] in paused:
                return "[]", {}
            return f"[{row[0]}]", {(row[1], State(row[2])): 1}
        if want.queues is None:
            room = {queue: want.limit for (queue,) in db.execute(SQL["waiting_queues"]) if queue not in want.full}
        else:
            room = {queue: min(most, want.limit) for queue, most in want.queues.items() if most > 0}
        room = {queue: most for queue, most in room.items() if queue not in paused}
        for queue in room:
            db.execute(SQL["promote"], (queue, now))
        if len(room) == 1:
            ((queue, most),) = room.items()
            seqs, jobs, retrying = db.execute(SQL["pick"], (queue, now, most)).fetchone()
            return seqs, {(queue, State.QUEUED): jobs - retrying, (queue, State.RETRYING): retrying} if jobs else {}
        return self._pick_across(db, room, want.limit, now)

    def _pick_across(
        self, db: OwnConnection, room: dict[str, int], limit: int, now: Micros
    ) -> tuple[str, dict[tuple[str, State], int]]:
        """Choose among several queues by one order."""
        found = [
            (-priority, available_at, seq, queue, state)
            for queue, most in room.items()
            for seq, priority, available_at, state in json.loads(
                db.execute(SQL["pick_ranked"], (queue, now, most)).fetchone()[0]
            )
        ]
        best = sorted(found)[:limit]
        picked = Counter((queue, State(state)) for _, _, _, queue, state in best)
        return json.dumps([seq for _, _, seq, _, _ in best]), picked

    def _commit(self, db: OwnConnection, moves: Sequence[Move], now: Micros, deltas: Deltas) -> list[Answer]:
        completes = [move for move in moves if move.verb is Verb.COMPLETE]
        in_any_order = len(completes) == len(moves) or len({move.id for move in moves}) == len(moves)
        if completes and in_any_order and self._complete(db, completes, now):
            for move in completes:
                deltas[move.queue, State.SUCCEEDED] += 1
                deltas[move.queue, State.RUNNING] -= 1
            if len(completes) == len(moves):
                return [Answer.OK] * len(moves)
            return [Answer.OK if move.verb is Verb.COMPLETE else self._write(db, move, now, deltas) for move in moves]
        return [self._write(db, move, now, deltas) for move in moves]

    def _complete(self, db: OwnConnection, moves: list[Move], now: Micros) -> bool:
        """Complete a whole batch, or nothing: one refused move sends the batch to be written move by move."""
        leases: dict[tuple[Any, ...], dict[str, str | None]] = {}
        for move in moves:
            leases.setdefault((*move.guard, move.purge_after), {})[move.id] = move.result
        done = 0
        db.execute("SAVEPOINT batch")
        for (token, lease_id, purge_after), results in leases.items():
            db.execute(SQL["complete"], (json.dumps(results), now, token, lease_id, purge_after))
            done += db.changes()
        whole = done == len(moves)
        db.execute("RELEASE batch" if whole else "ROLLBACK TO batch; RELEASE batch")
        return whole

    def _write(self, db: OwnConnection, move: Move, now: Micros, deltas: Deltas) -> Answer:
        job = _read(db, move.id)
        if job is None or not lifecycle.holds(job, move):
            return lifecycle.answer(job, move)
        if move.verb is Verb.CHECKPOINT:
            db.execute(SQL["record_step"], (move.id, move.step, move.result, now))
            if not db.changes():
                return Answer.OK
        if ended := lifecycle.ended_attempt(job, move, now):
            db.execute(SQL["end_attempt"], (move.id, *ended))
        after = lifecycle.apply(job, move, now)
        db.execute(SQL["write"], rows.changed(after, now))
        deltas[job.queue, job.state] -= 1
        deltas[job.queue, after.state] += 1
        return Answer.OK

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        if not beats:
            return []
        batch = json.dumps(beats)
        with self.file.write() as db:
            db.execute(SQL["heartbeat"], (batch, self.now(), lease))
            found = json.loads(db.execute(SQL["leases"], (batch,)).get)
        return [_still_held(beat, *row) for beat, row in zip(beats, found, strict=True)]

    def abandon(self, owner: str) -> int:
        """End at once every lease of a dead owner."""
        with self.file.write() as db:
            db.execute(SQL["abandon"], (owner, self.now()))
            return int(db.changes())

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id."""
        with self.file.read() as db:
            return [_read(db, id_) for id_ in ids]

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        with self.file.read() as db:
            return inspect.find(db, query, SQL)

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002
        """List the ended attempts of a job."""
        with self.file.read() as db:
            return [AttemptRecord(*row) for row in db.execute(SQL["attempts"], (id,))]

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002
        """List the recorded steps of a job."""
        with self.file.read() as db:
            return [StepRecord(*row) for row in db.execute(SQL["steps"], (id,))]

    def counts(self) -> dict[tuple[str, State], int]:
        """Read the counters."""
        with self.file.read() as db:
            return {(queue, State(state)): jobs for queue, state, jobs in db.execute(SQL["counts"])}

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

    def purge(self, limit: int) -> int:
        """Remove finished jobs whose time is over."""
        now = self.now()
        with self.file.read() as db:
            if db.execute(SQL["purgeable"], (now, 1)).get == "[]":
                return 0
        with self.file.write() as db:
            over = db.execute(SQL["purgeable"], (now, limit)).get
            deltas: Deltas = defaultdict(
                int, {(q, State(s)): -n for q, s, n in db.execute(SQL["purge_tallies"], (over,))}
            )
            db.execute(SQL["permit"], (now,))
            for name in ("purge_keys", "purge_attempts", "purge_steps", "purge"):
                db.execute(SQL[name], (over,))
            gone = int(db.changes())
            db.execute(SQL["permit"], (None,))
            _tally(db, deltas)
            return gone

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
            paused = {queue for (queue,) in db.execute(SQL["paused"])}
            names = [queue for (queue,) in db.execute(SQL["waiting_queues"]) if queues is None or queue in queues]
            due = [db.execute(SQL["next_due"], (queue, now)).get for queue in names if queue not in paused]
        return min((max(now, at) for at in due if at is not None), default=None)

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until rung, or until the timeout."""
        return self._bell.wait(queues, timeout)

    def wake(self) -> None:
        """Make every `wait` of this store object return now."""
        self._bell.ring_own()

    def check(self) -> Iterator[Finding]:
        """Verify the file's integrity, the counters and the keys."""
        with self.file.read() as db:
            findings = inspect.check(db, SQL)
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

    def _execute(self, name: str, *parameters: Any) -> None:
        with self.file.write() as db:
            db.execute(SQL[name], parameters)


@cache
def _entry(jobs: int) -> str:
    """Give the statement that stores and counts so many jobs at once."""
    return _insert_statement(jobs).replace("INTO job", "INTO entry", 1)


@cache
def _insert_statement(jobs: int) -> str:
    """Give the statement that inserts so many jobs at once, which all or none of them survive."""
    head, _, row = SQL["insert"].partition("VALUES ")
    return f"{head}VALUES {', '.join([row] * jobs)}"


def _read(db: Connection, id_: str) -> JobRecord | None:
    row = db.execute(SQL["read"], (id_,)).fetchone()
    return None if row is None else rows.record(row)


def _tally(db: Connection, deltas: Deltas) -> None:
    for (queue, state), change in deltas.items():
        if change:
            db.execute(SQL["tally"], (queue, state.value, change))


def _still_held(beat: Beat, state: str | None, token: int, lease_id: str | None, cancel: int) -> Answer:
    if state == State.RUNNING and (token, lease_id) == (beat.token, beat.lease_id):
        return Answer.CANCEL_REQUESTED if cancel else Answer.OK
    return lifecycle.refusal(None if state is None else State(state))
