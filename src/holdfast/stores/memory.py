"""The reference store: a dictionary under a lock, driven by the lifecycle's own functions.

It keeps nothing when the process ends. It exists to be obviously right: every other store is compared with it, and
the test fixture runs the
real engine on it under a clock that the test moves.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.domain import lifecycle
from holdfast.domain.errors import BadInput, KeyConflict, StoreError, StoreUnavailable
from holdfast.domain.job import CLAIMABLE, AttemptRecord, JobRecord, State, StepRecord
from holdfast.domain.lifecycle import Answer, Held, Move, Verb
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


class MemoryStore:
    """Jobs in a dictionary."""

    capabilities = Capabilities(durable=False, shared=False)

    def __init__(self, url: str = "memory://", clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[str, JobRecord] = {}
        self._keys: dict[tuple[str, str], tuple[str, Micros | None]] = {}
        self._attempts: dict[str, list[AttemptRecord]] = {}
        self._steps: dict[str, list[StepRecord]] = {}
        self._paused: set[str] = set()
        self._workers: dict[str, WorkerRecord] = {}
        self._roles: dict[str, tuple[str, Micros]] = {}
        self._wakes = 0
        self._closed = False

    def now(self) -> Micros:
        """Give the clock's time."""
        return self._clock.now()

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | KeyConflict]:
        """Store each group whole or not at all."""
        with self._open():
            answers = [self._insert_group(group) for group in groups]
            self.wake()
        return answers

    def _insert_group(self, group: InsertGroup) -> list[Inserted] | KeyConflict:
        now = self.now()
        answers: list[Inserted] = []
        fresh: dict[str, JobRecord] = {}
        keys: dict[tuple[str, str], tuple[str, Micros | None]] = {}
        for id_, new in group:
            if known := self._jobs.get(id_) or fresh.get(id_):
                answers.append(Inserted(id_, new, now, known))
                continue
            if new.key is not None:
                owner = keys.get((new.tenant, new.key)) or self._owner(new.tenant, new.key, now)
                holder = owner and (fresh.get(owner[0]) or self._jobs.get(owner[0]))
                if holder:
                    if not lifecycle.same_request(holder, new):
                        return lifecycle.key_conflict(new, holder)
                    answers.append(Inserted(id_, new, now, holder, duplicate=True))
                    continue
                keys[new.tenant, new.key] = (id_, None if new.key_ttl is None else now + new.key_ttl)
            fresh[id_] = lifecycle.create(id_, new, now)
            answers.append(Inserted(id_, new, now))
        self._jobs.update(fresh)
        self._keys.update(keys)
        return answers

    def _owner(self, tenant: str, key: str, now: Micros) -> tuple[str, Micros | None] | None:
        owner = self._keys.get((tenant, key))
        if owner and owner[1] is not None and owner[1] <= now:
            return None
        return owner

    def insert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Refuse: there is no transaction to take part in."""
        msg = f"The memory store cannot store {len(group)} job(s) through a {type(connection).__name__}."
        raise StoreError(msg)

    async def ainsert_on(self, connection: Any, group: InsertGroup) -> list[Inserted]:
        """Asynchronous twin of `insert_on`."""
        return self.insert_on(connection, group)

    def transaction(self) -> Transaction:
        """Refuse: there are no transactions here."""
        msg = "The memory store has no transactions; ctx.transaction() needs PostgreSQL."
        raise BadInput(msg)

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease runnable jobs, best first."""
        with self._open():
            now = self.now()
            room = None if want.queues is None or want.id is not None else dict(want.queues)
            full = frozenset() if want.queues is not None or want.id is not None else want.full
            claimed: list[JobRecord] = []
            candidates = self._jobs.values() if want.id is None else filter(None, [self._jobs.get(want.id)])
            for job in sorted((j for j in candidates if lifecycle.runnable(j, now)), key=lifecycle.order):
                if len(claimed) >= want.limit:
                    break
                if job.queue in self._paused or job.queue in full or (room is not None and room.get(job.queue, 0) < 1):
                    continue
                if room is not None:
                    room[job.queue] -= 1
                leased = lifecycle.claim(job, lease_id=want.lease_id, owner=want.owner, lease=want.lease, now=now)
                self._jobs[job.id] = leased
                claimed.append(leased)
            return claimed

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        with self._open():
            answers = [self._commit_one(move, self.now()) for move in moves]
            self.wake()
        return answers

    def _commit_one(self, move: Move, now: Micros) -> Answer:
        job = self._jobs.get(move.id)
        if job is None or not lifecycle.holds(job, move):
            return lifecycle.answer(job, move)
        if move.verb is Verb.CHECKPOINT:
            steps = self._steps.setdefault(move.id, [])
            if any(step.name == move.step for step in steps):
                return Answer.OK
            steps.append(StepRecord(move.step or "", move.result, now))
        if ended := lifecycle.ended_attempt(job, move, now):
            self._attempts.setdefault(move.id, []).append(ended)
        self._jobs[move.id] = lifecycle.apply(job, move, now)
        return Answer.OK

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit, then claim."""
        with self._open():
            return self.commit(moves), self.claim(want)

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        with self._open():
            return [self._beat_one(beat, lease) for beat in beats]

    def _beat_one(self, beat: Beat, lease: Micros) -> Answer:
        job = self._jobs.get(beat.id)
        if job is None:
            return Answer.ABSENT
        if job.state is not State.RUNNING or (job.token, job.lease_id) != Held(beat.token, beat.lease_id):
            return lifecycle.refusal(job.state)
        self._jobs[beat.id] = lifecycle.beat(job, lease=lease, begun=beat.begun, now=self.now())
        return Answer.CANCEL_REQUESTED if job.cancel_requested else Answer.OK

    def abandon(self, owner: str) -> int:
        """End at once every lease of a dead owner."""
        with self._open():
            now = self.now()
            held = [j for j in self._jobs.values() if j.state is State.RUNNING and j.lease_owner == owner]
            for job in held:
                self._jobs[job.id] = lifecycle.beat(job, lease=0, begun=False, now=now)
            return len(held)

    def read(self, ids: Sequence[str]) -> list[JobRecord | None]:
        """Read jobs by id."""
        with self._open():
            return [self._jobs.get(id_) for id_ in ids]

    def find(self, query: Query) -> list[JobRecord]:
        """List jobs by a filter, newest first."""
        with self._open():
            found = [job for job in self._jobs.values() if _matches(job, query)]
        found.sort(key=lambda job: job.id, reverse=True)
        return found[: query.limit]

    def attempts(self, id: str) -> list[AttemptRecord]:  # noqa: A002
        """List the ended attempts of a job."""
        with self._open():
            return list(self._attempts.get(id, ()))

    def steps(self, id: str) -> list[StepRecord]:  # noqa: A002
        """List the recorded steps of a job."""
        with self._open():
            return list(self._steps.get(id, ()))

    def counts(self) -> dict[tuple[str, State], int]:
        """Count jobs by (queue, state)."""
        with self._open():
            return dict(Counter((job.queue, job.state) for job in self._jobs.values()))

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on."""
        with self._open():
            now = self.now()
            late = [
                job
                for job in self._jobs.values()
                if (job.state is State.RUNNING and (job.lease_expires_at or 0) <= now)
                or (job.state in CLAIMABLE and lifecycle.overdue(job, now))
            ]
            return late[:limit]

    def unsubmitted(self, older_than: Micros, limit: int) -> list[JobRecord]:
        """List jobs that have been `created` for longer than this."""
        with self._open():
            before = self.now() - older_than
            return [j for j in self._jobs.values() if j.state is State.CREATED and j.updated_at <= before][:limit]

    def purge(self, limit: int) -> int:
        """Remove finished jobs whose time is over."""
        with self._open():
            now = self.now()
            over = [job for job in self._jobs.values() if lifecycle.purgeable(job, now)][:limit]
            for job in over:
                del self._jobs[job.id]
                self._attempts.pop(job.id, None)
                self._steps.pop(job.id, None)
                if job.key is not None and self._keys.get((job.tenant, job.key), ("", 0))[0] == job.id:
                    del self._keys[job.tenant, job.key]
            return len(over)

    def pause(self, queue: str) -> None:
        """Stop claims from a queue."""
        with self._open():
            self._paused.add(queue)

    def resume(self, queue: str) -> None:
        """Allow claims from a queue again."""
        with self._open():
            self._paused.discard(queue)
            self.wake()

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        with self._open():
            return frozenset(self._paused)

    def enlist(self, worker: WorkerRecord) -> None:
        """Record a worker process."""
        with self._open():
            self._workers[worker.id] = worker

    def dismiss(self, worker_id: str) -> None:
        """Forget a worker process."""
        with self._open():
            self._workers.pop(worker_id, None)

    def workers(self) -> list[WorkerRecord]:
        """List the workers that are alive."""
        with self._open():
            now = self.now()
            return sorted((w for w in self._workers.values() if w.expires_at > now), key=lambda w: w.id)

    def lead(self, role: str, owner: str, term: Micros) -> bool:
        """Take or keep a role for a term."""
        with self._open():
            now = self.now()
            holder, until = self._roles.get(role, (owner, 0))
            if holder != owner and until > now:
                return False
            self._roles[role] = (owner, now + term)
            return True

    def next_due(self, queues: Sequence[str] | None) -> Micros | None:
        """Give the instant when a job can next be claimed."""
        with self._open():
            now = self.now()
            due = (
                max(now, job.available_at)
                for job in self._jobs.values()
                if job.state in CLAIMABLE
                and job.queue not in self._paused
                and (queues is None or job.queue in queues)
                and not lifecycle.overdue(job, max(now, job.available_at))
            )
            return min(due, default=None)

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until something changed."""
        with self._changed:
            seen = self._wakes
            return self._changed.wait_for(lambda: self._wakes != seen, timeout)

    def wake(self) -> None:
        """Make every `wait` return now."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def check(self) -> Iterator[Finding]:
        """A dictionary cannot be corrupt, but a key can point nowhere."""
        with self._open():
            orphans = [key for key, (id_, _) in self._keys.items() if id_ not in self._jobs]
        for tenant, key in orphans:
            yield Finding("S7", None, f"The key {key!r} of tenant {tenant!r} points to a job that is not there.")

    def backup(self, path: str) -> None:
        """Refuse: there is nothing durable to copy."""
        msg = (
            f"The memory store cannot be backed up to {path}; use sqlite:/// for jobs that should outlive the process."
        )
        raise StoreError(msg)

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self.wake()

    def _open(self) -> threading.Condition:
        if self._closed:
            msg = "The store is closed."
            raise StoreUnavailable(msg)
        return self._changed


def _matches(job: JobRecord, query: Query) -> bool:
    return (
        (query.state is None or job.state is query.state)
        and (query.kind is None or job.kind == query.kind)
        and (query.queue is None or job.queue == query.queue)
        and (query.tenant is None or job.tenant == query.tenant)
        and (query.error_code is None or job.failure_code == query.error_code)
        and (query.key is None or job.key == query.key)
        and (query.before is None or job.id < query.before)
    )
