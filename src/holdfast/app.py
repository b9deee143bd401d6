"""`Holdfast`: the one object an application makes. It registers kinds, enqueues jobs, answers questions about them
and runs workers.
"""

import math
import os
import random
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from holdfast.client.artifacts import Artifacts, default_url
from holdfast.client.asynchronous import asynchronous, in_thread, pause
from holdfast.client.collector import uncollected
from holdfast.client.decorator import WORKFLOW, JobDecorator, chosen_defaults, require_steps
from holdfast.client.drops import Drops
from holdfast.client.forking import forked
from holdfast.client.function import JobFunction, Prepared, listed, series
from holdfast.client.hooks import Hooks
from holdfast.client.inserter import Inserter
from holdfast.client.job import Job
from holdfast.client.operator import Operator
from holdfast.client.options import Options, served
from holdfast.client.payload import mapping
from holdfast.client.pipeline import Step, pipeline_function
from holdfast.client.registry import JobHandler, Registry, handler_function, kind_of, text
from holdfast.client.results import Patience, result_of
from holdfast.client.schedules import Schedules
from holdfast.client.settings import settings
from holdfast.client.sinks import JsonLines, Sinks, Webhook
from holdfast.client.sinks.signature import SIGNATURE, TOLERANCE
from holdfast.domain import codec, dialects, lifecycle
from holdfast.domain.errors import BadInput, IllegalMove, InsufficientCredits, KeyConflict
from holdfast.domain.job import TERMINAL, JobRecord, NewJob, Retention
from holdfast.domain.move import Answer
from holdfast.domain.redaction import Redaction
from holdfast.port.clock import Clock, SystemClock
from holdfast.port.process import PROCESS
from holdfast.port.shelter import SHELTER
from holdfast.port.store import Inserted, InsertGroup, Store
from holdfast.runtime.telemetry.choice import Telemetry
from holdfast.stores import anchored, open_store

if TYPE_CHECKING:
    from holdfast.runtime.delivery import Delivery
    from holdfast.runtime.service import Service

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_CONCURRENCY = 20
MAX_CONCURRENCY = 100_000
_TRIES = 20
_APART = "The jobs of a batch are stored together: prepare all of them with the same connection, or none."
_DEBOUNCED = "Debounced jobs are enqueued one by one: using(key=..., debounce=...).enqueue(...)."


