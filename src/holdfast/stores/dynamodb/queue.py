"""The two queues of SQS: one that brings messages to workers, and one for the messages of dead jobs.

Whatever is told to SQS may be told twice and a message may come twice: a receipt that is too old, or a message that is
gone, is nobody's trouble.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.domain.errors import StoreUnusable
from holdfast.stores.dynamodb import trouble
from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.calls import Calls

LONGEST_HIDE = 12 * 3_600
"""A message cannot be hidden for longer, in seconds."""
RECEIVES = 5
"""How often SQS hands a message out before it puts it into the dead-letter queue by itself."""
_KEPT = 14 * 24 * 3_600
BATCH = 10
"""The most messages of one request."""
_TRIES = 3
_LONGEST_POLL = 20


class Letter(NamedTuple):
    """A message to be sent."""

    body: str
    delay: int = 0
    """Seconds until it can be received."""
    group: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()


class Message(NamedTuple):
    """A message that was received. It is hidden from others for a while, and then comes again."""

    id: str
    receipt: str
    body: str
    attributes: dict[str, str]
    sent: float = 0.0
    """When it was sent, in seconds of SQS's own clock; 0 if that is not known."""


class Queues:
    """The queues of a store."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.main, self.dead = str(address.queue), str(address.dlq)
        self._calls = Calls(address, "sqs")
        self._urls: dict[str, str] = {}

    def prepare(self) -> None:
        """See that the queues are there, and that SQS has somewhere to put what it gives up; on an emulator, make
        them.
        """
        for name in (self.dead, self.main):
            try:
                self._url(name)
            except StoreUnusable as error:
                if not self.address.emulated:
                    raise trouble.no_queue(self.address, name) from error
                self._make(name)
        policy = self._attributes(self.main).get("RedrivePolicy")
        target = json.loads(policy).get("deadLetterTargetArn", "") if policy else ""
        if target.rpartition(":")[2] != self.dead:
            have = f"the dead-letter queue {target.rpartition(':')[2]!r}, not" if target else "no dead-letter queue"
            msg = (
                f"The queue {self.main!r} has {have} {self.dead!r}; set it with `holdfast init aws`, or name another "
                "with ?dlq=."
            )
            raise StoreUnusable(msg)

    def _make(self, name: str) -> None:
        attributes = {"MessageRetentionPeriod": str(_KEPT)}
        if name == self.main:
            arn = self._attributes(self.dead)["QueueArn"]
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES})
        self._calls.call("create_queue", QueueName=name, Attributes=attributes)

    def _attributes(self, name: str) -> dict[str, str]:
        asked = self._calls.call("get_queue_attributes", QueueUrl=self._url(name), AttributeNames=["All"])
        return dict(asked.get("Attributes", {}))

    def _url(self, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self._calls.call("get_queue_url", QueueName=name)["QueueUrl"]
        return self._urls[name]

    def send(self, letters: Sequence[Letter], to: str) -> list[bool]:
        """Send messages, in order; tell of each whether SQS has taken it."""
        taken = [False] * len(letters)
        for at in range(0, len(letters), BATCH):
            left = list(range(at, min(at + BATCH, len(letters))))
            for _ in range(_TRIES):
                answer = self._batch("send_message_batch", to, [_entry(number, letters[number]) for number in left])
                for done in answer.get("Successful", ()):
                    taken[int(done["Id"])] = True
                left = [int(each["Id"]) for each in answer.get("Failed", ()) if not each.get("SenderFault")]
                if not left:
                    break
        return taken

    def receive(self, most: int, *, hide: int, wait: int = 0, of: str | None = None) -> list[Message]:
        """Receive some messages and hide them from others for so many seconds; wait that long for the first."""
        answer = self._calls.call(
            "receive_message",
            QueueUrl=self._url(of or self.main),
            MaxNumberOfMessages=min(most, BATCH),
            VisibilityTimeout=min(hide, LONGEST_HIDE),
            WaitTimeSeconds=min(wait, _LONGEST_POLL),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return [
            Message(
                each["MessageId"],
                each["ReceiptHandle"],
                each.get("Body", ""),
                {name: said.get("StringValue", "") for name, said in each.get("MessageAttributes", {}).items()},
                int(each.get("Attributes", {}).get("SentTimestamp", 0)) / 1_000,
            )
            for each in answer.get("Messages", ())
        ]

    def delete(self, messages: Iterable[Message], of: str | None = None) -> None:
        """Remove messages for good."""
        entries = [{"ReceiptHandle": message.receipt} for message in messages]
        self._all("delete_message_batch", of or self.main, entries)

    def hide(self, messages: Iterable[tuple[Message, int]], of: str | None = None) -> None:
        """Have messages come again in so many seconds."""
        entries = [
            {"ReceiptHandle": message.receipt, "VisibilityTimeout": min(max(seconds, 0), LONGEST_HIDE)}
            for message, seconds in messages
        ]
        self._all("change_message_visibility_batch", of or self.main, entries)

    def _all(self, operation: str, name: str, entries: Sequence[dict[str, Any]]) -> None:
        for at in range(0, len(entries), BATCH):
            some = [{"Id": str(number), **entry} for number, entry in enumerate(entries[at : at + BATCH])]
            self._batch(operation, name, some)

    def _batch(self, operation: str, name: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return dict(self._calls.call(operation, writes=True, QueueUrl=self._url(name), Entries=entries))


def _entry(number: int, letter: Letter) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": letter.body, "DelaySeconds": letter.delay}
    if letter.group is not None:
        entry["MessageGroupId"] = letter.group
    said = {name: {"DataType": "String", "StringValue": text} for name, text in letter.attributes if text}
    return entry | ({"MessageAttributes": said} if said else {})
