"""The engine of the `holdfast` fixture: an application whose jobs run when the test says so, under the test's clock.

The lifecycle, the executor, the upkeep and the memory store are the real ones. What a worker does with threads and
wake-ups is done here by the caller, one attempt after another in the order of claims, so that a test sees the same run
every time. All that differs from a worker: jitter is drawn as zero, `run_in="process"` runs here as well, and the
heartbeat of an attempt comes whenever its handler asks `ctx`.
"""

import asyncio
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.client.explain import explain
from holdfast.client.limits import store_declared
from holdfast.client.registry import Kind
from holdfast.client.results import Patience
from holdfast.client.settings import Settings
from holdfast.domain import lifecycle
from holdfast.domain.errors import BadInput, ResultTimeout
from holdfast.domain.job import TERMINAL, JobRecord
from holdfast.domain.moments import SECOND, duration, to_datetime
from holdfast.domain.move import Answer, Move
from holdfast.port.clock import Clock
from holdfast.port.store import Claim, Inserted, InsertGroup, Refusal, Store
from holdfast.runtime import delivery, firing, upkeep
from holdfast.runtime.attempt import Attempt, Stop
from holdfast.runtime.executor import Executor
from holdfast.runtime.hands import Hands
from holdfast.runtime.shedding import shed
from holdfast.runtime.stage import AttemptStage
from holdfast.stores.memory import MemoryStore
from holdfast.testing.beside import Beside
from holdfast.testing.clock import ManualClock

T = TypeVar("T")


class NotAtRest(AssertionError):
    """Jobs were still due after the most attempts that `run_until_idle` was allowed."""


