"""What there should be in an AWS account, as values: tables, queues, the alarm with its topic, and policies.

Nothing here calls AWS. `holdfast init aws` compares this with what there is; the Terraform module under
`deploy/terraform` says the same, and a test compares the two.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.aws import policies
from holdfast.aws.policies import Arns
from holdfast.domain.errors import BadInput
from holdfast.stores.dynamodb import address, table
from holdfast.stores.dynamodb.table import Index, Shape

_FORTNIGHT = 14 * 86_400
_LONG_POLL = 20
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,256}|arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}")
_LONGEST_NAME = 200


class Layout(StrEnum):
    """How jobs lie in a table."""

    CONTRACT = "contract"
    """The orchestrator's contract: a table and a queue, `dynamodb+sqs://TABLE/QUEUE`."""
    SCHEDULED = "scheduled"
    """The scheduled queue: a table, `dynamodb://TABLE`."""


class Kind(StrEnum):
    """The kinds of things there are."""

    TABLE = "table"
    QUEUE = "queue"
    TOPIC = "topic"
    ALARM = "alarm"
    POLICY = "policy"


class Resource(NamedTuple):
    """One thing, and how it should be: settings by name, as values that can be compared and printed."""

    kind: Kind
    name: str
    settings: Mapping[str, Any]
    arn: str


class Difference(NamedTuple):
    """One way in which an account is not as it should be. Without a `setting`, the whole thing is missing."""

    resource: Resource
    setting: str | None
    have: Any
    want: Any
    stuck: str | None = None
    """Why it cannot be mended in place, and what to do instead."""


class Account(NamedTuple):
    """Where things are."""

    number: str
    region: str
    partition: str = "aws"

    def arn(self, service: str, rest: str, *, regional: bool = True) -> str:
        """Give the name by which AWS knows a thing anywhere."""
        return f"arn:{self.partition}:{service}:{self.region if regional else ''}:{self.number}:{rest}"


class Wish(NamedTuple):
    """What is asked for."""

    layout: Layout
    table: str
    queue: str | None
    dead_letters: str | None
    topic: str
    """The name of the topic that the alarm tells; or the ARN of one that is somebody else's."""
    visibility: int
    receives: int
    policies: bool = True

    @property
    def url(self) -> str:
        """The URL by which an application opens the store."""
        if self.queue is None:
            return f"dynamodb://{self.table}"
        named = "" if self.dead_letters is None else f"?dlq={self.dead_letters}"
        return f"dynamodb+sqs://{self.table}/{self.queue}{named}"

    @property
    def dlq(self) -> str:
        """The name of the dead-letter queue."""
        return self.dead_letters or f"{self.queue}-dlq"

    @property
    def alarm(self) -> str:
        """The name of the alarm on its depth."""
        return f"{self.dlq}-depth"


def checked(wish: Wish) -> Wish:
    """Refuse names that AWS would refuse, before anything is made."""
    _require(_TABLE, wish.table, "table", "3 to 255 letters, digits, dots, dashes and underscores")
    if wish.layout is Layout.SCHEDULED:
        if wish.queue is not None or wish.dead_letters is not None:
            msg = "The layout scheduled has no queue; leave out --queue and --dlq, or take --layout contract."
            raise BadInput(msg)
        return wish
    if wish.queue is None:
        msg = "The layout contract needs a queue; name it with --queue, or take --layout scheduled."
        raise BadInput(msg)
    for name in (wish.queue, wish.dlq):
        _require(_QUEUE, name, "queue", "1 to 80 letters, digits, dashes and underscores")
    if wish.queue == wish.dlq:
        msg = f"The queue {wish.queue!r} cannot be its own dead-letter queue; name another with --dlq."
        raise BadInput(msg)
    _require(_TOPIC, wish.topic, "topic", "an ARN of SNS, or up to 256 letters, digits, dashes and underscores")
    return wish


def _require(pattern: re.Pattern[str], name: str, what: str, form: str) -> None:
    if not pattern.fullmatch(name):
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        msg = f"{shown!r} is not the name of a {what}; it is {form}."
        raise BadInput(msg)


def _is_arn(text: str) -> bool:
    return text.startswith("arn:")


