"""What there is in an AWS account, in the same words as `desired`, and how it is brought to what there should be."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from holdfast.aws.calls import Calls
from holdfast.aws.desired import Difference, Kind, Resource
from holdfast.stores.dynamodb import table
from holdfast.stores.dynamodb.table import Shape

_NUMBERS = frozenset({"VisibilityTimeout", "MessageRetentionPeriod", "ReceiveMessageWaitTimeSeconds"})
_FLAGS = frozenset({"SqsManagedSseEnabled"})
_MOST_VERSIONS = 5
"""A policy keeps no more versions than these."""


def look(calls: Calls, resource: Resource) -> Mapping[str, Any] | None:
    """Read the settings of a thing; None if there is none of that name."""
    match resource.kind:
        case Kind.TABLE:
            return _table(calls, resource.name)
        case Kind.QUEUE:
            return _queue(calls, resource.name)
        case Kind.TOPIC:
            return None if calls.ask("sns", "get_topic_attributes", TopicArn=resource.arn) is None else {}
        case Kind.ALARM:
            return _alarm(calls, resource.name)
        case Kind.POLICY:
            return _policy(calls, resource.arn)
        case _:
            assert_never(resource.kind)


def _table(calls: Calls, name: str) -> Mapping[str, Any] | None:
    answer = calls.ask("dynamodb", "describe_table", TableName=name)
    if answer is None:
        return None
    said = answer["Table"]
    types = {one["AttributeName"]: one["AttributeType"] for one in said["AttributeDefinitions"]}
    ttl = calls.tell("dynamodb", "describe_time_to_live", TableName=name)["TimeToLiveDescription"]
    backups = calls.tell("dynamodb", "describe_continuous_backups", TableName=name)["ContinuousBackupsDescription"]
    recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
    return {
        "key": _key(said["KeySchema"], types),
        "billing mode": said.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED"),
        **{f"index {one['IndexName']}": _index(one, types) for one in said.get("GlobalSecondaryIndexes", ())},
        "time to live": ttl.get("AttributeName") if ttl["TimeToLiveStatus"] in ("ENABLED", "ENABLING") else None,
        "point-in-time recovery": recovery == "ENABLED",
    }


def _key(parts: Sequence[Mapping[str, str]], types: Mapping[str, str]) -> list[str]:
    ordered = sorted(parts, key=lambda part: part["KeyType"])  # HASH, then RANGE
    return [f"{part['AttributeName']} ({types[part['AttributeName']]})" for part in ordered]


def _index(index: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    projection = index["Projection"]
    if projection["ProjectionType"] == "ALL":
        return {"key": _key(index["KeySchema"], types), "projects": ["*"]}
    return {"key": _key(index["KeySchema"], types), "projects": sorted(projection.get("NonKeyAttributes", ()))}


def _queue(calls: Calls, name: str) -> Mapping[str, Any] | None:
    url = calls.ask("sqs", "get_queue_url", QueueName=name)
    if url is None:
        return None
    asked = calls.tell("sqs", "get_queue_attributes", QueueUrl=url["QueueUrl"], AttributeNames=["All"])
    return {attribute: _read(attribute, text) for attribute, text in asked["Attributes"].items()}


def _read(attribute: str, text: str) -> Any:
    if attribute in _NUMBERS:
        return int(text)
    if attribute in _FLAGS:
        return text == "true"
    if attribute == "RedrivePolicy":
        policy = json.loads(text)
        return {**policy, "maxReceiveCount": int(policy["maxReceiveCount"])}  # AWS gives back what it was told: a text
    return json.loads(text) if attribute == "RedriveAllowPolicy" else text


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _alarm(calls: Calls, name: str) -> Mapping[str, Any] | None:
    alarms = calls.tell("cloudwatch", "describe_alarms", AlarmNames=[name], AlarmTypes=["MetricAlarm"])["MetricAlarms"]
    if not alarms:
        return None
    dimensions = {one["Name"]: one["Value"] for one in alarms[0].get("Dimensions", ())}
    return {**alarms[0], "Dimensions": dimensions}


def _policy(calls: Calls, arn: str) -> Mapping[str, Any] | None:
    policy = calls.ask("iam", "get_policy", PolicyArn=arn)
    if policy is None:
        return None
    version = policy["Policy"]["DefaultVersionId"]
    document = calls.tell("iam", "get_policy_version", PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    return {"document": json.loads(document) if isinstance(document, str) else document}


def mend(calls: Calls, resource: Resource, different: Sequence[Difference], shape: Shape | None) -> None:
    """Make a thing that is missing, or change the settings of one that differs. `shape` is a table's own."""
    missing = any(one.setting is None for one in different)
    match resource.kind:
        case Kind.TABLE:
            assert shape is not None
            _mend_table(calls, resource, different, shape)
        case Kind.QUEUE:
            _mend_queue(calls, resource, missing=missing)
        case Kind.TOPIC:
            calls.tell("sns", "create_topic", Name=resource.name)
        case Kind.ALARM:
            named = resource.settings["Dimensions"].items()
            dimensions = [{"Name": name, "Value": value} for name, value in named]
            settings = {**resource.settings, "Dimensions": dimensions}
            calls.tell("cloudwatch", "put_metric_alarm", AlarmName=resource.name, **settings)
        case Kind.POLICY:
            _mend_policy(calls, resource, missing=missing)
        case _:
            assert_never(resource.kind)


