"""`RemoteWorker`: runs jobs that it claims from a server, each on a thread of its own.

Leases are renewed on a further thread. A task whose lease could not be renewed in time, or was refused, is lost: what
comes of it is not handed in, because another worker may have the job by now.

Told once to stop, a worker claims nothing more and lets running tasks finish within the grace; told twice, or when the
grace is over, it releases them and leaves.
"""

import asyncio
import inspect
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.domain.errors import (
    BadInput,
    BadPayload,
    CommitUnknown,
    HoldfastError,
    IllegalMove,
    JobNotFound,
    Snooze,
    StoreUnavailable,
)
from holdfast.remote import asks
from holdfast.remote.asks import Ask
from holdfast.remote.errors import NotAllowed
from holdfast.remote.shapes import Claimed
from holdfast.runtime.crew import FENCE
from holdfast.runtime.executor import failure_of, trace
from holdfast.runtime.signals import stopping_by_signal

if TYPE_CHECKING:
    from holdfast.remote.client import Client

log = logging.getLogger("holdfast.remote")
UNKNOWN_KIND = 5.0
"""Seconds for which a job is put off that no handler here knows."""
_TURN = 0.05
_PAUSE = 1.0
"""Seconds between two tries to claim while the server is in trouble."""


class Stopped(Exception):
    """Raised by `task.check()` in a task that is cancelled or lost; let it through."""


