"""The holder's side of a job, for workers that come by HTTP: decide by the lifecycle, write under the lease's guard.

A worker is known by the token of its lease: the number and the id that a claim gave it. What it asks for is decided on
the record as its holder would know it and written under that guard, so a late worker is refused by the store, and one
that asks again after a lost answer recognises its own write. Callers that come together share reads and commits.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.client.family import listened, tend
from holdfast.client.sharing import Sharing
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ArtifactsUnavailable,
    IllegalMove,
    InsufficientCredits,
)
from holdfast.domain.job import Failure, JobRecord, State, StepRecord
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Held, Move, refusal
from holdfast.port.store import Beat, Claim, Store
from holdfast.runtime.attempt import Attempt
from holdfast.server.problems import Problem, absent, within
from holdfast.server.roll import Roll

ELSEWHERE = 30 * SECOND
"""How long a job is put off that only the workers of its own code can go on with."""
LONGEST_MESSAGE = 200
"""How much is kept of what is said of a failure."""


class Readings(Sharing[str, JobRecord | None]):
    """Reads of single jobs."""

    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    def _write(self, batch: Sequence[str]) -> Sequence[JobRecord | None]:
        return self._store().read(batch)


class Settlements(Sharing[Move, Answer]):
    """Commits of single moves."""

    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    def _write(self, batch: Sequence[Move]) -> Sequence[Answer]:
        return self._store().commit(batch)


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that a worker has claimed, with what it needs to go on where an earlier attempt stopped."""

    job: JobRecord
    payload: str
    steps: Sequence[StepRecord]


class Workbench:
    """Claims and settlements of one server."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        store: Callable[[], Store] = lambda: app.store  # noqa: E731 - opened at its first use
        self._readings = Readings(store)
        self._settlements = Settlements(store)
        self._public: bool | None = None
        self.roll = Roll(store)

    async def read(self, id_: str) -> JobRecord | None:
        """Read one job."""
        return await self._readings.ashare(id_)

    def claim(
        self, owner: str, queues: Sequence[str] | None, limit: int, lease: Micros, tenant: str | None
    ) -> list[Taken]:
        """Lease runnable jobs for a worker (those of one tenant, if it is bound to one), each with its start on record
        if it must be. Blocks.
        """
        store = self._app.store
        wanted = None if queues is None else dict.fromkeys(queues, limit)
        claimed = store.claim(Claim(owner, secrets.token_hex(8), lease, limit, wanted, tenant=tenant))
        opening = [(job, _opening(job)) for job in claimed]
        moves = [move for _, move in opening if move is not None]
        answers = iter(store.commit(moves) if moves else ())
        ours = [job for job, move in opening if move is None or (next(answers) is Answer.OK and _here(job))]
        given = [taken for job in ours if (taken := self._taken(job)) is not None]
        self.roll.takes(owner, [each.job.id for each in given])
        self._count_claimed(given)
        return given

    def _count_claimed(self, given: Sequence[Taken]) -> None:
        metrics = self._app.telemetry.metrics
        if metrics is not None:
            attempts = [Attempt(each.job, None, 0.0) for each in given]
            metrics.claimed(attempts)
            for attempt in attempts:
                metrics.began(attempt)

    def beat(
        self, id_: str, held: Held, lease: Micros, progress: str | None, tenant: str | None
    ) -> tuple[Answer, Micros]:
        """Renew a lease; gives the store's answer and when the lease ends now. Blocks."""
        store = self._app.store
        if tenant is not None:
            within(tenant, id_, *store.read([id_]))
        now = store.now()
        (answer,) = store.heartbeat([Beat(id_, held.token, held.lease_id, begun=True, progress=progress)], lease)
        if answer in (Answer.OK, Answer.CANCEL_REQUESTED):
            self.roll.beats(id_, time.monotonic())
        return answer, now + lease

    def give_back(self, taken: Sequence[Taken]) -> None:
        """Release what a worker claimed that is not there any more. Blocks."""
        self._app.store.commit([lifecycle.release(each.job) for each in taken])
        for each in taken:
            self.roll.settles(each.job.id)

    async def settle(self, id_: str, held: Held, decide: Callable[[JobRecord], Move], tenant: str | None) -> State:
        """Write what a holder decides, giving way to a cancellation; give the state that the job is in then."""
        found = within(tenant, id_, await self.read(id_))
        ours = _as_held(found)
        if (found.token, found.lease_id) != held:
            with suppress(IllegalMove):
                self._count_refused(found, decide(ours), refusal(found.state))
            raise _stale(refusal(found.state))
        move = await self._told(ours, decide(ours))
        answer = await self._settlements.ashare(move)
        if answer is Answer.CANCEL_REQUESTED or (move.yields and found.state is State.CANCELLED):  # as asked before
            move = await self._told(ours, lifecycle.settle_cancel(ours, self._app.settings.retention))
            answer = await self._settlements.ashare(move)
        self._count_refused(found, move, answer)
        accept(answer, id_)
        if move.state is not State.RUNNING:
            self.roll.settles(id_)
            self._count_ended(found, move)
        if move.events:
            await asyncio.to_thread(self._tend, ours, move)
        return move.state

    def _count_refused(self, job: JobRecord, move: Move, answer: Answer) -> None:
        metrics = self._app.telemetry.metrics
        if metrics is not None and answer in (Answer.ALREADY_CLAIMED, Answer.NO_OP_TERMINAL):
            metrics.refused(job, move, answer)

    def _count_ended(self, before: JobRecord, move: Move) -> None:
        """Count the end of an attempt; once, also when its worker asks again."""
        metrics = self._app.telemetry.metrics
        if metrics is not None and before.state is State.RUNNING:
            metrics.settled([(Attempt(before, None, 0.0), move)])

    def fail(self, job: JobRecord, code: str, message: str, *, retryable: bool, traceback: str | None) -> Move:
        """Decide on a failed attempt."""
        failure = Failure(code, message, retryable)
        retention = self._app.settings.retention
        return lifecycle.fail(job, failure, draw=random.random(), retention=retention, traceback=traceback)  # noqa: S311

    async def _told(self, job: JobRecord, move: Move) -> Move:
        if self._public is None:
            self._public = self._app.settings.events or await asyncio.to_thread(lambda: listened(self._app.store))
        return events.told(job, move, public=self._public)

    def _tend(self, job: JobRecord, move: Move) -> None:
        tend(self._app.store, self._app.settings.retention, [(job, move)], public=bool(self._public))

    def _taken(self, job: JobRecord) -> Taken | None:
        """Fetch what a worker needs; a job whose payload cannot be had has failed, and must not hold up others."""
        artifacts = self._app.settings.artifacts
        try:
            steps = self._app.steps(job.id) if job.step_cursor else []
            kept = [
                each._replace(result=None if each.result is None else artifacts.load(each.result)) for each in steps
            ]
            return Taken(job, artifacts.load(job.payload), kept)
        except (ArtifactDamaged, ArtifactMissing, ArtifactsUnavailable) as error:
            retryable = not isinstance(error, ArtifactDamaged)
            move = self.fail(job, error.code, str(error)[:LONGEST_MESSAGE], retryable=retryable, traceback=None)
            self._app.store.commit([move])
            return None


