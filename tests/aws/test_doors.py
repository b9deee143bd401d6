"""What is refused at the door of the store of the contract: one sentence each, which says what to do."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.domain.errors import BadInput, StoreUnreachable, StoreUnusable
from holdfast.stores import open_store
from holdfast.stores.dynamodb import table
from tests.aws import emulator
from tests.aws.outside import Outside
from tests.servers import free_port


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulator count as AWS itself, where nothing is made unasked."""
    monkeypatch.setattr("holdfast.stores.dynamodb.address._LOOPBACK", frozenset[str]())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


@pytest.fixture
def url(aws_endpoint: str) -> Iterator[str]:
    url = emulator.contract_of(aws_endpoint)
    yield url
    emulator.drop(url)


def make_tables(outside: Outside, **changes: Any) -> None:
    name = outside.table.name
    outside.dynamodb.create_table(**{**table.request(name, table.CONTRACT), **changes})
    outside.dynamodb.create_table(**table.request(f"{name}-holdfast", table.SIDE))


def make_queue(outside: Outside, name: str, dlq: str | None = None) -> None:
    attributes = {}
    if dlq is not None:
        arn = outside.sqs.get_queue_attributes(QueueUrl=outside.url(dlq), AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 5}
        attributes = {"RedrivePolicy": json.dumps(policy)}
    outside.sqs.create_queue(QueueName=name, Attributes=attributes)


@pytest.mark.usefixtures("real")
def test_what_is_missing_is_named_in_turn_until_all_of_it_is_there(url: str) -> None:
    outside = Outside(url)
    name, queue, dlq = outside.table.name, outside.queue, outside.dlq
    store = open_store(url)
    with pytest.raises(StoreUnusable, match=rf"no table '{name}' .*`holdfast init aws`"):
        store.counts()
    outside.dynamodb.create_table(**table.request(name, table.CONTRACT))
    with pytest.raises(StoreUnusable, match=rf"no '{name}-holdfast' .*`holdfast init aws`"):
        store.counts()
    outside.dynamodb.create_table(**table.request(f"{name}-holdfast", table.SIDE))
    with pytest.raises(StoreUnusable, match=rf"There is no queue '{dlq}' .*`holdfast init aws`"):
        store.counts()
    make_queue(outside, dlq)
    with pytest.raises(StoreUnusable, match=rf"There is no queue '{queue}' .*`holdfast init aws`"):
        store.counts()
    make_queue(outside, queue, dlq)
    assert store.counts() == {}


@pytest.mark.usefixtures("real")
def test_a_queue_without_its_dead_letter_queue_is_refused(url: str) -> None:
    outside = Outside(url)
    make_tables(outside)
    make_queue(outside, outside.dlq)
    make_queue(outside, outside.queue)
    says = rf"The queue '{outside.queue}' has no dead-letter queue '{outside.dlq}'; set it with `holdfast init aws`"
    with pytest.raises(StoreUnusable, match=says):
        open_store(url).counts()
    outside.sqs.create_queue(QueueName=f"{outside.queue}-other")
    with pytest.raises(StoreUnusable, match="has no dead-letter queue"):
        open_store(f"{url}&dlq={outside.queue}-other").counts()
    outside.sqs.delete_queue(QueueUrl=outside.url(f"{outside.queue}-other"))


@pytest.mark.parametrize("index", [index.name for index in table.CONTRACT.indexes])
def test_a_table_without_an_index_is_refused(url: str, index: str) -> None:
    outside = Outside(url)
    rest = [each for each in table.CONTRACT.indexes if each.name != index]
    outside.dynamodb.create_table(**table.request(outside.table.name, table.CONTRACT._replace(indexes=tuple(rest))))
    with pytest.raises(StoreUnusable, match=rf"has no index '{index}' by .*; add it with `holdfast init aws`"):
        open_store(url).counts()


def test_a_table_with_another_key_is_refused(url: str) -> None:
    outside = Outside(url)
    outside.dynamodb.create_table(**table.request(outside.table.name, table.SCHEDULED))
    with pytest.raises(StoreUnusable, match="has another key than job_id"):
        open_store(url).counts()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("dynamodb+sqs://jobs", "'' is not the name of an SQS queue (1 to 80 letters, digits, '_' or '-'); write "),
        ("dynamodb+sqs:///queue", "'' is not the name of a DynamoDB table (3 to 255 letters, digits, '_', '-' or '.')"),
        ("dynamodb+sqs://jobs/a.fifo", "'a.fifo' is not the name of an SQS queue"),
        ("dynamodb+sqs://jobs/q?dlq=", "dlq of a DynamoDB URL cannot be ''"),
        ("dynamodb+sqs://jobs/q?grace=long", "grace of a DynamoDB URL must be seconds"),
        (
            "dynamodb+sqs://jobs/q?color=blue",
            "it takes region, endpoint, dlq, shards, page, skew, grace and lost",
        ),
        ("dynamodb://jobs?dlq=q", "has no option 'dlq'; it takes region, endpoint, shards, page, poll and skew"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(address: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_store(address)
    assert says in str(refused.value)


def test_nobody_at_the_endpoint_is_said_so() -> None:
    with pytest.raises(StoreUnreachable, match="nobody answers there"):
        open_store(f"dynamodb+sqs://jobs/queue?endpoint=http://127.0.0.1:{free_port()}").counts()


def test_another_number_of_shards_is_refused(url: str) -> None:
    open_store(url).counts()
    with pytest.raises(StoreUnusable, match="write shards=1"):
        open_store(url.replace("shards=1", "shards=8")).counts()


def test_a_region_that_is_none_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(StoreUnreachable, match=r"nobody answers there; is the region mars-north-1 right\?"):
        open_store("dynamodb://jobs?region=mars-north-1").counts()