class Task:
    """A job that runs here, as its handler sees it."""

    def __init__(self, client: "Client", claimed: Claimed) -> None:
        self.claimed = claimed
        self.cancelled = False
        """Somebody has cancelled the job; end soon, as with `check`."""
        self.lost = False
        """The lease is over: what comes of this attempt does not count."""
        self._client = client
        self._said: tuple[float | None, str] = (None, "")
        self._renewed = time.monotonic()

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self.claimed.id

    @property
    def kind(self) -> str:
        """Which handler runs it."""
        return self.claimed.kind

    @property
    def attempt(self) -> int:
        """Which attempt this is."""
        return self.claimed.attempt

    @property
    def payload(self) -> Any:
        """What the job was asked to do, as plain JSON values."""
        return self.claimed.payload

    def step(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Do something that an attempt to come does not do again: give what is on record, or call and record it."""
        if name in self.claimed.steps:
            return self.claimed.steps[name]
        result = fn(*args)
        self._client.checkpoint(self.claimed, name, result)
        return result

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is (0 to 1); it is told with the next heartbeat."""
        self._said = (fraction, note[:200])

    def check(self) -> None:
        """Raise `Stopped` if the job is cancelled or lost. Call it now and then in long work."""
        if self.cancelled or self.lost:
            raise Stopped

    def renew(self, lease: float) -> None:
        """Send a heartbeat, and learn from its answer."""
        sent = time.monotonic()
        fraction, note = self._said
        try:
            beat = self._client.heartbeat(self.claimed, lease=lease, progress=fraction, note=note)
        except (IllegalMove, JobNotFound):
            self.lost = True
        except HoldfastError as error:
            log.debug("the lease of job %s could not be renewed: %s", self.id, error)
            self.lost = self.lost or sent - self._renewed > lease * FENCE
        else:
            self._renewed = sent
            self.cancelled = self.cancelled or beat.cancel_requested


class RemoteWorker:
    """One worker process.

    `queues` names the queues to serve (all, if not given); `concurrency` is how many tasks run at once; `lease` and
    `grace` are in seconds, and so is `wait`, the longest that one request waits for work.
    """

    def __init__(
        self,
        client: "Client",
        handlers: Mapping[str, Callable[[Task], Any]],
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 1,
        name: str | None = None,
        lease: float = 15,
        grace: float = 30,
        wait: float = 10,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            msg = f"concurrency is a whole number of 1 or more, not {concurrency!r}."
            raise BadInput(msg)
        if not handlers:
            msg = "A worker needs handlers; decorate functions with @client.handles(KIND) first."
            raise BadInput(msg)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._client = client
        self._handlers = dict(handlers)
        self._queues = None if queues is None else list(queues)
        self._concurrency = concurrency
        self._lease = lease
        self._grace = grace
        self._wait = wait
        self._held: set[Task] = set()
        self._free = threading.Semaphore(concurrency)
        self._stopping = 0
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._refusal: HoldfastError | None = None
        """Why the server gives no work, if asking again will not help."""

    def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until there is nothing more to do if asked; then hand everything in.

        Raises `NotAllowed` or `BadInput` if the server refuses to give it work.
        """
        threads = [
            threading.Thread(target=self._claim, args=(until_idle,), name="holdfast-claims", daemon=True),
            threading.Thread(target=self._beat, name="holdfast-beats", daemon=True),
        ]
        with stopping_by_signal(self.stop):
            for thread in threads:
                thread.start()
            while not self._stopped.wait(_TURN):
                pass
            self._leave()
        if self._refusal is not None:
            raise self._refusal

    def stop(self) -> None:
        """Ask once to finish what runs, ask again to leave at once."""
        self._stopping += 1
        self._stopped.set()

    def _claim(self, until_idle: bool) -> None:  # noqa: FBT001 - a thread's argument
        """Claim as much as there is room for, until told to stop; what comes after that is given back."""
        trouble = ""
        while not self._stopped.is_set():
            room, claimed = self._room(), list[Claimed]()
            if not room:
                return
            try:
                claimed = self._client.ask(self._wish(room, 0.0 if until_idle else self._wait), tries=1)
                trouble = ""
            except (NotAllowed, BadInput) as error:
                self._refusal = error
                self.stop()
            except HoldfastError as error:
                if str(error) != trouble and not self._stopped.is_set():
                    log.warning("worker %s waits: %s", self.name, error)
                trouble = str(error)
                self._stopped.wait(_PAUSE)
            for _ in range(room - len(claimed)):
                self._free.release()
            for job in claimed:
                self._begin(job)
            if until_idle and not claimed and not trouble:
                if not self._held:
                    self.stop()
                self._stopped.wait(_TURN)

    def _wish(self, room: int, wait: float) -> Ask[list[Claimed]]:
        kinds = sorted(self._handlers)
        return asks.claim(self.name, queues=self._queues, kinds=kinds, limit=room, lease=self._lease, wait=wait)

    def _room(self) -> int:
        """Wait for a free slot and take all that are free; none when it is time to stop."""
        while not self._free.acquire(timeout=_TURN):
            if self._stopped.is_set():
                return 0
        room = 1
        while room < self._concurrency and self._free.acquire(blocking=False):
            room += 1
        return room

    def _begin(self, claimed: Claimed) -> None:
        task = Task(self._client, claimed)
        self._held.add(task)  # not by its job's id: one that was lost may come again while it still runs here
        threading.Thread(target=self._run, args=(task,), name=f"holdfast-task-{task.id}", daemon=True).start()

    def _run(self, task: Task) -> None:
        try:
            self._settle(task)
        except HoldfastError as error:
            log.warning("what came of job %s was not handed in: %s", task.id, error)
        finally:
            self._held.discard(task)
            self._free.release()

    def _settle(self, task: Task) -> None:
        """Run a task and say what came of it."""
        claimed, handler = task.claimed, self._handlers.get(task.kind)
        if handler is None or self._stopped.is_set():
            if handler is None:
                log.warning("job %s is put off: no handler for %r here", task.id, task.kind)
            self._hand_in(task, asks.release(claimed, UNKNOWN_KIND if handler is None else None))
            return
        failed: BaseException | None = None
        result: Any = None
        try:
            result = _called(handler, task)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            failed = error
        if task.lost:
            log.warning("job %s was lost: another worker may have it by now", task.id)
        elif failed is None:
            self._complete(task, result)
        elif isinstance(failed, Snooze):
            self._hand_in(task, asks.release(claimed, failed.seconds))
        elif task.cancelled:
            self._hand_in(task, asks.release(claimed, None))
        else:
            failure = failure_of(failed, None)
            said = asks.fail(claimed, *failure[:2], retryable=failure.retryable, traceback=trace(failed))
            self._hand_in(task, said)

    def _complete(self, task: Task, result: Any) -> None:
        try:
            self._hand_in(task, asks.complete(task.claimed, result))
        except BadPayload as error:
            said = asks.fail(task.claimed, "bad_result", str(error), retryable=False, traceback=None)
            self._hand_in(task, said)

    def _hand_in(self, task: Task, said: Ask[str]) -> None:
        """Say what came of a task, for as long as its lease holds."""
        while True:
            try:
                self._client.ask(said)
            except (StoreUnavailable, CommitUnknown):
                if task.lost or self._ended.wait(_PAUSE):
                    raise
            else:
                return

    def _beat(self) -> None:
        while not self._ended.wait(self._lease / 3):
            for task in list(self._held):
                task.renew(self._lease)

    def _leave(self) -> None:
        """Let running tasks finish within the grace, and give back the rest."""
        end = time.monotonic() + self._grace
        while self._held and self._stopping < 2 and time.monotonic() < end:  # noqa: PLR2004
            self._ended.wait(_TURN)
        self._ended.set()
        for task in list(self._held):
            task.lost = True
            try:
                self._client.ask(asks.release(task.claimed, None), tries=1)
            except HoldfastError as error:
                log.warning("job %s could not be released: %s", task.id, error)


def _called(handler: Callable[[Task], Any], task: Task) -> Any:
    answer = handler(task)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
