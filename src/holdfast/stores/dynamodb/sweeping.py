"""What upkeep does about messages: sends those that are owed or lost, and sees to the dead-letter queue."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from holdfast.domain.dialects import read_envelope
from holdfast.domain.errors import BadEnvelope
from holdfast.domain.job import CLAIMABLE, JobRecord, State
from holdfast.domain.moments import MINUTE, SECOND, Micros
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.contract import DUE, DYING, OWED, QUEUED, SENT
from holdfast.stores.dynamodb.items import Item, Row
from holdfast.stores.dynamodb.layout import LOOK, LOOK_AT, look, seen
from holdfast.stores.dynamodb.leasing import hold
from holdfast.stores.dynamodb.mail import REASON, Mail
from holdfast.stores.dynamodb.proofs import UNPROVED
from holdfast.stores.dynamodb.queue import Message, Queues
from holdfast.stores.dynamodb.records import Records
from holdfast.stores.dynamodb.wire import Failed, Wire

log = logging.getLogger("holdfast.upkeep")
_LEAD: Micros = 1 * MINUTE
"""How long before its time an owed message is sent, with a delay: it then comes on time."""
_OFTEN: Micros = 5 * SECOND
"""The least time between two looks for leases that are over among the jobs that wait, unless `grace` is less."""
_HIDE = 30
_PAGE = 1_000
_MOST = 100
"""How many messages of the dead-letter queue one round looks at."""


class _Late(NamedTuple):
    """A job that is to be looked at, and why."""

    why: str
    item: Item
    job: JobRecord


class Sweeping:
    """The rounds."""

    def __init__(self, wire: Wire, records: Records, queues: Queues, mail: Mail) -> None:
        self._wire = wire
        self._records = records
        self._queues = queues
        self._mail = mail
        self._next_look: Micros = 0
        self._next_lapse: Micros = 0
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def sweep(self, limit: int, paused: frozenset[str], now: Micros) -> int:
        """Make one round; give the number of jobs that were seen to."""
        with self._lock:
            found = list(islice(self._late(now), limit))
            late = [each for each in found if each.job.state is not State.RUNNING]
            held = [each.job for each in found if each.job.state is State.RUNNING]
            self._wire.each(lambda job: hold(self._wire, job), held)
            dying = map(self._records.layout.understood, self._dying(now, limit))
            dead = [job for job in dying if job is not None and job.state is State.DEAD]
            self._mail.bury(dead)
            owing = {each.job.id: each.job for each in late if each.job.queue not in paused and self._owes(each, now)}
            self._mail.post(owing.values(), now, looked=True)
            self._wire.each(lambda each: self._look_later(each.job, self._when(each.job, owing, paused, now)), late)
            if now >= self._next_look:
                self._next_look = now + self._wire.address.grace
                self._reconcile(now)
            return len(found) + len(dead) if self._wire.address.lost else 0  # with no patience there is no end to it

    def lapsed(self, now: Micros) -> list[JobRecord]:
        """List the jobs whose lease is over and whose entry their claim has left where it stood, once that is older
        than `grace`; those that still are leased are looked at later.
        """
        address = self._wire.address
        if now < self._next_lapse:
            return []
        self._next_lapse = now + min(address.grace, _OFTEN)
        found = map(self._records.layout.understood, seen(self._wire, DUE, now - address.grace, _PAGE))
        running = [job for job in found if job is not None and job.state is State.RUNNING]
        ends = {job.id: (job.lease_expires_at or 0) + address.skew for job in running}
        self._wire.each(lambda job: hold(self._wire, job), [job for job in running if ends[job.id] > now])
        return [job for job in running if ends[job.id] <= now]

    def _late(self, now: Micros) -> Iterator[_Late]:
        """Walk through the jobs that wait for longer than they should, or run for longer than most."""
        for why, upto in ((OWED, now + _LEAD), (DUE, now - self._wire.address.grace), (SENT, now)):
            for found in seen(self._wire, why, upto, _PAGE):
                item = self._records.proofs.proved(found)
                job = self._records.layout.understood(item)
                if UNPROVED in item and self._records.layout.strange(item) is None:
                    self._records.proofs.let_go(item, self._records.layout.record(item).created_at, now)
                if job is not None and (job.state in CLAIMABLE or job.state is State.RUNNING):
                    yield _Late(why, item, job)

    def _dying(self, now: Micros, limit: int) -> Iterator[Item]:
        return islice(seen(self._wire, DYING, now - self._wire.address.grace), limit)

    def _owes(self, late: _Late, now: Micros) -> bool:
        """Tell whether a message is to be sent: a job that is due has been sent one, if it is `queued`."""
        waited = late.job.available_at + self._wire.address.lost <= now
        return late.why != DUE or late.item["status"]["S"] != QUEUED or waited

    def _when(self, job: JobRecord, owing: Mapping[str, JobRecord], paused: frozenset[str], now: Micros) -> Micros:
        """Say when a job that still waits is to be looked at again."""
        address = self._wire.address
        if job.queue in paused:
            return now + address.grace
        return (max(job.available_at, now) if job.id in owing else job.available_at) + address.lost

    def _look_later(self, job: JobRecord, until: Micros) -> None:
        """Let a job that still waits be looked at again."""
        change: Mapping[str, Any] = {
            "UpdateExpression": "SET #look = :sent, #at = :until",
            "ConditionExpression": "#version = :version",
            "ExpressionAttributeNames": {"#look": LOOK, "#at": LOOK_AT, "#version": "version"},
            "ExpressionAttributeValues": {
                ":sent": items.wire(look(SENT, job.id, self._wire.address.shards)),
                ":until": items.wire(until),
                ":version": items.wire(job.version),
            },
        }
        with suppress(Failed):  # it has changed meanwhile
            self._wire.update(Row(job.id), change, "")

    def _reconcile(self, now: Micros) -> None:
        """See to the dead-letter queue: what is there must belong to a dead job, one message to each, or to nobody."""
        letters = sorted(self._dead_letters(), key=lambda letter: REASON not in letter[0].attributes)
        jobs = self._records.fetch([id_ for _, id_ in letters if id_ is not None]) if letters else {}
        over: list[Message] = []
        kept: list[tuple[Message, int]] = []
        again: dict[str, JobRecord] = {}
        dead: set[str] = set()
        for message, id_ in letters:
            job = None if id_ is None else jobs.get(id_)
            if job is None:
                self._report(message, id_)
            if job is None or (job.state is State.DEAD and job.id not in dead):
                kept.append((message, 0))
                dead |= set() if job is None else {job.id}
            else:
                over.append(message)
                again |= {job.id: job} if job.state in CLAIMABLE else {}
        self._mail.post(again.values(), now, looked=True)
        self._queues.delete(over, self._queues.dead)
        self._queues.hide(kept, self._queues.dead)

    def _dead_letters(self) -> list[tuple[Message, str | None]]:
        """Receive messages of the dead-letter queue, each with the job that it is about, if it is about one."""
        found: list[Message] = []
        while len(found) < _MOST and (some := self._queues.receive(10, hide=_HIDE, of=self._queues.dead)):
            found += some
        return [(message, _meant(message)) for message in found]

    def _report(self, message: Message, id_: str | None) -> None:
        """Say once what lies in the dead-letter queue and is about no job."""
        if message.id not in self._reported:
            self._reported.add(message.id)
            log.warning("%s", self._said(message, id_))

    def _said(self, message: Message, id_: str | None) -> str:
        what = f"for the job {id_}, which is not there" if id_ is not None else "that is about no job"
        if id_ is not None and (strange := self._records.strange(id_)) is not None:
            what = f"for what is no job ({strange.removesuffix('.')})"
        said = f"The dead-letter queue {self._queues.dead!r} holds a message {what}"
        return f"{said}; see its attributes, and delete it there (message {message.id})."

    def strange(self) -> Iterator[str]:
        """Say what lies in the dead-letter queue and is about no job."""
        letters = self._dead_letters()
        self._queues.hide([(message, 0) for message, _ in letters], self._queues.dead)
        jobs = self._records.fetch([id_ for _, id_ in letters if id_ is not None]) if letters else {}
        for message, id_ in letters:
            if id_ not in jobs:
                yield self._said(message, id_)


def _meant(message: Message) -> str | None:
    try:
        return read_envelope(message.body).job_id
    except BadEnvelope:
        return None