class TestHoldfast(Holdfast):
    """A Holdfast application for one test, in which nothing runs and no time passes by itself."""

    __test__ = False

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__("memory://", clock=self.clock)
        self._jobs = _Jobs(self.clock)
        self._opened = self._jobs
        self._attached: list[tuple[Holdfast, dict[str, Any]]] = []
        self._crashes: dict[str, int] = {}
        self._reached: set[str] = set()
        self._workers, self._leases = count(1), count(1)
        self._owner = self._next_worker()
        self._loop: asyncio.Runner | None = None
        self._busy = threading.Lock()
        self._beside = Beside(self._jobs, self.clock)

    def attach(self, app: Holdfast) -> Holdfast:
        """Move an application onto this store and clock until the test ends; its kinds run here, by its settings."""
        if isinstance(app, TestHoldfast) or not isinstance(app, Holdfast):
            msg = f"attach takes the application under test, a Holdfast object; {app!r} is not one."
            raise BadInput(msg)
        if any(app is known for known, _ in self._attached):
            return app
        for kind in app.registry.every():
            self.registry.add(kind)
        self.settings = app.settings
        self._attached.append((app, dict(vars(app))))
        vars(app).update(
            url=self.url,
            registry=self.registry,
            close=lambda: None,
            _clock=self.clock,
            _opened=self._jobs,
            _inserter=self._inserting(),
            _pid=os.getpid(),
            _pause=self._pause,
        )
        return app

    @property
    def now(self) -> datetime:
        """The test's present."""
        return to_datetime(self.clock.now())

    def advance(
        self,
        span: timedelta = timedelta(0),
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> datetime:
        """Let time pass and give the new present. Runs nothing: what has come due waits for `run_until_idle`.

        Schedules that code declares count from the first time that this or `run_until_idle` is called.
        """
        self._take_up()
        more = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        self.clock.advance(microseconds=duration(span + more, "The time to advance by"))
        return self.now

    def crash_after(self, name: str, *, times: int = 1) -> None:
        """Let the worker die the next time a job of this kind has run its body, before the outcome is recorded; or the
        next time a step of this name has been recorded.

        The lease stays until it expires, as with a real death: advance past it and run again to see what comes of it.
        """
        if type(times) is not int or times < 1:
            msg = f"A worker crashes a whole number of times, 1 or more, not {times!r}."
            raise BadInput(msg)
        self._crashes[name] = self._crashes.get(name, 0) + times

    def run_until_idle(self, max_jobs: int = 10_000) -> int:
        """Run all that is due now, upkeep included; give the number of attempts, at most `max_jobs`, or `NotAtRest`.

        Runs in this thread. Under a running event loop, async handlers get a loop of their own in a thread of its own;
        `arun_until_idle` runs them on yours.
        """
        with self._alone():
            self._take_up()
            executor, ran = self._executor(), 0
            for attempt in self._due(max_jobs):
                self._settle(executor, attempt, self._run(executor, attempt))
                ran += 1
            self._beside.deliver()
            return ran

    async def arun_until_idle(self, max_jobs: int = 10_000) -> int:
        """Asynchronous twin of `run_until_idle`: async handlers run on this loop, others in a thread, one by one."""
        with self._alone():
            self._take_up()
            executor, ran = self._executor(), 0
            for attempt in self._due(max_jobs):
                move = await self._arun(executor, attempt)
                if (task := asyncio.current_task()) and task.cancelling():
                    raise asyncio.CancelledError
                self._settle(executor, attempt, move)
                ran += 1
            await asyncio.to_thread(self._beside.deliver)
            return ran

    def end(self) -> None:
        """Give attached applications back as they were, and complain of a crash that never came."""
        for app, before in reversed(self._attached):
            vars(app).clear()
            vars(app).update(before)
        self._attached.clear()
        self._beside.end()
        if self._loop is not None:
            self._loop.close()
        self.close()
        if missed := [name for name in self._crashes if name not in self._reached]:
            known = ", ".join(sorted(self.registry)) or "none"
            never = "no job of that kind ran its body, and no step of that name was recorded"
            msg = f"crash_after({missed[0]!r}) was never reached: {never}. Known kinds: {known}."
            raise AssertionError(msg)

    @property
    def _apps(self) -> list[Holdfast]:
        return [self, *(app for app, _ in self._attached)]

    def _take_up(self) -> None:
        """Do what a worker does when it starts."""
        if any(app.settings.events for app in self._apps):
            self.settings = replace(self.settings, events=True)
        self._beside.take_up(self._apps)

    def _run(self, executor: Executor, attempt: "_Attempt") -> Move | None:
        kind = attempt.kind
        if kind is None:
            return executor.unknown_kind(attempt.job, self._jobs.now())
        if not self._begins(attempt):
            return executor.stopped(attempt)
        return self._finish(executor.acall(attempt)) if inspect.iscoroutinefunction(kind.fn) else executor.call(attempt)

    async def _arun(self, executor: Executor, attempt: "_Attempt") -> Move | None:
        kind = attempt.kind
        if kind is None or not inspect.iscoroutinefunction(kind.fn):
            return await asyncio.to_thread(self._run, executor, attempt)
        if not self._begins(attempt):
            return executor.stopped(attempt)
        return await asyncio.create_task(executor.acall(attempt))

    def _begins(self, attempt: "_Attempt") -> bool:
        """Write the start down where a worker would."""
        if lifecycle.must_record_start(attempt.job):
            (answer,) = self._jobs.commit([lifecycle.start(attempt.job)])
            attempt.stop = None if answer is Answer.OK else attempt.reason() or Stop.LOST
        return attempt.stop is None

    def _settle(self, executor: Executor, attempt: "_Attempt", move: Move | None) -> None:
        if attempt.died or (attempt.begun and attempt.kind is not None and self._crash(attempt.kind.name)):
            self._owner = self._next_worker()
            return
        if attempt.stop is None and attempt.reason() is Stop.TIMEOUT:
            attempt.stop = Stop.TIMEOUT
            move = executor.stopped(attempt)
        delivery.settle(self._jobs, self.settings, executor, attempt, move)

    def _crash(self, name: str) -> bool:
        """Tell whether the worker is to die at this point."""
        if not self._crashes.get(name):
            return False
        self._crashes[name] -= 1
        self._reached.add(name)
        return True

    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run an async handler on the fixture's own loop; in a thread, where this one has a loop already."""
        if self._loop is None:
            self._loop = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        run = partial(self._loop.run, coroutine, context=copy_context())
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run()
        with ThreadPoolExecutor(1, "holdfast-test") as thread:
            return thread.submit(run).result()

    def _due(self, most: int) -> Iterator["_Attempt"]:
        """Claim due jobs one by one, best first, until upkeep and claims find nothing more."""
        ran: Counter[str] = Counter()
        while self._keep_up() or self._jobs.due():
            kept_up_at = self._jobs.now()
            while due := self._jobs.due():
                before = ran.total()
                for job in self._until_news(due):
                    if ran.total() >= most:
                        raise NotAtRest(_restless(ran, job))
                    one = None if self._jobs.ruled else job.id
                    want = Claim(self._owner, f"test-lease-{next(self._leases)}", self.settings.lease, 1, id=one)
                    for claimed in self._jobs.claim(want):
                        ran[claimed.kind] += 1
                        kind = self.registry.get(claimed.kind, claimed.code_version)
                        yield _Attempt(claimed, kind, self._jobs, self.clock)
                if ran.total() == before and not self._keep_up():
                    return
                if self._jobs.now() != kept_up_at:
                    break

    def _until_news(self, due: list[JobRecord]) -> Iterator[JobRecord]:
        """Go through what was due at one look, as long as nothing else became due and time stands still."""
        seen = self._jobs.news, self._jobs.now()
        for job in due:
            yield job
            if (self._jobs.news, self._jobs.now()) != seen:
                return

    def _keep_up(self) -> int:
        """Do the upkeep of a leading worker; give the number of jobs it changed."""
        done = 0
        jobs = self._jobs
        for app in self._apps:
            store_declared(jobs, app.limits.declared)
        while changed := _upkept(jobs, self.settings, self._inserting().insert):
            done += changed
        return done

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            msg = "Jobs are being run already; a handler cannot call run_until_idle, and two threads cannot share it."
            raise BadInput(msg)
        try:
            yield
        finally:
            self._busy.release()

    def _executor(self) -> Executor:
        hands = Hands(self._jobs, self.registry, self.settings, lambda: 0.0, self._inserting().take, patience=0)
        return _Executor(self.settings, hands, self._crash)

    def _next_worker(self) -> str:
        return f"test-worker-{next(self._workers)}"

    def _pause(self, record: JobRecord, _patience: Patience) -> float:
        why = explain(self._jobs, record)
        msg = f"Job {record.id} is {record.state}; nothing runs by itself here, so call run_until_idle() first. {why}"
        raise ResultTimeout(msg)


class _Attempt(Attempt):
    """An attempt that has no heart beside it: it looks for a reason to stop whenever its handler asks."""

    __slots__ = ("_clock", "_store", "died")

    def __init__(self, job: JobRecord, kind: Kind | None, store: Store, clock: Clock) -> None:
        super().__init__(job, kind, clock.monotonic())
        self.died = False
        self._store = store
        self._clock = clock

    @property
    def stopping(self) -> bool:
        if self.stop is None:
            self.stop = self.reason()
        return self.stop is not None

    def reason(self) -> Stop | None:
        """Say what a heartbeat would tell: out of time, cancelled, or no longer ours."""
        timeout = None if self.kind is None else self.kind.timeout
        if timeout is not None and self._clock.monotonic() - self.renewed >= timeout / SECOND:
            return Stop.TIMEOUT
        (record,) = self._store.read([self.job.id])
        if record is None or record.lease is None or record.token != self.job.token:
            return Stop.LOST
        return Stop.CANCEL if record.cancel_requested else None


class _Died(BaseException):
    """Raised where the worker is to die."""


class _Stage(AttemptStage):
    """Lets the worker die once a step is on record."""

    def __init__(self, attempt: "_Attempt", hands: Hands, crash: Callable[[str], bool]) -> None:
        super().__init__(attempt, hands)
        self._dies = attempt
        self._crash = crash

    def heed(self, move: Move, answer: Answer) -> None:
        super().heed(move, answer)
        if move.step is not None and self._crash(move.step):
            self._dies.died = True
            raise _Died


class _Executor(Executor):
    """Knows whether a body was reached, and lets the person at the keyboard interrupt one."""

    def __init__(self, settings: Settings, hands: Hands, crash: Callable[[str], bool]) -> None:
        super().__init__(settings, lambda: 0.0, hands=hands)
        self._crash = crash

    def stage(self, attempt: Attempt) -> AttemptStage | None:
        stage = super().stage(attempt)
        if stage is None or not isinstance(attempt, _Attempt) or self._hands is None:
            return stage
        attempt.stage = stage = _Stage(attempt, self._hands, self._crash)
        return stage

    def bind(self, attempt: Attempt) -> tuple[Callable[..., Any], dict[str, Any]]:
        call = super().bind(attempt)
        attempt.begun = True
        return call

    def failed(self, attempt: Attempt, error: BaseException) -> Move | None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, _Died):
            return None
        return super().failed(attempt, error)


