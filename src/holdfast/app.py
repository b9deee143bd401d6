"""`Holdfast`: the one object an application makes. It registers kinds, enqueues jobs, answers questions about them
and runs workers.
"""

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, overload
from uuid import UUID

from holdfast.client.asynchronous import asynchronous
from holdfast.client.collector import uncollected
from holdfast.client.counts import Counts
from holdfast.client.decorator import JobDecorator, checked_defaults
from holdfast.client.explain import Explanation, explain
from holdfast.client.function import JobFunction, Prepared
from holdfast.client.inserter import Inserter
from holdfast.client.job import Job
from holdfast.client.options import Options
from holdfast.client.registry import JobHandler, Registry, handler_function, kind_of, text
from holdfast.client.settings import settings
from holdfast.domain import codec, dialects, lifecycle
from holdfast.domain.errors import BadInput, BadPayload, IllegalMove, JobCancelled, JobDead, JobNotFound, ResultTimeout
from holdfast.domain.ids import Ids, job_id
from holdfast.domain.job import TERMINAL, AttemptRecord, JobRecord, Retention, State
from holdfast.domain.lifecycle import Answer, Move
from holdfast.port.clock import Clock, SystemClock
from holdfast.port.store import Inserted, InsertGroup, Query, Store
from holdfast.runtime.delivery import Delivery
from holdfast.runtime.executor import Executor
from holdfast.runtime.service import Service, worker_id
from holdfast.stores import open_store

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_CONCURRENCY = 20
LARGEST_PAGE = 1_000
_FIRST_LOOK, _LAST_LOOK = 0.002, 0.05
_TRIES = 20


