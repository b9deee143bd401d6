"""Writing moves and heartbeats: decided by the lifecycle on the record as it is, written if it still is."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain import accounts as credit
from holdfast.domain import history, lifecycle
from holdfast.domain.errors import InsufficientCredits, StoreUnavailable
from holdfast.domain.job import JobRecord, NewJob, SignalRecord, State, StepRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Held, Move, Verb, refusal
from holdfast.port.store import Beat
from holdfast.stores.dynamodb import items, outbox, past
from holdfast.stores.dynamodb.accounts import Accounts
from holdfast.stores.dynamodb.bundles import Entry
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.ends import Ends
from holdfast.stores.dynamodb.insertion import Insertion, fund, tenants
from holdfast.stores.dynamodb.items import Item
from holdfast.stores.dynamodb.records import Part, Records, absent, put
from holdfast.stores.dynamodb.steps import Steps
from holdfast.stores.dynamodb.wire import Failed, TooLarge, Wire, op_token

_TRIES = 50
_NOTE = "note"
"""What is there already if the end of a job is noted."""
Decide = Callable[[JobRecord], JobRecord | None]
"""Gives the record to be written, or nothing if there is nothing to change."""


class _Write(NamedTuple):
    """All that one move writes."""

    after: JobRecord
    steps: Steps | None
    """Those in its item, if they are known."""
    core: list[Part]
    children: list[tuple[JobRecord, NewJob]]


class Settlement:
    """How jobs of a table change."""

    def __init__(self, wire: Wire, records: Records, accounts: Accounts, insertion: Insertion, ends: Ends) -> None:
        self._wire = wire
        self._ends = ends
        self._records = records
        self._accounts = accounts
        self._insertion = insertion

    def commit(self, moves: Sequence[Move], now: Micros, changes: Changes) -> list[Answer]:
        """Write each move whose guard holds: those of one job in order, and all in order if credits are at stake."""
        noted = self._ends.note(moves, now)
        if any(move.charged for move in moves):
            return [self._settle(move, now, changes, noted) for move in moves]
        turns: dict[str, list[int]] = defaultdict(list)
        for number, move in enumerate(moves):
            turns[move.id].append(number)
        answers: dict[int, Answer] = {}

        def settle(numbers: list[int]) -> None:
            for number in numbers:
                answers[number] = self._settle(moves[number], now, changes, noted)

        self._wire.each(settle, list(turns.values()))
        return [answers[number] for number in range(len(moves))]

    def _settle(self, move: Move, now: Micros, changes: Changes, noted: frozenset[str]) -> Answer:
        job, sure = self._records.remembered(move.id), False
        known = {_NOTE} if move.id in noted else set[str]()
        for _ in range(_TRIES):
            if job is None:
                job, sure = self._records.fetch_one(move.id), True
            if job is None or not lifecycle.holds(job, move):
                if sure:
                    return lifecycle.answer(job, move)
                job = None
                continue
            if move.step is not None and self._records.steps(job).has(move.step):
                if not sure:
                    job = None
                    continue
                if move.verb is Verb.CHECKPOINT:
                    return Answer.OK
                known.add("step")
            tried = self._try(job, move, now, known, changes)
            if isinstance(tried, Answer):
                if sure or tried is not Answer.UNPAID:
                    return tried
                job = None
            else:
                job, sure = tried, tried is not None
        msg = f"The job {move.id} in {self._wire.address.shown} is too much in demand; nothing was changed."
        raise StoreUnavailable(msg)

    def _try(
        self, job: JobRecord, move: Move, now: Micros, known: set[str], changes: Changes
    ) -> Answer | JobRecord | None:
        """Try to write a move on a record: give the answer, or the record to try it on next, if it is at hand.

        `known` takes up what is there already and need not be written.
        """
        write = self._decide(job, move, now, known)
        if write is None:
            return Answer.OK if move.verb is Verb.CHECKPOINT and self._recorded(move) else Answer.UNPAID
        entries = [self._insertion.entry(child, new, now) for child, new in write.children]
        try:
            self._write(job, write, entries, now)
        except TooLarge:
            return Answer.UNWRITABLE
        except Failed as failed:
            parts = [*write.core, *(part for entry in entries for part in entry)]
            broken = {part.label: item for part, (bad, item) in zip(parts, failed.parts, strict=False) if bad}
            return self._failed(job, move, broken, known)
        self._records.remember(write.after, write.steps)
        changes.tell(job, write.after)
        for child, _ in write.children:
            changes.tell(None, child)
        return Answer.OK

    def _failed(
        self, job: JobRecord, move: Move, broken: Mapping[str, Item | None], known: set[str]
    ) -> Answer | JobRecord | None:
        """Say what follows from the parts whose condition failed, and what was found there."""
        if "job" in broken:
            self._records.forget(move.id)
            return self._records.found(broken["job"])
        if ("step" in broken and move.verb is Verb.CHECKPOINT) or "signal" in broken:
            return Answer.OK
        known |= {label for label in broken if label in ("step", "key") or label.startswith("new ")}
        return job

    def _write(self, job: JobRecord, write: _Write, entries: Sequence[Entry], now: Micros) -> None:
        if len(write.core) == 1 and not entries:
            [part] = write.core
            if "Update" in part.request:
                change = dict(part.request["Update"])
                change.pop("Key")
                op = change["ExpressionAttributeValues"][":a_op_token"]["S"]
                self._wire.update(self._records.layout.place(job), change, op)
                return
        self._insertion.write(write.core, entries, now)

    def _decide(self, job: JobRecord, move: Move, now: Micros, known: set[str]) -> _Write | None:
        """Give all that a move writes; nothing if it cannot be paid for."""
        after = lifecycle.apply(job, move, now)
        fresh = move.step is not None and "step" not in known
        step = StepRecord(move.step or "", move.result, now) if fresh else None
        parts, steps = self._records.move(job, after, op_token(), step, noted=_NOTE in known)
        core = [part for part in parts if part.label not in known]
        if move.signal is not None:
            signal = SignalRecord(*move.signal, now)
            core.append(Part("signal", absent(past.signal_item(job.id, signal, after.version))))
        if ended := history.ended_attempt(job, move, now):
            core += [Part("attempt", put(item)) for item in past.attempt_items(job.id, ended)]
        core += outbox.told(after, move.events, now)
        children = [(id_, new) for id_, new in move.children if f"new {id_}" not in known]
        return self._paid(job, _Write(after, steps, core, []), move, children, now)

    def _paid(
        self, job: JobRecord, write: _Write, move: Move, news: Sequence[tuple[str, NewJob]], now: Micros
    ) -> _Write | None:
        """Add the children of a move, and what it and they take of the accounts."""
        after, core = write.after, list(write.core)
        change = credit.charge(job, after)
        asked = tenants(new for _, new in news) | ({job.tenant} if change else set())
        accounts = self._accounts.read(asked) if asked else {}
        account = accounts.get(job.tenant)
        total: dict[str, credit.Charge] = {}
        paid: Counter[str] = Counter()
        if change and account:
            if not credit.affords(account, change):
                return None
            total[job.tenant] = change
            paid[job.tenant] = change.reserved + change.spent
            core.append(self._accounts.entry(after, move.verb.value, move.step, change, now))
        children: list[tuple[JobRecord, NewJob]] = []
        for id_, new in news:
            try:
                funded = fund(new, accounts.get(new.tenant), paid)
            except InsufficientCredits:
                return None
            if funded.reserved:
                so_far = total.get(new.tenant, credit.Charge(0, 0))
                total[new.tenant] = so_far._replace(reserved=so_far.reserved + funded.reserved)
            children.append((lifecycle.create(id_, funded, now), funded))
        core += [self._accounts.charge(tenant, sum_) for tenant, sum_ in total.items()]
        return write._replace(core=core, children=children)

    def _recorded(self, move: Move) -> bool:
        return move.step is not None and self._wire.get(items.side(move.id, "step", move.step)) is not None

    def heartbeat(self, beats: Sequence[Beat], lease: Micros, now: Micros) -> list[Answer]:
        """Extend leases."""
        return self._wire.each(lambda beat: self._beat(beat, lease, now), beats)

    def _beat(self, beat: Beat, lease: Micros, now: Micros) -> Answer:
        held = Held(beat.token, beat.lease_id)

        def extended(job: JobRecord) -> JobRecord | None:
            if not held.stands(job):
                return None
            return lifecycle.beat(job, lease=lease, begun=beat.begun, now=now, progress=beat.progress)

        job, written = self.alter(beat.id, extended)
        if not written:
            return refusal(None if job is None else job.state)
        return Answer.CANCEL_REQUESTED if job is not None and job.cancel_requested else Answer.OK

    def end_lease(self, id_: str, owner: str, now: Micros) -> bool:
        """End the lease of an owner that is known to be dead."""

        def ended(job: JobRecord) -> JobRecord | None:
            if job.state is not State.RUNNING or job.lease_owner != owner:
                return None
            return lifecycle.beat(job, lease=0, begun=False, now=now)

        return self.alter(id_, ended)[1]

    def alter(self, id_: str, decide: Decide) -> tuple[JobRecord | None, bool]:
        """Change a job that stays where it is; give the last record seen and whether it was changed."""
        job = self._records.remembered(id_)
        sure = job is None
        if sure:
            job = self._records.fetch_one(id_)
        for _ in range(_TRIES):
            after = None if job is None else decide(job)
            if job is not None and after is not None:
                op = op_token()
                try:
                    self._wire.update(self._records.layout.place(job), self._records.change(job, after, op), op)
                except Failed as failed:
                    self._records.forget(id_)
                    job = self._records.found(failed.parts[0][1]) or self._records.fetch_one(id_)
                    sure = True
                    continue
                self._records.remember(after, self._records.known_steps(job))
                return after, True
            if sure:
                return job, False
            job, sure = self._records.fetch_one(id_), True
        msg = f"The job {id_} in {self._wire.address.shown} is too much in demand; nothing was changed."
        raise StoreUnavailable(msg)