class Holdfast(Operator):
    """An application's jobs.

    `url` says where they are kept; without one it is `HOLDFAST_URL`, or else a file `holdfast.db` in this folder: that
    of this moment, whatever folder the process is in later on.
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
        artifacts: str | None = None,
        events: bool = False,
        redaction: Redaction | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(url, str | None):
            msg = f"A store URL is text, like {DEFAULT_URL!r}, not {url!r}."
            raise BadInput(msg)
        self.url = url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self._place = anchored(self.url)
        self.registry = Registry()
        self.settings = settings(
            lease=lease,
            heartbeat=heartbeat,
            grace=grace,
            upkeep=upkeep,
            unknown_kind_grace=unknown_kind_grace,
            max_payload=max_payload,
            retention=retention,
            artifacts=Artifacts(artifacts or default_url(self.url), max_payload, clock=clock),
            events=events,
            redaction=redaction,
        )
        self.max_payload = self.settings.artifacts.largest
        """The largest payload that is taken, in bytes of JSON; what a record cannot hold goes to the artifacts."""
        self.telemetry = Telemetry(self.registry, self.settings.redaction, lambda: self.store)
        """What this process tells about its jobs: nothing, until `instrument` is called."""
        self._clock, self._given_clock = clock or SystemClock(), clock
        self.schedules = Schedules(lambda: self.store, self._enqueue, self._clock.now)
        """The stored schedules: list, add, pause, resume, run and remove them."""
        self.sinks = Sinks()
        """The sinks that were declared with `sink`."""
        self.drops = Drops()
        """The drops that were declared with `drop`."""
        self.hooks = Hooks(lambda: self.store, self._enqueue, self._clock.now)
        """The hooks that were declared with `hook`, and what receives requests to them."""
        self._lock = threading.Lock()
        self._opened: Store | None = None
        self._inserter: Inserter | None = None
        self._pid = 0

    @property
    def job(self) -> JobDecorator:
        """Decorate a function as a kind of job: `@app.job`, or `@app.job(queue=..., retry=..., timeout=...)`."""
        return JobDecorator(self, {})

    @property
    def workflow(self) -> JobDecorator:
        """Decorate a function with durable steps: `@app.workflow`, with the options of `@app.job`.

        It takes a parameter `ctx: Context` and calls `ctx.step`, `ctx.sleep`, `ctx.wait_for` and `ctx.gather`.
        """
        return JobDecorator(self, {}, WORKFLOW)

    def pipeline(self, name: str, steps: Sequence[Callable[..., Any] | Step], **defaults: Any) -> JobFunction[..., Any]:
        """Make a kind of job of an ordered list of functions; takes the same defaults as `@app.job`.

        Each gets the payload, the results of the steps before it by name, and the context, as far as it takes them.
        """
        fn, links = pipeline_function(text(name, "kind"), steps)
        require_steps(fn, defaults.get("run_in"))
        return self._decorated(fn, links=tuple(links), **chosen_defaults("app.pipeline", name=name, **defaults))

    def register(self, name: str, handler: type[JobHandler], **defaults: Any) -> JobFunction[..., Any]:
        """Register a handler class under a kind; takes the same defaults as `@app.job`."""
        chosen = chosen_defaults("app.register", name=name, **defaults)
        return self._decorated(handler_function(name, handler), **chosen)

    def _decorated(
        self, fn: Callable[..., Any], *, name: str | None = None, run_in: Any = None, **defaults: Any
    ) -> JobFunction[..., Any]:
        kind = self.registry.add(kind_of(fn, name, run_in, **defaults))
        return JobFunction(self, kind, fn, Options())

    def schedule(
        self,
        name: str,
        prepared: Prepared,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        catch_up: Literal["skip", "once", "all"] = "skip",
    ) -> None:
        """Have workers enqueue a prepared job by a cron line, read in a time zone, or every so many seconds.

        `catch_up` says what is done about times that no worker was there for: nothing, one job for all, or one each.
        """
        self.schedules.declare(name, prepared, cron=cron, every=every, tz=tz, catch_up=catch_up)

    def sink(
        self,
        name: str,
        target: Callable[[Any], Any] | JsonLines | Webhook,
        *,
        batch: bool = False,
        names: Iterable[str] | None = None,
        max_tries: int | None = None,
    ) -> None:
        """Have workers deliver events to a function, a file of JSON lines or a webhook; turns events on.

        `batch` gives a function lists of events; `names` leaves out events of other names; an event that was refused
        `max_tries` times is passed over.
        """
        self.sinks.add(name, target, batch=batch, names=names, max_tries=max_tries)
        self.settings = replace(self.settings, events=True)

    def drop(
        self,
        name: str,
        job: JobFunction[..., Any],
        *,
        watch: str | os.PathLike[str],
        pattern: str = "*",
        every: float | timedelta = 5,
        settle: float | timedelta = 2,
    ) -> None:
        """Have workers enqueue a job for each new file of a folder, or object of a URL that fsspec knows.

        They look every so many seconds, and take what fits the pattern and has not changed for `settle` seconds. The
        job is given the fields of `Dropped`.
        """
        self.drops.declare(name, job, watch=watch, pattern=pattern, every=every, settle=settle)

    def hook(
        self,
        name: str,
        job: JobFunction[..., Any],
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        secret_env: str | None = None,
        tolerance: float | timedelta = TOLERANCE,
        header: str = SIGNATURE,
    ) -> None:
        """Have signed requests to `/v1/hooks/<name>` enqueue a job, with the body as its payload.

        `secret` is what the sender signs with (several while it is changed), or `secret_env` names the variable that
        holds it; `tolerance` is how many seconds the signature's time may be from this clock's.
        """
        self.hooks.declare(name, job, secret=secret, secret_env=secret_env, tolerance=tolerance, header=header)

    def instrument(
        self, *, metrics: bool = False, tracing: Any = False, sentry: bool = False, logs: bool = False
    ) -> None:
        """Have this process tell about its jobs: to Prometheus, OpenTelemetry and Sentry, and on its handlers' logs.

        `tracing` is True, or a tracer provider to use in place of the global one. Call it before anything is enqueued
        or run; what is on stays on.
        """
        self.telemetry.turn_on(metrics=metrics, tracing=tracing, sentry=sentry, logs=logs)
        self._inserter = None

    def enqueue(self, kind: str, payload: Mapping[str, Any] | BaseModel | str, **options: Any) -> Job[Any]:
        """Store a job by its kind's name, the payload as a mapping, a model or JSON text; options as in `using`."""
        return self._enqueue(self.prepare(kind, payload, **options))

    async def aenqueue(self, kind: str, payload: Mapping[str, Any] | BaseModel | str, **options: Any) -> Job[Any]:
        """Asynchronous twin of `enqueue`."""
        return await self._aenqueue(self.prepare(kind, payload, **options))

    def prepare(self, kind: str, payload: Mapping[str, Any] | BaseModel | str, **options: Any) -> Prepared:
        """Validate a job by its kind's name, to be enqueued later."""
        known = self.registry[kind]
        if not isinstance(payload, str):
            payload = codec.encode(mapping(payload, kind), f"The payload of {kind}", self.max_payload)
        chosen = Options().having(**options)
        new = chosen.new_job(known, known.binder.check(payload, self.max_payload))
        return Prepared(new, chosen.connection, chosen.debounce)

    def enqueue_many(self, prepared: Iterable[Prepared]) -> list[Job[Any]]:
        """Store many prepared jobs in one batch, all or none; those prepared with a connection, in its transaction."""
        given = listed(prepared)
        with uncollected(len(given)):
            batch, connection, large = self._batch(given)
            if connection is not None:
                return self._enqueue_on(connection, batch)
            insert = self._insert_large if large else Inserter.insert
            return self._handles(insert(self._inserting(), batch)) if batch else []

    async def aenqueue_many(self, prepared: Iterable[Prepared]) -> list[Job[Any]]:
        """Asynchronous twin of `enqueue_many`."""
        batch, connection, large = await in_thread(lambda: self._batch(listed(prepared)))
        if connection is not None:
            return await self._aenqueue_on(connection, batch)
        if large:
            return self._handles(await in_thread(self._insert_large, self._inserting(), batch))
        return self._handles(await self._inserting().ainsert(batch)) if batch else []

    def _batch(self, batch: Sequence[Prepared]) -> tuple[Sequence[NewJob], Any, bool]:
        """Give the jobs of a batch, the connection that they share, and whether some are too large for a record."""
        together = batch[0].connection if batch else None
        for shape in {id(shape): shape for shape in [one.shape for one in batch]}.values():
            if shape.connection is not together or shape.debounce is not None:
                raise BadInput(_APART if shape.connection is not together else _DEBOUNCED)
        jobs, large = series(batch), not self.settings.artifacts.fit([one.payload for one in batch])
        return [self._kept(new) for new in jobs] if large else jobs, together, large

    def _enqueue(self, prepared: Prepared) -> Job[Any]:
        inserter, shape, new = self._inserter, prepared.shape, prepared.new
        if inserter is None or self._pid != PROCESS.id:
            inserter = self._inserting()
        if shape.connection is not None:
            return self._enqueue_on(shape.connection, (self._kept(new),))[0]
        fits = self.settings.artifacts.fits(new.payload)
        stored = inserter.insert_one(new) if fits else self._insert_large(inserter, [self._kept(new)])[0]
        job: Job[Any] = Job(self, stored)
        return job if shape.debounce is None or not job.duplicate else self._debounced(prepared, job)

    async def _aenqueue(self, prepared: Prepared) -> Job[Any]:
        inserter, new = self._inserting(), prepared.new
        if not self.settings.artifacts.fits(new.payload):
            if prepared.connection is None:
                return await in_thread(self._enqueue, prepared)
            new = await in_thread(self._kept, new)
        if prepared.connection is not None:
            return (await self._aenqueue_on(prepared.connection, (new,)))[0]
        job: Job[Any] = Job(self, (await inserter.ainsert((new,)))[0])
        if prepared.debounce is None or not job.duplicate:
            return job
        return await in_thread(self._debounced, prepared, job)

    def _kept(self, new: NewJob) -> NewJob:
        """Put a payload that is too large for a record where large ones are kept."""
        artifacts = self.settings.artifacts
        if artifacts.fits(new.payload):
            return new
        return new._replace(payload=artifacts.keep(new.payload, f"The payload of {new.kind}"))

    def _insert_large(self, inserter: Inserter, batch: Sequence[NewJob]) -> list[Inserted]:
        """Store jobs whose payloads lie outside the store; what no stored job refers to is removed again."""
        artifacts = self.settings.artifacts
        try:
            inserted = inserter.insert(batch)
        except (KeyConflict, InsufficientCredits):
            artifacts.forget([new.payload for new in batch])
            raise
        pairs = zip(inserted, batch, strict=True)
        artifacts.forget([new.payload for one, new in pairs if one.duplicate and one.job.payload != new.payload])
        return inserted

    def _debounced(self, prepared: Prepared, job: Job[Any]) -> Job[Any]:
        """Put off the job that is waiting under the same key; if it has begun meanwhile, another takes its place."""
        assert prepared.debounce is not None
        for _ in range(_TRIES):
            try:
                (answer,) = self.store.commit([lifecycle.postpone(job.record, prepared.debounce)])
            except IllegalMove:
                answer = Answer.ALREADY_CLAIMED
            if answer is Answer.OK:
                return job.refresh()
            (job,) = self._handles(self._inserting().insert((self._kept(prepared.new),)))
            if not job.duplicate:
                return job
        msg = f"Job {job.id} kept changing while it was being put off; try again."
        raise IllegalMove(msg, reason=Answer.ALREADY_CLAIMED)

    def _enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Job[Any]]:
        with self.telemetry.enqueuing(jobs) as sent:
            return self._handles(self.store.insert_on(connection, self._guest_group(sent)))

    async def _aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Job[Any]]:
        with self.telemetry.enqueuing(jobs) as sent:
            return self._handles(await self.store.ainsert_on(connection, self._guest_group(sent)))

    def _guest_group(self, jobs: Sequence[NewJob]) -> InsertGroup:
        if not self.store.capabilities.caller_transactions:
            msg = f"The store {self.url} cannot enqueue inside a caller's transaction."
            raise BadInput(msg)
        return self._inserting().group(jobs)

    def _handles(self, inserted: Sequence[Inserted]) -> list[Job[Any]]:
        return [Job(self, one) for one in inserted]

    def _fork(self, id_: str, from_step: str) -> Job[Any]:
        record = self._record(id_)
        kind = self.registry.get(record.kind, record.code_version)
        new = forked(
            record, self.store.steps(id_), from_step, () if kind is None else [link.name for link in kind.links]
        )
        new = new._replace(
            payload=self._own(new.payload), steps=tuple((name, self._own(result)) for name, result in new.steps)
        )
        return self._handles(self._inserting().insert((new,)))[0]

    def _own(self, stored: Any) -> Any:
        """Give another job a copy of its own of what lies outside the store."""
        artifacts = self.settings.artifacts
        return stored if stored is None or not codec.reference(stored) else artifacts.put(artifacts.load(stored))

    def _load(self, stored: str) -> str:
        return self.settings.artifacts.load(stored)

    def service(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        worker_id: str | None = None,
    ) -> "Service":
        """Make a worker that can be run and stopped; `run_worker` is the short way."""
        from holdfast.runtime.service import Service

        slots = DEFAULT_CONCURRENCY if concurrency is None else concurrency
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= MAX_CONCURRENCY:
            msg = f"concurrency is a whole number of 1 or more, and at most {MAX_CONCURRENCY:,}, not {concurrency!r}."
            raise BadInput(msg)
        return Service(
            open_store=self._open_another,
            registry=self.registry,
            settings=self.settings,
            clock=self._clock,
            queues=served(queues),
            concurrency=slots,
            id=worker_id,
            declared=self.schedules.declared,
            rules=self.limits.declared,
            sinks=self.sinks,
            watch=self.telemetry.of_worker(),
            drops=self.drops,
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
        return self.delivery().process(dialects.read_envelope(envelope))

    def delivery(self, *, within: float = math.inf) -> "Delivery":
        """Make what processes deliveries; a handler that still runs after `within` seconds gives its job back."""
        from holdfast.runtime.delivery import Delivery
        from holdfast.runtime.executor import Executor
        from holdfast.runtime.hands import Hands
        from holdfast.runtime.service import worker_id

        watch, ids, draw = self.telemetry.watch, self._inserting().take, random.random
        hands = Hands(self.store, self.registry, self.settings, draw, ids, watch=watch)
        return Delivery(
            self.store,
            self.registry,
            self.settings,
            Executor(self.settings, draw, self.store.transaction, hands, watch),
            self._clock,
            worker_id(),
            lambda: secrets.token_hex(8),
            self._clock.monotonic() + within,
        )

    def sweep(self, *, within: float = 10) -> None:
        """Do once what workers do beside their jobs, unless another process is at it: take back lost jobs, fire
        schedules, purge; then deliver events, for `within` seconds at the most. For places where no worker stays up.
        """
        from holdfast.runtime.sweeping import sweep

        settings, insert = replace(self.settings, events=self._public), self._inserting().insert
        declared, sinks, clock = self.schedules.declared, self.sinks, self._clock
        sweep(self.store, settings, insert, declared, sinks=sinks, clock=clock, within=within)

    @property
    def store(self) -> Store:
        """The store, opened at its first use."""
        if self._opened is None:
            with SHELTER, self._lock:
                if self._opened is None:
                    self._opened = open_store(self._place, self._given_clock)
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
            return open_store(self._place, self._given_clock)
        return self.store

    def _inserting(self) -> Inserter:
        if self._inserter is None or self._pid != PROCESS.id:
            store = self.store
            with SHELTER, self._lock:
                if self._inserter is None or self._pid != PROCESS.id:
                    self._inserter = Inserter(store, self._clock, self.telemetry.watch)
                    self._pid = PROCESS.id
        return self._inserter

    def _await_result(self, id_: str, timeout: float | timedelta | None) -> object:
        patience = Patience(timeout)
        while (record := self._record(id_)).state not in TERMINAL:
            threading.Event().wait(self._pause(record, patience))
        return result_of(record, self.registry, self._load)

    async def _aawait_result(self, id_: str, timeout: float | timedelta | None) -> object:
        """Wait without a thread: those of an event loop are few, and a wait that is given up must not keep one."""
        patience = Patience(timeout)
        while (record := await in_thread(self._record, id_)).state not in TERMINAL:
            await pause(self._pause(record, patience))
        return await in_thread(result_of, record, self.registry, self._load)

    def _pause(self, record: JobRecord, patience: Patience) -> float:
        return patience.pause(record)

    aprocess, asweep, aclose = asynchronous(process), asynchronous(sweep), asynchronous(close)
