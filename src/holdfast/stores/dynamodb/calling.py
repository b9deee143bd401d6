"""The store of the orchestrator's contract: jobs in a table, and a queue of SQS that calls workers.

The table is that of `store`, laid out as `contract` says; here is what the queue adds. Which job a worker is offered
comes from SQS; whether it may have it is decided by the row.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial

from holdfast.domain.errors import StoreError
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.move import Answer, Move
from holdfast.port.clock import Clock
from holdfast.port.store import Beat, Capabilities, Claim, Finding
from holdfast.stores.dynamodb import table
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.contract import Contract
from holdfast.stores.dynamodb.layout import Layout
from holdfast.stores.dynamodb.listening import Listener
from holdfast.stores.dynamodb.mail import Mail
from holdfast.stores.dynamodb.queue import Queues
from holdfast.stores.dynamodb.store import DynamoStore
from holdfast.stores.dynamodb.sweeping import Sweeping

_GIVEN = (Answer.OK, Answer.CANCEL_REQUESTED)
_PAUSE = 0.05
_STILL = 60.0
"""Seconds after a claim for which its worker may still wait for messages."""


class ContractStore(DynamoStore):
    """Jobs in a table that is keyed by them, and messages about them."""

    capabilities = Capabilities(
        durable=True,
        shared=True,
        strict_order=False,
        exact_counts=False,
        concurrent=True,
        calls=True,
        messages=True,
        joins=True,
    )

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._queues = Queues(self.address)
        self._mail = Mail(self._wire, self._records, self._queues)
        self._sweeping = Sweeping(self._wire, self._records, self._queues, self._mail)
        self._listener = Listener(self._mail, self._bell.ring)
        self._asked_by_any = self._asked_by_tenants = float("-inf")
        """When jobs were last asked for whoever's they are, and when for those of one tenant."""

    def _layout(self) -> Layout:
        return Contract(self.address.shards)

    def _prepare(self) -> None:
        table.prepare(self._wire, table.CONTRACT, table.SIDE)
        self._queues.prepare()

    def claim(self, want: Claim) -> list[JobRecord]:
        """Lease the jobs that SQS offers; or the best of a look, if the URL asks for that or they are to be of one
        tenant, since a message may be anybody's; or the one that is named.
        """
        if want.tenant is None:
            self._asked_by_any = time.monotonic()
        else:
            self._asked_by_tenants = time.monotonic()
        if want.id is not None or want.limit <= 0 or (want.queues is not None and not want.queues):
            return super().claim(want)
        if not self._called(want):
            claimed = super().claim(want)
            with suppress(StoreError):  # it comes again by itself
                self._mail.judge(want, self.now())
            return claimed
        self._open()
        with self._counted(wake=False) as changes:
            return self._mail.claim(want, self._crew.paused(), self.now(), changes)

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and claim. Messages are received while moves are written, and what is to be told of those to SQS is
        told while jobs are claimed.
        """
        if not moves or want.limit <= 0 or not self._called(want):
            return super().exchange(moves, want)
        self._open()
        paused = self._wire.beside(self._crew.paused)
        heard = [self._wire.beside(self._mail.hear, most) for most in self._mail.asks(want.limit)]
        told: list[Future[None]] = []
        self._asked_by_any = time.monotonic()

        def tell(changes: Changes) -> None:
            told.append(self._wire.aside(partial(self._tell, changes)))

        def commit() -> list[Answer]:
            with self._counted(tell=tell) as changes:
                return self._settlement.commit(moves, self.now(), changes)

        def claim() -> list[JobRecord]:
            wait(heard)
            with self._counted(wake=False) as changes:
                return self._mail.claim(want, paused.result(), self.now(), changes, heard=True)

        try:
            return self._both(moves, commit, claim)
        finally:
            wait([*heard, *told])

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases, and then keep the messages of these jobs hidden for as long."""
        answers = super().heartbeat(beats, lease)
        alive = [beat.id for beat, answer in zip(beats, answers, strict=True) if answer in _GIVEN]
        self._mail.extend(alive, lease // SECOND)
        return answers

    def _called(self, want: Claim) -> bool:
        """Tell whether messages say which jobs are to be claimed."""
        anything = want.queues is None or bool(want.queues)
        return want.id is None and want.tenant is None and not self.address.page and anything

    def expired(self, limit: int) -> list[JobRecord]:
        """List jobs that time has run out on, also those whose entry stands elsewhere."""
        found = super().expired(limit)
        known = {job.id for job in found}
        lapsed = self._sweeping.lapsed(self.now()) if len(found) < limit else []
        return [*found, *(job for job in lapsed if job.id not in known)][:limit]

    def sweep(self, limit: int) -> int:
        """Send the messages that are owed or lost, and see to the dead-letter queue."""
        self._open()
        return self._sweeping.sweep(limit, self._crew.paused(), self.now())

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until a message comes, or this process changed something. Messages are not for those who claim for one
        tenant: most would call them for nothing.
        """
        self._open()
        seen = self._bell.times
        if self._mail.heard_some:  # whoever cannot claim them now is not to ask over and over
            self._bell.heard(seen, min(timeout, _PAUSE), lambda: self._closed)
            return True
        if timeout > 0 and self._asked_by_tenants <= self._asked_by_any + _STILL:
            self._listener.want(timeout)
        return self._bell.heard(seen, timeout, lambda: self._closed)

    def check(self) -> Iterator[Finding]:
        """Look for what belongs to no job, in the tables and in the dead-letter queue; count all jobs anew."""
        yield from super().check()
        for text in self._sweeping.strange():
            yield Finding("S1", None, text)

    def close(self) -> None:
        """Let go of the threads and of messages that wait here; waiters leave."""
        self._listener.close()
        super().close()

    def _tell(self, changes: Changes) -> None:
        """Send and delete messages as the changes ask for."""
        self._mail.settle(changes, self.now())