class _Jobs(MemoryStore):
    """The memory store, with an eye on unfinished jobs: a long run need not look through finished ones each time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("memory://", clock)
        self._unfinished: set[str] = set()
        self.news = 0
        """How often a job has become runnable."""

    def insert(self, groups: Sequence[InsertGroup]) -> list[list[Inserted] | Refusal]:
        answers = super().insert(groups)
        self._note([one.id for group in answers if isinstance(group, list) for one in group])
        return answers

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        answers = super().commit(moves)
        self._note([id_ for move in moves for id_ in (move.id, *(child for child, _ in move.children))])
        return answers

    def resume(self, queue: str) -> None:
        super().resume(queue)
        self.news += 1

    def _note(self, ids: Sequence[str]) -> None:
        now = self.now()
        for id_, job in zip(ids, self.read(ids), strict=True):
            if job is None or job.state in TERMINAL:
                self._unfinished.discard(id_)
            else:
                self._unfinished.add(id_)
                self.news += lifecycle.runnable(job, now)

    @property
    def ruled(self) -> bool:
        """Whether anything but priority, due time and age says what is claimed next."""
        return bool(self._rules())

    def due(self) -> list[JobRecord]:
        """List what is due now, best first."""
        now, paused = self.now(), self.paused()
        jobs = [job for job in self.read(list(self._unfinished)) if job is not None and job.queue not in paused]
        return sorted((job for job in jobs if lifecycle.runnable(job, now)), key=lifecycle.order)


def _upkept(jobs: Store, settings: Settings, insert: firing.Insert) -> int:
    """Do one round of upkeep; give the number of jobs it changed."""
    changed = upkeep.reap(jobs, settings) + upkeep.resubmit(jobs) + upkeep.purge(jobs, settings) + shed(jobs, settings)
    upkeep.tend(jobs, settings)
    return changed + firing.fire(jobs, insert, jobs.now())


def _restless(ran: Counter[str], job: JobRecord) -> str:
    most = ", ".join(f"{kind} ({times:,})" for kind, times in ran.most_common(3))
    return (
        f"After {ran.total():,} attempts jobs are still due, the next a {job.kind} ({job.id}); most went to {most}. "
        "A job that enqueues itself, or comes back without a delay, never comes to rest; "
        "if there really are so many, raise max_jobs."
    )