class Holdfast:
    """An application's jobs.

    `url` says where they are kept; without one it is `HOLDFAST_URL`, or else a file `holdfast.db` in this folder.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        lease: float | timedelta = 15,
        heartbeat: float | timedelta | None = None,
        grace: float | timedelta = 30,
        upkeep: float | timedelta = 1,
        unknown_kind_grace: float | timedelta = 60,
        max_payload: int = codec.MAX_BYTES,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self.registry = Registry()
        self.settings = settings(
            lease=lease,
            heartbeat=heartbeat,
            grace=grace,
            upkeep=upkeep,
            unknown_kind_grace=unknown_kind_grace,
            max_payload=max_payload,
            retention=retention,
        )
        self.max_payload = self.settings.max_payload
        self._clock = clock or SystemClock()
        self._given_clock = clock
        self._lock = threading.Lock()
        self._opened: Store | None = None
        self._inserter: Inserter | None = None
        self._pid = 0

    @property
    def job(self) -> JobDecorator:
        """Decorate a function as a kind of job: `@app.job`, or `@app.job(queue=..., retry=..., timeout=...)`."""
        return JobDecorator(self, {})

    def register(self, name: str, handler: type[JobHandler], **defaults: Any) -> JobFunction[..., Any]:
        """Register a handler class under a kind; takes the same defaults as `@app.job`."""
        return self._decorated(handler_function(name, handler), **checked_defaults(name=name, **defaults))

    def _decorated(
        self, fn: Callable[..., Any], *, name: str | None = None, run_in: Any = None, **defaults: Any
    ) -> JobFunction[..., Any]:
        kind = self.registry.add(kind_of(fn, name, run_in, **defaults))
        return JobFunction(self, kind, fn, Options())

    def enqueue(self, kind: str, payload: Mapping[str, Any] | str, **options: Any) -> Job[Any]:
        """Store a job by its kind's name, with the payload as JSON text or as a mapping; options as in `using`."""
        return self._enqueue(self.prepare(kind, payload, **options))

    async def aenqueue(self, kind: str, payload: Mapping[str, Any] | str, **options: Any) -> Job[Any]:
        """Asynchronous twin of `enqueue`."""
        return await self._aenqueue(self.prepare(kind, payload, **options))

    def prepare(self, kind: str, payload: Mapping[str, Any] | str, **options: Any) -> Prepared:
        """Validate a job by its kind's name, to be enqueued later."""
        known = self.registry[kind]
        if not isinstance(payload, str):
            payload = codec.encode(_mapping(payload, kind), f"The payload of {kind}", self.max_payload)
        chosen = Options().having(**options)
        return Prepared(chosen.new_job(known, known.binder.check(payload, self.max_payload)), chosen.connection)

    def enqueue_many(self, prepared: Iterable[Prepared]) -> list[Job[Any]]:
        """Store many prepared jobs in one batch, all or none."""
        batch = self._batch(prepared)
        with uncollected(len(batch)):
            return self._handles(self._inserting().insert(batch)) if batch else []

    async def aenqueue_many(self, prepared: Iterable[Prepared]) -> list[Job[Any]]:
        """Asynchronous twin of `enqueue_many`."""
        batch = self._batch(prepared)
        return self._handles(await self._inserting().ainsert(batch)) if batch else []

    def _batch(self, prepared: Iterable[Prepared]) -> list[Any]:
        batch = list(prepared)
        if not all(isinstance(one, Prepared) for one in batch):
            msg = "enqueue_many takes prepared jobs: [add.prepare(1, 2), ...]."
            raise BadInput(msg)
        if any(one.connection is not None for one in batch):
            msg = "Jobs for the caller's own transaction are enqueued one by one: using(connection=...).enqueue(...)."
            raise BadInput(msg)
        return [one.new for one in batch]

    def _enqueue(self, prepared: Prepared) -> Job[Any]:
        inserter = self._inserting()
        if prepared.connection is not None:
            return self._handles(self._insert_on(prepared, inserter))[0]
        return self._handles(inserter.insert((prepared.new,)))[0]

    async def _aenqueue(self, prepared: Prepared) -> Job[Any]:
        inserter = self._inserting()
        if prepared.connection is not None:
            group = self._guest_group(prepared, inserter)
            return self._handles(await self.store.ainsert_on(prepared.connection, group))[0]
        return self._handles(await inserter.ainsert((prepared.new,)))[0]

    def _insert_on(self, prepared: Prepared, inserter: Inserter) -> list[Inserted]:
        return self.store.insert_on(prepared.connection, self._guest_group(prepared, inserter))

    def _guest_group(self, prepared: Prepared, inserter: Inserter) -> InsertGroup:
        if not self.store.capabilities.caller_transactions:
            msg = f"The store {self.url} cannot enqueue inside a caller's transaction."
            raise BadInput(msg)
        return inserter.group((prepared.new,))

    def _handles(self, inserted: Sequence[Inserted]) -> list[Job[Any]]:
        return [Job(self, one) for one in inserted]

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
        before: UUID | str | None = None,
        limit: int = 50,
    ) -> list[Job[Any]]:
        """List jobs by a filter, newest first; `before` continues after the last one of the page before."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            msg = f"limit is a whole number from 1 to {LARGEST_PAGE}, not {limit!r}."
            raise BadInput(msg)
        query = Query(
            _state(state), kind, queue, tenant, error_code, key, None if before is None else job_id(before), limit
        )
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
        last = lifecycle.last_attempt(record)
        return self.store.attempts(record.id) + ([last] if last else [])

    def envelope(self, id: UUID | str) -> dict[str, Any]:  # noqa: A002 - the job's own word
        """Give the eight-field message that stands for the job's next delivery."""
        return dialects.envelope(self._record(job_id(id)))

    def cancel(self, id: UUID | str) -> Job[Any]:  # noqa: A002 - the job's own word
        """Cancel a job: at once while it waits, by asking its worker while it runs; a finished job stays as it is."""
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
        id: UUID | str | None = None,  # noqa: A002 - the job's own word
        *,
        kind: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        error_code: str | None = None,
        limit: int | None = None,
    ) -> Job[Any] | int:
        """Run a dead job again as a new generation; or every dead job that a filter finds, giving their number."""
        if id is not None:
            return Job(self, self._redrive(job_id(id)))
        query = Query(State.DEAD, kind, queue, tenant, error_code, limit=LARGEST_PAGE)
        done = 0
        while limit is None or done < limit:
            page = self.store.find(query if limit is None else query._replace(limit=min(LARGEST_PAGE, limit - done)))
            if not page:
                break
            answers = self.store.commit([lifecycle.redrive(job) for job in page])
            done += sum(answer is Answer.OK for answer in answers)
            query = query._replace(before=page[-1].id)
        return done

    def pause(self, queue: str) -> None:
        """Let no worker claim from a queue."""
        self.store.pause(text(queue, "queue"))

    def resume(self, queue: str) -> None:
        """Let workers claim from a queue again."""
        self.store.resume(text(queue, "queue"))

    def paused(self) -> frozenset[str]:
        """Name the paused queues."""
        return self.store.paused()

    def service(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        worker_id: str | None = None,
    ) -> Service:
        """Make a worker that can be run and stopped; `run_worker` is the short way."""
        slots = DEFAULT_CONCURRENCY if concurrency is None else concurrency
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            msg = f"concurrency is a whole number of 1 or more, not {concurrency!r}."
            raise BadInput(msg)
        return Service(
            open_store=self._open_another,
            registry=self.registry,
            settings=self.settings,
            clock=self._clock,
            queues=_queues(queues),
            concurrency=slots,
            id=worker_id,
        )

    def run_worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        until_idle: bool = False,
    ) -> None:
        """Work until SIGTERM or SIGINT; or, `until_idle`, until nothing is running or comes due within a second.

        `queues` names the queues to serve (all, if not given), or maps each to the most jobs of it that may run here
        at once.
        """
        self.service(queues=queues, concurrency=concurrency).run(until_idle=until_idle)

    def process(self, envelope: str | bytes | Mapping[str, Any]) -> str:
        """Process one delivery: "claimed", "already-claimed" or "no-op-terminal"."""
        delivery = Delivery(
            self.store,
            self.registry,
            self.settings,
            Executor(self.settings, random.random, self.store.transaction),
            self._clock,
            worker_id(),
            lambda: secrets.token_hex(8),
        )
        return delivery.process(dialects.read_envelope(envelope))

    @property
    def store(self) -> Store:
        """The store, opened at its first use."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = open_store(self.url, self._given_clock)
        return self._opened

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
            self._opened = self._inserter = None

    def _open_another(self) -> Store:
        """Open a further connection for a worker's own thread; stores that one process keeps are shared instead."""
        unopened = self._opened is None and not self.url.startswith("memory:")
        if unopened or self.store.capabilities.shared:
            return open_store(self.url, self._given_clock)
        return self.store

    def _inserting(self) -> Inserter:
        if self._inserter is None or self._pid != os.getpid():
            store = self.store
            with self._lock:
                if self._inserter is None or self._pid != os.getpid():
                    ids = Ids(lambda: self._clock.now() // 1000, random.Random().getrandbits)  # noqa: S311 - ids are names, not secrets
                    self._inserter = Inserter(store, ids)
                    self._pid = os.getpid()
        return self._inserter

    def _record(self, id_: str) -> JobRecord:
        (record,) = self.store.read([id_])
        if record is None:
            msg = f"There is no job {id_}; it may have been purged."
            raise JobNotFound(msg)
        return record

    def _await_result(self, id_: str, timeout: float | None) -> object:
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        while (record := self._record(id_)).state not in TERMINAL:
            if end is not None and time.monotonic() + pause > end:
                if time.monotonic() >= end:
                    msg = f"Job {id_} is still {record.state} after {timeout} s."
                    raise ResultTimeout(msg)
                pause = max(end - time.monotonic(), 0.0)
            threading.Event().wait(pause)
            pause = min(max(pause, _FIRST_LOOK) * 1.5, _LAST_LOOK)
        if record.state is State.CANCELLED:
            msg = f"Job {id_} was cancelled."
            raise JobCancelled(msg)
        if record.state is State.DEAD:
            msg = f"Job {id_} is dead ({record.cause}): {record.failure_code}, {record.failure_message}."
            raise JobDead(msg)
        if record.result is None:
            return None
        kind = self.registry.get(record.kind)
        return codec.decode(record.result) if kind is None else kind.read_result(record.result)

    def _cancel(self, id_: str) -> JobRecord:
        return self._decide(id_, lambda job: lifecycle.cancel(job, self.settings.retention), done=TERMINAL)

    def _redrive(self, id_: str) -> JobRecord:
        return self._decide(id_, lifecycle.redrive, done=frozenset(State) - TERMINAL)

    def _decide(self, id_: str, verb: Callable[[JobRecord], Move], *, done: frozenset[State]) -> JobRecord:
        """Decide on what is stored and write it, again if somebody else wrote in between; a job already `done` stays
        as it is.
        """
        for _ in range(_TRIES):
            record = self._record(id_)
            if record.state in done or (record.cancel_requested and record.state is State.RUNNING):
                return record
            if self.store.commit([verb(record)]) == [Answer.OK]:
                return self._record(id_)
        msg = f"Job {id_} kept changing while it was being changed; try again."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)

    aget = asynchronous(get)
    afind = asynchronous(find)
    acounts = asynchronous(counts)
    aexplain = asynchronous(explain)
    aattempts = asynchronous(attempts)
    acancel = asynchronous(cancel)
    apause = asynchronous(pause)
    aresume = asynchronous(resume)
    apaused = asynchronous(paused)
    aenvelope = asynchronous(envelope)
    aprocess = asynchronous(process)
    aredrive = asynchronous(redrive)


def _mapping(payload: Any, kind: str) -> dict[str, Any]:
    if not isinstance(payload, Mapping):
        msg = f"The payload of {kind} is JSON text or a mapping, not {type(payload).__name__}."
        raise BadPayload(msg)
    return dict(payload)


def _state(value: str | None) -> State | None:
    try:
        return None if value is None else State(value)
    except ValueError:
        msg = f"{value!r} is not a state; the states are {', '.join(State)}."
        raise BadInput(msg) from None


def _queues(value: Sequence[str] | Mapping[str, int | None] | None) -> dict[str, int | None] | None:
    if value is None:
        return None
    if isinstance(value, str):
        msg = f"queues takes a list of names, not the text {value!r}; write queues=[{value!r}]."
        raise BadInput(msg)
    named = dict(value) if isinstance(value, Mapping) else dict.fromkeys(value)
    for name, most in named.items():
        text(name, "queue")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            msg = f"The queue {name!r} may run a whole number of 1 or more jobs at once, not {most!r}."
            raise BadInput(msg)
    if not named:
        msg = "queues is empty; leave it out to serve every queue."
        raise BadInput(msg)
    return named
