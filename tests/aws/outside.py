"""Another program at the same table and queues: bare boto3, and nothing of Holdfast but the URL."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3  # type: ignore[import-untyped]

_KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}


class Outside:
    """What such a program sees and does."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        said = {name: values[0] for name, values in parse_qs(parts.query).items()}
        where = {"region_name": said["region"], "endpoint_url": said["endpoint"], **_KEYS}
        self.endpoint = said["endpoint"]
        self.dynamodb = boto3.client("dynamodb", **where)
        self.table = boto3.resource("dynamodb", **where).Table(parts.netloc)
        self.sqs = boto3.client("sqs", **where)
        self.queue = parts.path.strip("/")
        self.dlq = said.get("dlq", f"{self.queue}-dlq")

    def url(self, queue: str) -> str:
        """Give the address of a queue."""
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"])

    def rows(self) -> dict[str, dict[str, Any]]:
        """Read all jobs."""
        found: dict[str, dict[str, Any]] = {}
        more: dict[str, Any] = {}
        while True:
            page = self.table.scan(ConsistentRead=True, **more)
            found |= {row["job_id"]: row for row in page["Items"]}
            if "LastEvaluatedKey" not in page:
                return found
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def status(self, id_: str) -> str:
        """Read the status of a job."""
        return str(self.table.get_item(Key={"job_id": id_}, ConsistentRead=True)["Item"]["status"])

    def bytes(self, id_: str) -> bytes:
        """Give a job's row as it travels."""
        key = {"job_id": {"S": id_}}
        found = self.dynamodb.get_item(TableName=self.table.name, Key=key, ConsistentRead=True)
        return json.dumps(found["Item"], sort_keys=True).encode()

    def send(self, bodies: list[str], to: str | None = None, **attributes: str) -> None:
        """Send messages."""
        said = {name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()}
        for at in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body, "MessageAttributes": said}
                for number, body in enumerate(bodies[at : at + 10])
            ]
            self.sqs.send_message_batch(QueueUrl=self.url(to or self.queue), Entries=entries)

    def receive(self, queue: str | None = None) -> list[dict[str, Any]]:
        """Take all messages that are visible out of a queue."""
        address, found = self.url(queue or self.queue), list[dict[str, Any]]()
        asked = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while some := self.sqs.receive_message(QueueUrl=address, **asked).get("Messages"):
            for message in some:
                self.sqs.delete_message(QueueUrl=address, ReceiptHandle=message["ReceiptHandle"])
            found += some
        return found

    def number(self, queue: str | None = None) -> int:
        """Count the messages of a queue, the hidden ones too."""
        asked = self.sqs.get_queue_attributes(QueueUrl=self.url(queue or self.queue), AttributeNames=["All"])
        return sum(int(text) for name, text in asked["Attributes"].items() if name.startswith("ApproximateNumber"))

    def move_back(self) -> int:
        """Move all messages of the dead-letter queue back, as StartMessageMoveTask does."""
        moved = self.receive(self.dlq)
        for message in moved:
            self.sqs.send_message(
                QueueUrl=self.url(self.queue),
                MessageBody=message["Body"],
                MessageAttributes=message.get("MessageAttributes", {}),
            )
        return len(moved)
