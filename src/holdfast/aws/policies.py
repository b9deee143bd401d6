"""Policies with no more than each role needs: a worker, whoever enqueues, and an operator.

An action is listed if the store calls it in that role, and for the things it calls it on; a test compares these lists
with the calls that a worker, an enqueuer and an operator make.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

WORKER, ENQUEUER, OPERATOR = "worker", "enqueuer", "operator"
_READ = ("BatchGetItem", "DescribeTable", "GetItem")
_WRITE = ("BatchWriteItem", "ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem")
_TABLE = {
    WORKER: (*_READ, *_WRITE, "Query"),
    ENQUEUER: (*_READ, *_WRITE),
    OPERATOR: (*_READ, *_WRITE, "Query", "Scan"),
}
_SERVE = ("ChangeMessageVisibility", "DeleteMessage", "ReceiveMessage", "SendMessage")
_MOVE = ("CancelMessageMoveTask", "ListMessageMoveTasks", "StartMessageMoveTask")
_QUEUE = {
    WORKER: ("GetQueueAttributes", "GetQueueUrl", *_SERVE),
    ENQUEUER: ("GetQueueAttributes", "GetQueueUrl", "SendMessage"),
    OPERATOR: ("GetQueueAttributes", "GetQueueUrl", "SendMessage"),
}
_DEAD_LETTERS = {
    WORKER: ("GetQueueUrl", *_SERVE),
    ENQUEUER: ("GetQueueUrl",),
    OPERATOR: ("GetQueueAttributes", "GetQueueUrl", *_SERVE, *_MOVE),
}


class Arns(NamedTuple):
    """What policies are about."""

    tables: Sequence[str]
    indexed: Sequence[str]
    """Those of them that have indexes."""
    queue: str | None = None
    dead_letters: str | None = None


def documents(arns: Arns) -> dict[str, dict[str, Any]]:
    """Give the policy document of each role."""
    return {role: _document(role, arns) for role in (WORKER, ENQUEUER, OPERATOR)}


def _document(role: str, arns: Arns) -> dict[str, Any]:
    resources = list(arns.tables)
    if "Query" in _TABLE[role]:
        resources += [f"{arn}/index/*" for arn in arns.indexed]
    statements = [_allow("Jobs", "dynamodb", _TABLE[role], resources)]
    if arns.queue is not None:
        statements.append(_allow("Queue", "sqs", _QUEUE[role], [arns.queue]))
    if arns.dead_letters is not None:
        statements.append(_allow("DeadLetters", "sqs", _DEAD_LETTERS[role], [arns.dead_letters]))
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(sid: str, service: str, actions: Sequence[str], resources: Sequence[str]) -> dict[str, Any]:
    named = sorted(f"{service}:{action}" for action in actions)
    return {"Sid": sid, "Effect": "Allow", "Action": named, "Resource": list(resources)}