def desired(wish: Wish, account: Account) -> list[Resource]:
    """List what there should be, in an order in which it can be made."""
    shapes = tables(wish)
    found = [_table(name, shape, account) for name, shape in shapes.items()]
    arns = Arns([one.arn for one in found], [one.arn for one in found if shapes[one.name].indexes])
    if wish.queue is not None:
        queues = [_dead_letters(wish, account), _queue(wish, account)]
        arns = arns._replace(queue=queues[1].arn, dead_letters=queues[0].arn)
        found += [*queues, *_topic(wish, account), _alarm(wish, account)]
    if wish.policies:
        for role, document in policies.documents(arns).items():
            name = f"{wish.table}-{role}"
            arn = account.arn("iam", f"policy/{name}", regional=False)
            found.append(Resource(Kind.POLICY, name, {"document": document}, arn))
    return found


def tables(wish: Wish) -> dict[str, Shape]:
    """Give the tables of a layout by name, as the store itself knows them."""
    if wish.layout is Layout.SCHEDULED:
        return {wish.table: table.SCHEDULED}
    return {wish.table: table.CONTRACT, address.parse(wish.url).side: table.SIDE}


def _table(name: str, shape: Shape, account: Account) -> Resource:
    settings: dict[str, Any] = {
        "key": _key(shape.keys),
        "billing mode": table.request(name, shape)["BillingMode"],
        **{f"index {index.name}": _index(index) for index in shape.indexes},
        "time to live": shape.ttl,
        "point-in-time recovery": True,
    }
    return Resource(Kind.TABLE, name, settings, account.arn("dynamodb", f"table/{name}"))


def _key(keys: Mapping[str, str]) -> list[str]:
    return [f"{name} ({type_})" for name, type_ in keys.items()]


def _index(index: Index) -> dict[str, Any]:
    return {"key": _key(index.keys), "projects": sorted(index.shows or ())}


def _queue(wish: Wish, account: Account) -> Resource:
    target = account.arn("sqs", wish.dlq)
    settings = {
        "VisibilityTimeout": wish.visibility,
        "MessageRetentionPeriod": _FORTNIGHT,
        "ReceiveMessageWaitTimeSeconds": _LONG_POLL,
        "SqsManagedSseEnabled": True,
        "RedrivePolicy": {"deadLetterTargetArn": target, "maxReceiveCount": wish.receives},
    }
    assert wish.queue is not None
    return Resource(Kind.QUEUE, wish.queue, settings, account.arn("sqs", wish.queue))


def _dead_letters(wish: Wish, account: Account) -> Resource:
    sources = [account.arn("sqs", wish.queue or "")]
    settings = {
        "MessageRetentionPeriod": _FORTNIGHT,
        "SqsManagedSseEnabled": True,
        "RedriveAllowPolicy": {"redrivePermission": "byQueue", "sourceQueueArns": sources},
    }
    return Resource(Kind.QUEUE, wish.dlq, settings, account.arn("sqs", wish.dlq))


def _topic(wish: Wish, account: Account) -> list[Resource]:
    """Make the topic ours, unless it was named as somebody else's."""
    if _is_arn(wish.topic):
        return []
    return [Resource(Kind.TOPIC, wish.topic, {}, account.arn("sns", wish.topic))]


def _alarm(wish: Wish, account: Account) -> Resource:
    topic = wish.topic if _is_arn(wish.topic) else account.arn("sns", wish.topic)
    if topic.split(":")[3] != account.region:
        msg = f"The topic {topic} is not in {account.region}, where its alarm would be; name one that is there."
        raise BadInput(msg)
    settings = {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "Dimensions": {"QueueName": wish.dlq},
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 0,
        "ComparisonOperator": "GreaterThanThreshold",
        "TreatMissingData": "notBreaching",
        "AlarmActions": [topic],
    }
    return Resource(Kind.ALARM, wish.alarm, settings, account.arn("cloudwatch", f"alarm:{wish.alarm}"))


def differences(resource: Resource, found: Mapping[str, Any] | None) -> list[Difference]:
    """Compare a thing with what was found under its name; None if nothing was.

    What was found beyond what is asked for, such as a further index, is nobody's business here.
    """
    if found is None:
        return [Difference(resource, None, None, None)]
    return [
        Difference(resource, name, found.get(name), want, _stuck(resource, name, found.get(name)))
        for name, want in resource.settings.items()
        if found.get(name) != want
    ]


def _stuck(resource: Resource, setting: str, have: Any) -> str | None:
    if resource.kind is not Kind.TABLE or have is None:
        return None
    if setting == "key":
        return "the key of a table cannot be changed: name another table"
    if setting.startswith("index "):
        return "an index cannot be changed: delete it, then ask again"
    if setting == "time to live":
        return "turn it off for the other attribute first; DynamoDB takes up to an hour for that"
    return None
