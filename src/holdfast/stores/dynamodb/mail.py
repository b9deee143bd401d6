"""Messages about jobs: what is sent when a job may run, what a worker makes of those that it receives.

The row is the truth, and a message is a call to look at it. So a message is sent after its row was written and deleted
after its row was settled; whoever dies in between leaves a message too few, which upkeep sends (`sweeping`), or one too
many, which the row answers. Each attempt has a message of its own: SQS counts how often it hands one out, and gives it
up after a few times, so a message that served several attempts would be given up while its job is well.
"""

import json
import logging
import math
import string
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote

from holdfast.domain.dialects import envelope, read_envelope
from holdfast.domain.errors import BadEnvelope, StoreError
from holdfast.domain.job import CLAIMABLE, TERMINAL, JobRecord, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Claim
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.changes import Changes
from holdfast.stores.dynamodb.contract import DYING, ENDED, LONGEST_DELAY, PENDING, QUEUED
from holdfast.stores.dynamodb.items import Item, Row
from holdfast.stores.dynamodb.layout import HELD, LOOK, LOOK_AT, look
from holdfast.stores.dynamodb.leasing import Offer, Refused, hold, lease
from holdfast.stores.dynamodb.proofs import UNPROVED
from holdfast.stores.dynamodb.queue import BATCH, Letter, Message, Queues
from holdfast.stores.dynamodb.records import Records
from holdfast.stores.dynamodb.wire import Failed, Wire

log = logging.getLogger("holdfast.stores.dynamodb")
LOOKED = "looked"
"""The attribute of a message that was sent because somebody looked at its job, which is looked at later now."""
REASON = "reason"
"""The attribute of a message in the dead-letter queue that tells why it is there, as a code."""
NO_JOB = "job_not_found"
NO_ENVELOPE = "bad_envelope"
_MOST_REMEMBERED = 10_000
_LONG_DETAIL = 250
_LONG_GROUP = 128
_MARGIN = 1
"""Seconds for which a message stays hidden beyond the lease of its job, and the skew of clocks: when it comes again,
whoever receives it can tell that the lease is over.
"""
_ELSEWHERE = 5
"""Seconds after which a message comes again that is for a worker of another queue."""
_ASIDE = 900
"""The same for a job whose queue is paused, or that is not understood."""
_FIRST_HIDE = 30
_REQUESTS = 4
"""How many requests for messages are made beside each other."""
_ROUNDS = 10
"""After so many looks that brought nothing for this worker, a claim leaves the rest of the messages to others."""
_BRAKE = 20
"""After so many claims that brought nothing, a claim waits for a second, lest it be asked for over and over."""


class Call(NamedTuple):
    """A message, and the job that it is for."""

    message: Message
    offer: Offer


