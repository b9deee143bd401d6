"""The reference store: a dictionary under a lock, driven by the lifecycle's own functions.

It keeps nothing when the process ends. It exists to be obviously right: every other store is compared with it, and
the test fixture runs the
real engine on it under a clock that the test moves.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.domain import accounts, codec, history, lifecycle, moving
from holdfast.domain.errors import BadInput, InsufficientCredits, KeyConflict, StoreError
from holdfast.domain.excess import Excess
from holdfast.domain.gates import Standing
from holdfast.domain.job import (
    CLAIMABLE,
    TERMINAL,
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
from holdfast.domain.move import Answer, Held, Move, Verb, refusal
from holdfast.port.clock import Clock, SystemClock
from holdfast.port.parcel import Parcel
from holdfast.port.store import (
    Beat,
    Capabilities,
    Claim,
    Finding,
    Inserted,
    InsertGroup,
    Purged,
    Query,
    Refusal,
    WorkerRecord,
)
from holdfast.port.transaction import Transaction
from holdfast.stores.shelf import Shelf
from holdfast.stores.turns import Turns


class MemoryStore(Shelf):
    """Jobs in a dictionary."""

    capabilities = Capabilities(durable=False, shared=False, fair=True, limits=True)

    def __init__(self, url: str = "memory://", clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self.url = url
        self._jobs: dict[str, JobRecord] = {}
        self._keys: dict[tuple[str, str], tuple[str, Micros | None]] = {}
        self._attempts: dict[str, list[AttemptRecord]] = {}
        self._steps: dict[str, list[StepRecord]] = {}
        self._signals: dict[str, list[SignalRecord]] = {}
        self._accounts: dict[str, Account] = {}
        self._entries: list[CreditEntry] = []
        self._grants: set[tuple[str, str]] = set()
        self._paused: set[str] = set()
        self._workers: dict[str, WorkerRecord] = {}
        self._roles: dict[str, tuple[str, Micros]] = {}
        self._turns = Turns(self._jobs)

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        """Store each group whole or not at all."""
        with self._open():
            answers = [self._insert_group(group) for group in groups]
            self.wake()
        return answers

    def _insert_group(self, group: InsertGroup) -> list[Inserted] | Refusal:
        now = self.now()
        answers: list[Inserted] = []
        fresh: dict[str, JobRecord] = {}
        keys: dict[tuple[str, str], tuple[str, Micros | None]] = {}
        paid: dict[str, int] = {}
        for id_, new in group:
            if known := self._jobs.get(id_) or fresh.get(id_):
                answers.append(Inserted(id_, new, now, known))
                continue
            if new.key is not None:
                owner = keys.get((new.tenant, new.key)) or self._owner(new.tenant, new.key, now)
                holder = owner and (fresh.get(owner[0]) or self._jobs.get(owner[0]))
                if holder and lifecycle.owns_key(holder, new):
                    if not lifecycle.same_request(holder, new):
                        return lifecycle.key_conflict(new, holder)
                    answers.append(Inserted(id_, new, now, holder, duplicate=True))
                    continue
                keys[new.tenant, new.key] = (id_, None if new.key_ttl is None else now + new.key_ttl)
            try:
                funded = self._fund(new, paid)
            except InsufficientCredits as refusal:
                return refusal
            fresh[id_] = lifecycle.create(id_, funded, now)
            answers.append(Inserted(id_, funded, now))
        self._keys.update(keys)
        self._store(fresh, {id_: new for id_, new in group if id_ in fresh}, now)
        return answers

    def _fund(self, new: NewJob, paid: dict[str, int]) -> NewJob:
        """Set credits aside for a new job, beside those that others of its group have `paid`."""
        account = self._accounts.get(new.tenant) if new.credits else None
        if account is None:
            return new
        left = account._replace(reserved=account.reserved + paid.get(new.tenant, 0))
        [funded] = accounts.reserve([new], left)
        paid[new.tenant] = paid.get(new.tenant, 0) + funded.reserved
        return funded

    def _store(self, fresh: dict[str, JobRecord], news: dict[str, NewJob], now: Micros) -> None:
        for id_, job in fresh.items():
            self._jobs[id_] = job
            if news[id_].steps:
                self._steps[id_] = [StepRecord(name, result, now) for name, result in news[id_].steps]
            if job.flow is not None and job.flow.reserved:
                self._book(job, accounts.Charge(job.flow.reserved, 0), "reserve", None, now)

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
            claimed = [
                lifecycle.claim(job, lease_id=want.lease_id, owner=want.owner, lease=want.lease, now=now)
                for job in self._choose(want, now)
            ]
            self._jobs |= {job.id: job for job in claimed}
            return claimed

    def _choose(self, want: Claim, now: Micros) -> list[JobRecord]:
        rules = self._rules()
        if want.id is not None:
            job = self._jobs.get(want.id)
            takes = job and job.queue not in self._paused and lifecycle.runnable(job, now) and want.limit > 0
            ours = job and want.tenant in (None, job.tenant)
            return [job] if job and takes and ours and self._turns.admits(rules, job, now) else []
        due = {job.queue for job in self._jobs.values() if lifecycle.runnable(job, now)} - self._paused
        room = dict.fromkeys(due - want.full, want.limit) if want.queues is None else want.queues
        wanted = {queue: room.get(queue, 0) for queue in sorted(due)}
        return self._turns.choose(rules, wanted, want.limit, now, want.tenant)

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
        steps, signals = self._steps.setdefault(move.id, []), self._signals.setdefault(move.id, [])
        recorded = any(step.name == move.step for step in steps)
        if move.verb is Verb.CHECKPOINT and recorded:
            return Answer.OK
        if move.signal is not None and any(signal.id == move.signal[0] for signal in signals):
            return Answer.OK
        after = lifecycle.apply(job, move, now)
        if not self._afford(job, after, move):
            return Answer.UNPAID
        if move.step is not None and not recorded:
            steps.append(StepRecord(move.step, move.result, now))
        if move.signal is not None:
            signals.append(SignalRecord(*move.signal, now))
        if ended := history.ended_attempt(job, move, now):
            self._attempts.setdefault(move.id, []).append(ended)
        self._jobs[move.id] = after
        if change := accounts.charge(job, after):
            self._book(after, change, move.verb.value, move.step, now)
        self._insert_group(move.children)
        self._tell(move, now)
        return Answer.OK

    def _afford(self, job: JobRecord, after: JobRecord, move: Move) -> bool:
        """Tell whether the accounts hold what a move and its children take of them."""
        change = accounts.charge(job, after)
        account = self._accounts.get(job.tenant)
        if change and account and not accounts.affords(account, change):
            return False
        paid = {job.tenant: change.reserved + change.spent} if change else {}
        try:
            for _, new in move.children:
                self._fund(new, paid)
        except InsufficientCredits:
            return False
        return True

    def _book(self, job: JobRecord, change: accounts.Charge, verb: str, step: str | None, now: Micros) -> None:
        """Change a tenant's account, if it has one."""
        account = self._accounts.get(job.tenant)
        if account is None:
            return
        granted, reserved, spent = change.granted, change.reserved, change.spent
        self._accounts[job.tenant] = Account(
            job.tenant, account.granted + granted, account.reserved + reserved, account.spent + spent
        )
        entry = CreditEntry(job.tenant, verb, job.id, job.generation, step, granted, reserved, spent, now)
        self._entries.append(entry)

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
        if not Held(beat.token, beat.lease_id).stands(job):
            return refusal(job.state)
        self._jobs[beat.id] = lifecycle.beat(job, lease=lease, begun=beat.begun, now=self.now(), progress=beat.progress)
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
            found = [job for job in self._jobs.values() if query.matches(job)]
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

    def parcels(self, ids: Sequence[str]) -> list[Parcel]:
        """Read jobs with their whole past."""
        with self._open():
            return [self._parcel(job) for job in self.read(ids) if job is not None]

    def _parcel(self, job: JobRecord) -> Parcel:
        owner = self._owner(job.tenant, job.key, self.now()) if job.key is not None else None
        keyed = (True, owner[1]) if owner and owner[0] == job.id else ()
        return Parcel(job, self.attempts(job.id), self.steps(job.id), self.signals(job.id), *keyed)

    def adopt(self, parcels: Sequence[Parcel]) -> list[Answer | KeyConflict]:
        """Store jobs from another store."""
        with self._open():
            return [self._adopt_one(parcel, self.now()) for parcel in parcels]

    def _adopt_one(self, parcel: Parcel, now: Micros) -> Answer | KeyConflict:
        job = parcel.job
        if (answer := moving.welcome(self._jobs.get(job.id), job)) is not None:
            return answer
        if parcel.keyed and job.key is not None:
            owner = self._owner(job.tenant, job.key, now)
            if owner and owner[0] != job.id:
                return moving.key_conflict(job, owner[0])
            self._keys[job.tenant, job.key] = (job.id, parcel.keyed_until)
        self._jobs[job.id] = job
        self._attempts[job.id] = list(parcel.attempts)
        self._steps[job.id] = list(parcel.steps)
        self._signals[job.id] = list(parcel.signals)
        if change := accounts.brought(job):
            self._accounts.setdefault(job.tenant, Account(job.tenant, 0, 0, 0))
            self._book(job, change, "adopt", None, now)
        return Answer.OK

    def counts(self) -> dict[tuple[str, State], int]:
        """Count jobs by (queue, state)."""
        with self._open():
            return dict(Counter((job.queue, job.state) for job in self._jobs.values()))

    def signals(self, id: str) -> list[SignalRecord]:  # noqa: A002
        """List the signals a job was sent."""
        with self._open():
            return list(self._signals.get(id, ()))

    def open_children(self, parents: Sequence[str]) -> frozenset[str]:
        """Name those of these jobs that have a child which has not ended."""
        with self._open():
            opened = {job.parent for job in self._jobs.values() if job.parent and job.state not in TERMINAL}
            return frozenset(opened & set(parents))

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

    def sweep(self, limit: int) -> int:
        """Give none: nothing is sent about jobs."""
        return min(limit, 0)

    def purge(self, limit: int) -> Purged:
        """Remove finished jobs and pages whose time is over."""
        with self._open():
            now = self.now()
            over = [job for job in self._jobs.values() if lifecycle.purgeable(job, now)][:limit]
            artifacts: list[str] = []
            for job in over:
                del self._jobs[job.id]
                self._attempts.pop(job.id, None)
                self._signals.pop(job.id, None)
                steps = self._steps.pop(job.id, ())
                if job.key is not None and self._keys.get((job.tenant, job.key), ("", 0))[0] == job.id:
                    del self._keys[job.tenant, job.key]
                kept = [job.payload, job.result, *(step.result for step in steps)]
                artifacts += [text for text in kept if text and text.startswith(codec.ARTIFACT)]
            return Purged(len(over), artifacts, self._purge_pages(limit))

    def grant(self, tenant: str, amount: int, id: str) -> Account | None:  # noqa: A002
        """Add credits to a tenant's account."""
        with self._open():
            account = self._accounts.get(tenant, Account(tenant, 0, 0, 0))
            if (tenant, id) in self._grants:
                return account
            if amount + account.available < 0:
                return None
            self._grants.add((tenant, id))
            self._accounts[tenant] = account._replace(granted=account.granted + amount)
            self._entries.append(CreditEntry(tenant, "grant", None, 0, id, amount, 0, 0, self.now()))
            return self._accounts[tenant]

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's account."""
        with self._open():
            return self._accounts.get(tenant)

    def accounts(self) -> list[Account]:
        """List all accounts."""
        with self._open():
            return sorted(self._accounts.values())

    def entries(self, tenant: str, limit: int) -> list[CreditEntry]:
        """List the changes of an account, newest first."""
        with self._open():
            return [entry for entry in reversed(self._entries) if entry.tenant == tenant][:limit]

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

    def standing(self, queue: str) -> Standing:
        """Say what is in use of the limits of a queue."""
        with self._open():
            return self._turns.standing(queue, self.now())

    def overflow(self, limit: int) -> list[Excess]:
        """List jobs beyond full limits."""
        with self._open():
            return self._turns.overflow(self._rules(), self._paused, self.now())[:limit]

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
            names = {job.queue for job in self._jobs.values() if job.state in CLAIMABLE} - self._paused
            rules, now = self._rules(), self.now()
            due = [self._turns.next_at(rules, name, now) for name in names if queues is None or name in queues]
            return min((at for at in due if at is not None), default=None)

    def due_since(self) -> dict[str, Micros]:
        """Give since when the longest waiting job of each queue is due."""
        with self._open():
            since: dict[str, Micros] = {}
            rules = self._rules()
            for job in self._jobs.values():
                held = job.queue in self._paused or rules.holds(job.tenant, job.kind)
                if lifecycle.runnable(job, self.now()) and not held:
                    since[job.queue] = min(since.get(job.queue, job.available_at), job.available_at)
            return since

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
