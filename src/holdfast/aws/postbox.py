"""What is said to SQS about a message: when it comes again, and that it is dead, and why.

Without a client (no boto3, no credentials, an event made by hand) nothing is said, and a message comes again when
its visibility timeout is over. Nothing here ever fails a batch.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from holdfast.aws.session import client
from holdfast.domain.errors import BadInput

log = logging.getLogger("holdfast.aws")
REASON = "reason"
"""The attribute of a dead message that tells why it is there; the stores call it so, too."""
LONGEST = 12 * 3_600
"""A message cannot be put off for longer, in seconds."""
_PARTS = 6
_LONGEST_REASON = 250


class Postbox:
    """One queue."""

    def __init__(self, name: str, owner: str, client: Callable[[], Any]) -> None:
        self._name = name
        self._owner = owner
        self._client = client
        self._url = ""
        self._dead_letters: str | None = None

    def postpone(self, receipt: str | None, seconds: int) -> None:
        """Have a message delivered again in so many seconds, and not when its visibility timeout happens to be over."""
        if receipt is None:
            return
        try:
            client = self._client()
            if client is not None:
                hidden = min(max(seconds, 0), LONGEST)
                client.change_message_visibility(
                    QueueUrl=self._address(client), ReceiptHandle=receipt, VisibilityTimeout=hidden
                )
        except Exception as error:  # noqa: BLE001 - it comes again all the same, only later
            log.warning("a message of %s could not be put off: %s", self._name, error)

    def bury(self, record: Mapping[str, Any], code: str, reason: str) -> bool:
        """Put a message that nobody can process into the dead-letter queue; false if it could not be put there.

        Where there is none, it has been logged, and that is all that can be done.
        """
        try:
            client = self._client()
            target = None if client is None else self._grave(client)
            if client is not None and target is not None:
                said = {REASON: code, "detail": reason[:_LONGEST_REASON], "source": self._name}
                attributes = {name: {"DataType": "String", "StringValue": text} for name, text in said.items() if text}
                body = record.get("body")
                text = body if isinstance(body, str) and body else " "  # SQS takes no empty one
                client.send_message(QueueUrl=target, MessageBody=text, MessageAttributes=attributes)
        except Exception as error:  # noqa: BLE001 - SQS itself puts it there when it has come often enough
            log.warning("message %s could not be put aside: %s", record["messageId"], error)
            return False
        return True

    def _address(self, client: Any) -> str:
        if not self._url:
            owner = {"QueueOwnerAWSAccountId": self._owner} if self._owner else {}
            self._url = client.get_queue_url(QueueName=self._name, **owner)["QueueUrl"]
        return self._url

    def _grave(self, client: Any) -> str | None:
        """Find the dead-letter queue that the queue's own redrive policy names."""
        if self._dead_letters is None:
            asked = client.get_queue_attributes(QueueUrl=self._address(client), AttributeNames=["RedrivePolicy"])
            policy = json.loads(asked.get("Attributes", {}).get("RedrivePolicy", "{}"))
            if not policy:
                return None
            *_, owner, name = policy["deadLetterTargetArn"].split(":")
            self._dead_letters = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=owner)["QueueUrl"]
        return self._dead_letters


class Postboxes:
    """The queues that events come from."""

    def __init__(self, url: str, client: Any = None) -> None:
        self._url = url
        self._given = client
        self._made: dict[str, Any] = {}
        self._known: dict[str, Postbox] = {}
        self._lock = threading.Lock()

    def of(self, arn: Any) -> Postbox:
        """Give the queue that an event names."""
        parts = arn.split(":") if isinstance(arn, str) else []
        if len(parts) != _PARTS:
            return Postbox("an unnamed queue", "", lambda: None)
        with self._lock:
            if arn not in self._known:
                region, owner, name = parts[3:]
                self._known[arn] = Postbox(name, owner, lambda: self._client(region))
            return self._known[arn]

    def _client(self, region: str) -> Any:
        if self._given is not None:
            return self._given
        if region not in self._made:
            self._made[region] = _connected(region, self._url)
        return self._made[region]


def _connected(region: str, url: str) -> Any:
    """Make a client, at the endpoint that the store's URL names if it names one; None without boto3."""
    endpoint = dict(parse_qsl(urlsplit(url).query)).get("endpoint") if url.startswith("dynamodb") else None
    try:
        return client("sqs", region, endpoint)
    except BadInput:
        return None