def accept(answer: Answer, id_: str) -> None:
    """Refuse what the store refused."""
    match answer:
        case Answer.OK | Answer.CANCEL_REQUESTED:
            return
        case Answer.ABSENT:
            raise absent(id_)
        case Answer.UNPAID:
            detail = "The tenant's account does not hold the credits that this would spend; nothing was changed."
            raise Problem(402, InsufficientCredits.code.replace("_", "-"), detail)
        case Answer.UNWRITABLE:
            raise Problem(422, "unwritable", "The store cannot keep what this carries; nothing was changed.")
        case _:
            raise _stale(answer)


def _stale(answer: Answer) -> Problem:
    ended = answer is Answer.NO_OP_TERMINAL
    why = "the job has ended" if ended else "the lease is over, and the job may be another worker's by now"
    detail = f"The token is stale: {why}. Nothing was changed; drop this job."
    return Problem(409, "stale-token", detail, reason=answer.value)


def _as_held(job: JobRecord) -> JobRecord:
    """Give a job as the holder of its last lease knows it.

    One that its holder has settled is given as it was before: a holder that asks again, because the answer was lost, is
    told by the store that it was done.
    """
    return job if job.state is State.RUNNING else job._replace(state=State.RUNNING, attempt=max(job.attempt, 1))


def _opening(job: JobRecord) -> Move | None:
    """Decide what must be written before a worker elsewhere begins with a job."""
    if not _here(job):
        return lifecycle.snooze(job, ELSEWHERE)
    return lifecycle.start(job) if lifecycle.must_record_start(job) else None


def _here(job: JobRecord) -> bool:
    """Tell whether a worker that comes by HTTP can go on with a job: undoing steps takes the workflow's own code."""
    return not lifecycle.undoing(job)