def _mend_table(calls: Calls, resource: Resource, different: Sequence[Difference], shape: Shape) -> None:
    name, settings = resource.name, {one.setting for one in different}
    if None in settings:
        calls.tell("dynamodb", "create_table", **table.request(name, shape))
        calls.await_table(name)
        settings = {"time to live", "point-in-time recovery"}
    if "billing mode" in settings:
        calls.tell("dynamodb", "update_table", TableName=name, BillingMode=resource.settings["billing mode"])
        calls.await_table(name)
    for index in shape.indexes:
        if f"index {index.name}" in settings:  # one at a time: DynamoDB takes no more in a call
            _add_index(calls, name, shape._replace(indexes=(index,)))
    if "time to live" in settings and shape.ttl is not None:
        wanted = {"Enabled": True, "AttributeName": shape.ttl}
        calls.tell("dynamodb", "update_time_to_live", TableName=name, TimeToLiveSpecification=wanted)
    if "point-in-time recovery" in settings:
        wanted = {"PointInTimeRecoveryEnabled": True}
        calls.tell("dynamodb", "update_continuous_backups", TableName=name, PointInTimeRecoverySpecification=wanted)


def _add_index(calls: Calls, name: str, shape: Shape) -> None:
    """Add the only index that this shape has."""
    wanted = table.request(name, shape)
    calls.tell(
        "dynamodb",
        "update_table",
        TableName=name,
        AttributeDefinitions=wanted["AttributeDefinitions"],
        GlobalSecondaryIndexUpdates=[{"Create": index} for index in wanted["GlobalSecondaryIndexes"]],
    )
    calls.await_table(name)


def _mend_queue(calls: Calls, resource: Resource, *, missing: bool) -> None:
    attributes = {name: _written(value) for name, value in resource.settings.items()}
    if missing:
        calls.tell("sqs", "create_queue", QueueName=resource.name, Attributes=attributes)
        return
    url = calls.tell("sqs", "get_queue_url", QueueName=resource.name)["QueueUrl"]
    calls.tell("sqs", "set_queue_attributes", QueueUrl=url, Attributes=attributes)


def _mend_policy(calls: Calls, resource: Resource, *, missing: bool) -> None:
    document = json.dumps(resource.settings["document"])
    if missing:
        calls.tell("iam", "create_policy", PolicyName=resource.name, PolicyDocument=document)
        return
    versions = calls.tell("iam", "list_policy_versions", PolicyArn=resource.arn)["Versions"]
    if len(versions) >= _MOST_VERSIONS:
        oldest = min((one for one in versions if not one["IsDefaultVersion"]), key=lambda one: one["CreateDate"])
        calls.tell("iam", "delete_policy_version", PolicyArn=resource.arn, VersionId=oldest["VersionId"])
    calls.tell("iam", "create_policy_version", PolicyArn=resource.arn, PolicyDocument=document, SetAsDefault=True)
