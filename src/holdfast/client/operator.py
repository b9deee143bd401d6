"""All that can be asked of stored jobs, and done to them, without knowing their handlers."""

import secrets
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, overload
from uuid import UUID

from holdfast.client.asynchronous import asynchronous
from holdfast.client.counts import Counts
from holdfast.client.explain import Explanation, explain
from holdfast.client.family import listened, tend
from holdfast.client.governor import Governor
from holdfast.client.job import Job
from holdfast.client.registry import text
from holdfast.client.settings import Settings
from holdfast.client.tokens import Tokens
from holdfast.client.trail import Trail
from holdfast.domain import codec, dialects, events, history, lifecycle, moving
from holdfast.domain.errors import BadInput, IllegalMove, InsufficientCredits, JobNotFound
from holdfast.domain.ids import EVERY, job_id
from holdfast.domain.job import (
    NOTE,
    TERMINAL,
    Account,
    AttemptRecord,
    CreditEntry,
    JobRecord,
    SignalRecord,
    State,
    StepRecord,
)
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Query

LARGEST_PAGE = 1_000
_TRIES = 20


class Operator(Governor):
    """Reads and moves the jobs of one store."""

    settings: Settings

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens that let programs and people in through a server: create, list, revoke, rotate, check."""
        return Tokens(lambda: self.store)

    @cached_property
    def trail(self) -> Trail:
        """What was done to the store through a server or the command line, by whom and when."""
        return Trail(lambda: self.store)

    @abstractmethod
    def _await_result(self, id_: str, timeout: float | timedelta | None) -> object: ...
    @abstractmethod
    async def _aawait_result(self, id_: str, timeout: float | timedelta | None) -> object: ...
    @abstractmethod
    def _fork(self, id_: str, from_step: str) -> Job[Any]: ...
    @abstractmethod
    def _load(self, stored: str) -> str: ...

    def get(self, id: UUID | str) -> Job[Any]:  # noqa: A002 - the job's own word
        """Read one job; raises `JobNotFound`."""
        return Job(self, self._record(job_id(id)))

    def find(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        error_code: str | None = None,
        key: str | None = None,
        parent: UUID | str | None = None,
        before: UUID | str | None = None,
        limit: int = 50,
    ) -> list[Job[Any]]:
        """List jobs by a filter, newest first; `before` continues after the last one of the page before."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            msg = f"limit is a whole number from 1 to {LARGEST_PAGE}, not {limit!r}."
            raise BadInput(msg)
        _require_texts(kind=kind, queue=queue, tenant=tenant, error_code=error_code, key=key)
        query = Query(
            _state(state), kind, queue, tenant, error_code, key, None if before is None else job_id(before), limit,
            None if parent is None else job_id(parent),
        )  # fmt: skip
        return [Job(self, record) for record in self.store.find(query)]

    def counts(self) -> Counts:
        """Count jobs by state, and by queue in `.queues`."""
        return Counts(self.store.counts())

    def explain(self, id: UUID | str) -> Explanation:  # noqa: A002 - the job's own word
        """Say why a job is not running."""
        return explain(self.store, self._record(job_id(id)))

    def attempts(self, id: UUID | str) -> list[AttemptRecord]:  # noqa: A002 - the job's own word
        """List the attempts of a job, oldest first, the running or successful one included."""
        record = self._record(job_id(id))
        last = history.last_attempt(record)
        return self.store.attempts(record.id) + ([last] if last else [])

    def steps(self, id: UUID | str) -> list[StepRecord]:  # noqa: A002 - the job's own word
        """List the recorded steps of a job, in order."""
        found = self.store.steps(self._record(job_id(id)).id)
        return [step for step in found if not step.name.startswith(NOTE)]

    def signals(self, id: UUID | str) -> list[SignalRecord]:  # noqa: A002 - the job's own word
        """List the signals a job was sent, oldest first."""
        found = self.store.signals(self._record(job_id(id)).id)
        return [signal for signal in found if not signal.name.startswith("$")]

    def envelope(self, id: UUID | str) -> dict[str, Any]:  # noqa: A002 - the job's own word
        """Give the eight-field message that stands for the job's next delivery."""
        return dialects.envelope(self._record(job_id(id)))

    def signal(self, id: UUID | str, name: str, payload: Any = True) -> Job[Any]:  # noqa: A002, FBT002
        """Send a job a signal that it waits for now or later (`ctx.wait_for`); a finished job takes none."""
        return Job(self, self._signal(job_id(id), name, payload))

    def fork(self, id: UUID | str, from_step: str) -> Job[Any]:  # noqa: A002 - the job's own word
        """Run a job again as a new one from one of its steps on; the results of the steps before it are kept."""
        return self._fork(job_id(id), from_step)

    def cancel(self, id: UUID | str) -> Job[Any]:  # noqa: A002 - the job's own word
        """Cancel a job and its children: at once while it waits, by asking its worker while it runs; a finished job
        stays as it is.
        """
        return Job(self, self._cancel(job_id(id)))

    @overload
    def redrive(self, id: UUID | str) -> Job[Any]: ...
    @overload
    def redrive(
        self,
        *,
        kind: str | None = ...,
        queue: str | None = ...,
        tenant: str | None = ...,
        error_code: str | None = ...,
        limit: int | None = ...,
    ) -> int: ...
    def redrive(
        self,
        id: Any = EVERY,  # noqa: A002 - the job's own word
        *,
        kind: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        error_code: str | None = None,
        limit: int | None = None,
    ) -> Job[Any] | int:
        """Run a dead job again as a new generation; or every dead job that a filter finds, giving their number."""
        if id is not EVERY:
            return Job(self, self._redrive(job_id(id)))
        _require_texts(kind=kind, queue=queue, tenant=tenant, error_code=error_code)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            msg = f"limit is a whole number of 0 or more, not {limit!r}."
            raise BadInput(msg)
        query = Query(State.DEAD, kind, queue, tenant, error_code, limit=LARGEST_PAGE)
        done = 0
        while limit is None or done < limit:
            page = self.store.find(query if limit is None else query._replace(limit=min(LARGEST_PAGE, limit - done)))
            if not page:
                break
            public = self._public
            answers = self.store.commit([events.told(job, lifecycle.redrive(job), public=public) for job in page])
            done += sum(answer is Answer.OK for answer in answers)
            query = query._replace(before=page[-1].id)
        return done

    def grant(self, tenant: str, credits: int, *, key: str | None = None) -> Account:  # noqa: A002
        """Give a tenant credits, which opens its account; a grant with the same key counts once.

        A negative number takes credits back that are neither spent nor reserved.
        """
        if isinstance(credits, bool) or not isinstance(credits, int) or abs(credits) > codec.MAX_INT // 2:
            msg = f"A grant is a whole number of credits, not {credits!r}."
            raise BadInput(msg)
        account = self.store.grant(
            text(tenant, "tenant"), credits, secrets.token_hex(8) if key is None else text(key, "key")
        )
        if account is None:
            msg = f"The account of tenant {tenant!r} does not hold {-credits} credits to spare; nothing was changed."
            raise InsufficientCredits(msg)
        return account

    def account(self, tenant: str) -> Account | None:
        """Read a tenant's credits; None if it has no account, which turns credits off for it."""
        return self.store.account(text(tenant, "tenant"))

    def accounts(self) -> list[Account]:
        """List all accounts, by tenant."""
        return self.store.accounts()

    def ledger(self, tenant: str, limit: int = 100) -> list[CreditEntry]:
        """List the changes of a tenant's account, newest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= codec.MAX_INT:
            msg = f"limit is a whole number of 1 or more, not {limit!r}."
            raise BadInput(msg)
        return self.store.entries(text(tenant, "tenant"), limit)

    def _record(self, id_: str) -> JobRecord:
        (record,) = self.store.read([id_])
        if record is None:
            msg = f"There is no job {id_}; it may have been purged."
            raise JobNotFound(msg)
        return record

    def _cancel(self, id_: str) -> JobRecord:
        return self._decide(id_, lambda job: lifecycle.cancel(job, self.settings.retention), done=TERMINAL)

    def _redrive(self, id_: str) -> JobRecord:
        return self._decide(id_, lifecycle.redrive, done=frozenset(State) - TERMINAL)

    def _signal(self, id_: str, name: str, payload: Any) -> JobRecord:
        text(name, "signal")
        if name.startswith("$"):
            msg = f"The names of signals do not begin with '$'; {name!r} does."
            raise BadInput(msg)
        body = codec.encode(payload, f"The payload of signal {name!r}", self.settings.max_payload)
        sent = secrets.token_hex(8)
        if self._record(id_).state is State.CREATED:
            self._decide(id_, lifecycle.submit, done=frozenset(State) - {State.CREATED})

        def verb(job: JobRecord) -> Move:
            try:
                return lifecycle.signal(job, sent, name, body)
            except IllegalMove as refused:
                why = refused if lifecycle.undoing(job) else f"It is {job.state}."
                msg = f"Job {id_} takes no signals any more. {why}"
                raise IllegalMove(msg, reason=refused.reason) from refused

        return self._decide(id_, verb, done=frozenset())

    def _decide(self, id_: str, verb: Callable[[JobRecord], Move], *, done: frozenset[State]) -> JobRecord:
        """Decide on what is stored and write it, again if somebody else wrote in between; a job already `done`, or on
        its way to an end, stays as it is.
        """
        for _ in range(_TRIES):
            record = self._record(id_)
            if record.state in done or (done == TERMINAL and _ends(record)):
                return record
            move = self._told(record, verb(record))
            if self.store.commit([move]) == [Answer.OK]:
                if move.events:
                    tend(self.store, self.settings.retention, [(record, move)], public=self._public)
                return self._record(id_)
        msg = f"Job {id_} kept changing while it was being changed; try again."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)

    def _told(self, job: JobRecord, move: Move) -> Move:
        return events.told(job, move, public=self._public)

    @property
    def _public(self) -> bool:
        """Whether somebody listens: a sink that is declared here, or one that workers have registered."""
        return self.settings.events or listened(self.store)

    aget = asynchronous(get)
    afind = asynchronous(find)
    acounts = asynchronous(counts)
    aexplain = asynchronous(explain)
    aattempts = asynchronous(attempts)
    asteps = asynchronous(steps)
    asignals = asynchronous(signals)
    asignal = asynchronous(signal)
    afork = asynchronous(fork)
    acancel = asynchronous(cancel)
    aenvelope = asynchronous(envelope)
    aredrive = asynchronous(redrive)
    agrant = asynchronous(grant)
    aaccount = asynchronous(account)
    aaccounts = asynchronous(accounts)
    aledger = asynchronous(ledger)


def _ends(job: JobRecord) -> bool:
    return (job.cancel_requested and job.state is State.RUNNING) or (lifecycle.undoing(job) and not moving.held(job))


def _require_texts(**filters: str | None) -> None:
    for name, value in filters.items():
        if value is not None and not _is_storable(value):
            msg = f"{name}= takes text, not {value!r:.60}."
            raise BadInput(msg)


def _is_storable(value: object) -> bool:
    """Tell whether this is a text that a store can be asked for: no store has the others, and some fall over them."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a character
        return False
    return True


def _state(value: str | None) -> State | None:
    try:
        return None if value is None else State(value)
    except ValueError:
        msg = f"{value!r} is not a state; the states are {', '.join(State)}."
        raise BadInput(msg) from None