class Mail:
    """The messages of a store, and those that this process has in hand."""

    def __init__(self, wire: Wire, records: Records, queues: Queues) -> None:
        self._wire = wire
        self._records = records
        self._queues = queues
        self._hand: OrderedDict[str, list[Message]] = OrderedDict()
        """The messages of jobs that were claimed here, by job."""
        self._waiting: deque[Message] = deque()
        """Messages that a listener received, for the next claim."""
        self._lock = threading.Lock()
        self._empty = 0
        self._plenty = False
        """SQS gave all that it was last asked for, so it may have more."""
        self._hide = _FIRST_HIDE
        self._beyond = math.ceil(wire.address.skew / SECOND) + _MARGIN
        self.room = 1
        """How many messages the next claim is likely to have room for."""

    def post(self, jobs: Iterable[JobRecord], now: Micros, *, looked: bool = False) -> None:
        """Send messages for jobs that may run within the time that a message can wait, then note that they are sent.
        `looked` tells that this is because somebody looked at them.
        """
        ready = [job for job in jobs if job.state in CLAIMABLE and job.available_at - now <= LONGEST_DELAY]
        sent = self._queues.send([letter(job, now, looked=looked) for job in ready], self._queues.main)
        self._empty = 0
        queued = [job.id for job, taken in zip(ready, sent, strict=True) if taken and job.state is State.QUEUED]
        self._wire.each(self._note_queued, queued)

    def _note_queued(self, id_: str) -> None:
        change = {
            "UpdateExpression": f"SET #status = :queued REMOVE {UNPROVED}",
            "ConditionExpression": "#status = :pending",
            "ExpressionAttributeNames": {"#status": "status"},
            "ExpressionAttributeValues": items.attributes({":queued": QUEUED, ":pending": PENDING}),
        }
        with suppress(Failed):  # it is further already
            self._wire.update(Row(id_), change, "")

    def bury(self, jobs: Sequence[JobRecord]) -> None:
        """Put the messages of dead jobs into the dead-letter queue, then note that they are there."""
        letters = [
            Letter(_body(job), 0, _group(job.tenant), self._why(job.failure_code or "dead", job.failure_message or ""))
            for job in jobs
        ]
        sent = self._queues.send(letters, self._queues.dead)
        self._wire.each(self._note_buried, [job for job, taken in zip(jobs, sent, strict=True) if taken])

    def _note_buried(self, job: JobRecord) -> None:
        shards = self._wire.address.shards
        values = {
            ":dying": look(DYING, job.id, shards),
            ":ended": look(ENDED, job.id, shards),
            ":at": job.purge_at or 0,
        }
        change = {
            "UpdateExpression": "SET #look = :ended, #at = :at",
            "ConditionExpression": "#look = :dying",
            "ExpressionAttributeNames": {"#look": LOOK, "#at": LOOK_AT},
            "ExpressionAttributeValues": items.attributes(values),
        }
        with suppress(Failed):  # it was redriven meanwhile
            self._wire.update(Row(job.id), change, "")

    def _why(self, code: str, detail: str) -> tuple[tuple[str, str], ...]:
        return ((REASON, code), ("detail", detail[:_LONG_DETAIL]), ("source", self._queues.main))

    def settle(self, changes: Changes, now: Micros) -> None:
        """Send and delete what follows from what was written. If that fails, the row is as it should be, and upkeep
        or the next delivery does the rest.
        """
        fresh: list[JobRecord] = []
        dead: list[JobRecord] = []
        served: list[Message] = []
        for before, after in changes.all:
            if after is None:
                continue
            if before is not None and before.state is State.RUNNING and after.state is not State.RUNNING:
                served += self._let_go(after.id)
            if after.state is State.DEAD:
                dead.append(after)
            elif before is None or (before.state, before.available_at) != (after.state, after.available_at):
                fresh.append(after)
        with suppress(StoreError):
            if fresh:
                self.post(fresh, now)
            if dead:
                self.bury(dead)
            batches = [served[at : at + BATCH] for at in range(0, len(served), BATCH)]
            self._wire.each(self._queues.delete, batches)

    def extend(self, ids: Iterable[str], seconds: int) -> None:
        """Keep the messages of leased jobs from others for as long as their leases."""
        with self._lock:
            held = [(message, seconds + self._beyond) for id_ in ids for message in self._hand.get(id_, ())]
        with suppress(StoreError):  # the lease decides
            self._queues.hide(held)

    def claim(
        self, want: Claim, paused: frozenset[str], now: Micros, changes: Changes, *, heard: bool = False
    ) -> list[JobRecord]:
        """Claim the jobs that messages are for, until there is no room or no message. Trouble that comes after some
        are claimed must not cost them their lease. `heard` tells that SQS was asked for messages a moment ago.
        """
        self._hide = math.ceil(want.lease / SECOND) + self._beyond
        claimed: list[JobRecord] = []
        room = None if want.queues is None else Counter({q: n for q, n in want.queues.items() if n > 0})
        fruitless = 0
        while len(claimed) < want.limit and (room is None or +room) and fruitless < _ROUNDS:
            try:
                messages = self._receive(want.limit - len(claimed), ask=not heard)
                calls, aside = self._sorted(messages, want, paused, room)
                if not calls and not aside:
                    break
                left = want.limit - len(claimed) - len(calls)
                asks = self.asks(left) if len(messages) >= BATCH else []
                ahead = [self._wire.beside(self.hear, ask) for ask in asks]
                got = self._lease(calls, want, now, changes, room)
                wait(ahead)
            except StoreError:
                if claimed:
                    break
                raise
            claimed += got
            fruitless = 0 if got else fruitless + 1
            with suppress(StoreError):  # it comes again by itself
                self._queues.hide(aside)
        self._empty = 0 if claimed else self._empty + 1
        self.room = max(want.limit - len(claimed), 0)
        if not self.room:
            self.hand_back()
        return claimed

    def _lease(
        self, calls: Sequence[Call], want: Claim, now: Micros, changes: Changes, room: "Counter[str] | None"
    ) -> list[JobRecord]:
        """Claim jobs, several at a time, and answer the messages of those that cannot be had."""
        claimed: list[JobRecord] = []
        refused: list[tuple[Call, Refused]] = []
        trouble: StoreError | None = None
        outcomes = self._wire.each(lambda call: self._try(call.offer, want, now), calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, tuple):
                changes.tell(*outcome)
                claimed.append(outcome[1])
                self._keep(call.offer.id, call.message)
                continue
            if room is not None:
                room[call.offer.queue] += 1
            if isinstance(outcome, StoreError):
                trouble = outcome
            else:
                refused.append((call, outcome))
        with suppress(StoreError):  # it comes again by itself
            self._answer(refused, want, now)
        if trouble and not claimed:
            raise trouble
        return claimed

    def asks(self, most: int) -> list[int]:
        """Say for how many messages to ask SQS ahead of a claim that has room for this many, by request: more than one
        request only if SQS gave all that the last one asked for.
        """
        wanted = most - len(self._waiting)
        requests = min(math.ceil(wanted / BATCH), _REQUESTS if self._plenty else 1)
        return [min(wanted - BATCH * number, BATCH) for number in range(requests)]

    def hear(self, most: int) -> None:
        """Receive messages for the next claim, ahead of it; if there is trouble, the one after that meets it."""
        found: list[Message] = []
        with suppress(StoreError):
            found = self._queues.receive(most, hide=self._hide)
        self._plenty = len(found) >= most
        with self._lock:
            self._waiting.extend(found)

    def _receive(self, most: int, *, ask: bool) -> list[Message]:
        """Take what was received for this claim, and then, if it is to be asked, what SQS has now."""
        with self._lock:
            found = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if ask and len(found) < min(most, BATCH):
            patience = 1 if self._empty >= _BRAKE and not found else 0
            asked = min(most - len(found), BATCH)
            more = self._queues.receive(asked, hide=self._hide, wait=patience)
            self._plenty = len(more) >= asked
            found += more
        return found

    def _sorted(
        self, messages: Sequence[Message], want: Claim, paused: frozenset[str], room: "Counter[str] | None"
    ) -> tuple[list[Call], list[tuple[Message, int]]]:
        """Tell the jobs that are wanted from what is to come again later; what is no envelope is put aside for good."""
        calls: list[Call] = []
        aside: list[tuple[Message, int]] = []
        for message in messages:
            queue = unquote(message.attributes.get("queue", "default"))
            try:
                call = Call(message, Offer(read_envelope(message.body).job_id, queue, self._fresh(message)))
            except BadEnvelope as error:
                self._give_up(message, NO_ENVELOPE, str(error))
                aside.append((message, _ASIDE))
                continue
            if queue in paused:
                aside.append((message, _ASIDE))
            elif queue in want.full if room is None else room[queue] < 1:
                aside.append((message, _ELSEWHERE))
            else:
                calls.append(call)
                if room is not None:
                    room[queue] -= 1
        return calls, aside

    def _fresh(self, message: Message) -> bool:
        """Tell whether nobody is likely to have looked at the entry of a message's job: it is as young as that, and it
        was sent with the write that made its job wait.
        """
        attributes, age = message.attributes, time.time() - message.sent
        return "queue" in attributes and LOOKED not in attributes and age < max(self._wire.address.grace / SECOND, 1)

    def _try(self, offer: Offer, want: Claim, now: Micros) -> tuple[JobRecord, JobRecord] | Refused | StoreError:
        """Try to claim one of several: its trouble must not cost the others their lease."""
        try:
            return lease(self._wire, self._records, offer, want, now)
        except (Refused, StoreError) as error:
            return error

    def _answer(self, refused: Sequence[tuple[Call, Refused]], want: Claim, now: Micros) -> None:
        """Do with messages whose jobs could not be claimed as their rows say: a finished job's is deleted, another
        comes again when its time may have come.
        """
        over: list[Message] = []
        later: list[tuple[Message, int]] = []
        for (message, offer), refusal in refused:
            job = refusal.job
            if refusal.item is None:
                self._give_up(message, NO_JOB, f"There is no job {offer.id}.")
            elif job is None:
                log.warning("%s", self._records.layout.strange(refusal.item))
                later.append((message, _ASIDE))
            elif job.state in TERMINAL:
                if job.state is State.DEAD and REASON in message.attributes:
                    self._queues.send([_again(message)], self._queues.dead)  # moved here, and not redriven
                over.append(message)
            elif job.lease_id == want.lease_id:
                self._keep(job.id, message)
            else:
                self._see_to(refusal.item, job, now)
                later.append((message, self._until(job, now)))
        self._queues.delete(over)
        self._queues.hide(later)

    def _see_to(self, item: Item, job: JobRecord, now: Micros) -> None:
        """Let a job whose lease is over be seen to now, if it would only be looked at later."""
        over = job.state is State.RUNNING and (job.lease_expires_at or 0) + self._wire.address.skew <= now
        if over and item.get(LOOK) != items.wire(look(HELD, job.id, self._wire.address.shards)):
            hold(self._wire, job)

    def _until(self, job: JobRecord, now: Micros) -> int:
        """Give the seconds until a message may find its job runnable."""
        at = job.lease_expires_at if job.state is State.RUNNING else job.available_at
        wait = ((at or now) - now + self._wire.address.skew) / SECOND
        return max(math.ceil(wait), _ELSEWHERE)

    def judge(self, want: Claim, now: Micros) -> None:
        """Do with the messages that a listener received as their rows say, where jobs are not claimed by them."""
        with self._lock:
            found = [self._waiting.popleft() for _ in range(len(self._waiting))]
        calls, _ = self._sorted(found, want._replace(queues=None, full=frozenset()), frozenset(), None)
        rows = self._records.rows([call.offer.id for call in calls])
        layout = self._records.layout
        read = [(call, rows.get(call.offer.id)) for call in calls]
        refused = [(call, Refused(row, layout.understood(row) if row else None)) for call, row in read]
        self._answer(refused, want, now)

    def _give_up(self, message: Message, code: str, detail: str) -> None:
        """Put a message that nobody can process into the dead-letter queue, with the reason."""
        [taken] = self._queues.send([_again(message, self._why(code, detail))], self._queues.dead)
        if taken:
            self._queues.delete([message])

    def _keep(self, id_: str, message: Message) -> None:
        with self._lock:
            self._hand.setdefault(id_, []).append(message)
            if len(self._hand) > _MOST_REMEMBERED:
                self._hand.popitem(last=False)

    def _let_go(self, id_: str) -> list[Message]:
        with self._lock:
            return self._hand.pop(id_, [])

    def listen(self, wait: int) -> bool:
        """Wait for messages while there is room for more; tell whether there are some."""
        if not self._waiting and self.room > 0:
            found = self._queues.receive(self.room, hide=self._hide, wait=wait)
            with self._lock:
                self._waiting.extend(found)
            if self.room < 1:  # a claim has filled it meanwhile
                self.hand_back()
        return bool(self._waiting)

    @property
    def heard_some(self) -> bool:
        """Tell whether messages wait here for a claim."""
        return bool(self._waiting)

    def hand_back(self) -> None:
        """Let others have the messages that wait here."""
        with self._lock:
            found = [(self._waiting.popleft(), 0) for _ in range(len(self._waiting))]
        with suppress(StoreError):
            self._queues.hide(found)


def letter(job: JobRecord, now: Micros, *, looked: bool = False) -> Letter:
    """Write the message that starts a job's next attempt."""
    delay = max(math.ceil((job.available_at - now) / SECOND), 0)
    said = (("queue", quote(job.queue, safe="")), *(((LOOKED, "1"),) if looked else ()))
    return Letter(_body(job), delay, _group(job.tenant), said)


def _body(job: JobRecord) -> str:
    return json.dumps(envelope(job))


def _again(message: Message, why: tuple[tuple[str, str], ...] | None = None) -> Letter:
    return Letter(message.body or " ", attributes=tuple(message.attributes.items()) if why is None else why)


def _group(tenant: str) -> str | None:
    """Name the group by which SQS is fair to tenants."""
    safe = quote(tenant, safe=string.punctuation.replace("%", ""))
    return items.short(safe, _LONG_GROUP) if tenant else None
