"""The table of the scheduled queue: what is large, what is strange, and what is refused at the door."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from boto3.dynamodb.conditions import Key  # type: ignore[import-untyped]

from holdfast.domain import lifecycle
from holdfast.domain.errors import BadInput, StoreError, StoreUnreachable, StoreUnusable
from holdfast.domain.job import State
from holdfast.domain.moments import SECOND
from holdfast.port.store import Page, Query
from holdfast.stores import open_store
from holdfast.stores.dynamodb import DynamoStore
from holdfast.stores.dynamodb.bundles import Bundles
from holdfast.stores.dynamodb.items import Place
from holdfast.stores.dynamodb.records import Part
from holdfast.testing.conformance import Lab, lab
from holdfast.testing.lab import RETENTION
from tests.aws import emulator
from tests.aws.outside import Outside
from tests.servers import free_port


@pytest.fixture
def bench(dynamodb_url: str) -> Iterator[Lab]:
    with lab(lambda clock: DynamoStore(dynamodb_url, clock)) as bench:
        yield bench


def test_an_item_of_another_program_is_passed_over_and_reported(bench: Lab) -> None:
    job = bench.job()
    outside = Outside(bench.store.url)
    strange = "scheduled#2020-01-01T00:00:00.000000+00:00#7"
    outside.table.put_item(Item={"PK": "job", "SK": strange, "status": "melting"})
    assert [claimed.id for claimed in bench.claim(5)] == [job.id]
    [finding] = bench.store.check()
    assert strange in finding.text


def mark(outside: Outside, sk: str, status: str) -> None:
    outside.table.update_item(
        Key={"PK": "job", "SK": sk},
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "status"},
        ExpressionAttributeValues={":s": status},
    )


def test_a_job_with_an_unknown_status_is_reported_and_neither_run_nor_lost(bench: Lab) -> None:
    job, outside = bench.job(), Outside(bench.store.url)
    [row] = outside.table.query(KeyConditionExpression=Key("PK").eq("job"))["Items"]
    mark(outside, row["SK"], "melting")
    assert bench.claim(5) == []
    said = f"The item '{row['SK']}' has the status 'melting', which no job has here; it is passed over."
    with pytest.raises(StoreError, match=re.escape(said)):
        bench.store.read([job.id])
    bench.clock.advance(days=400)
    bench.store.purge(100)
    assert [finding.text for finding in bench.store.check()] == [said]
    assert outside.table.query(KeyConditionExpression=Key("PK").eq("job"))["Items"] == [row | {"status": "melting"}]
    mark(outside, row["SK"], "pending")
    assert [claimed.id for claimed in bench.claim(5)] == [job.id]


def test_a_job_that_another_program_cancelled_by_its_status_does_not_run(bench: Lab) -> None:
    job, outside = bench.job(), Outside(bench.store.url)
    [row] = outside.table.query(KeyConditionExpression=Key("PK").eq("job"))["Items"]
    mark(outside, row["SK"], "cancelled")
    assert bench.claim(5) == []
    [found] = bench.store.read([job.id])
    assert found is not None
    assert found.state is State.CANCELLED


@pytest.mark.parametrize("shards", [4, 10])
def test_jobs_spread_over_shards_are_found_all_the_same(aws_endpoint: str, shards: int) -> None:
    url = emulator.table_of(aws_endpoint, shards=shards)
    with lab(lambda clock: DynamoStore(url, clock)) as bench:
        jobs = bench.jobs(30)
        assert bench.store.find(Query()) == jobs[::-1]
        assert bench.store.read([job.id for job in jobs]) == jobs
        claimed = bench.claim(30)
        assert {job.id for job in claimed} == {job.id for job in jobs}
        bench.store.commit([lifecycle.complete(job, None, RETENTION) for job in claimed])
        bench.clock.advance(microseconds=RETENTION.succeeded)
        assert bench.store.purge(100).jobs == 30
        assert list(bench.store.check()) == []
    with pytest.raises(StoreUnusable, match=f"write shards={shards}"):
        open_store(url.replace(f"shards={shards}", "shards=3")).counts()
    emulator.drop(url)


def test_a_large_group_left_half_done_is_brought_in_by_upkeep(bench: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bench.ids.take(150)
    group = [(id_, bench.new()) for id_ in ids]

    def die(self: Bundles, mark: Place, number: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bundles, "_bring_in", die)
        with pytest.raises(KeyboardInterrupt):
            bench.store.insert([group])
    assert not any(bench.store.read(ids))
    bench.other.unsubmitted(0, 10)
    assert not any(bench.store.read(ids)), "it is left to the process that wrote it for a while"
    bench.clock.advance(minutes=1)
    bench.other.unsubmitted(0, 10)
    assert all(bench.store.read(ids))
    assert len(bench.claim(200)) == 150


def test_a_large_group_that_died_before_its_mark_is_not_there(bench: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bench.ids.take(150)

    def die(self: object, parts: list[Part], op: str) -> None:
        raise KeyboardInterrupt

    group = [(id_, bench.new(key=id_[-4:] if n < 5 else None)) for n, id_ in enumerate(ids)]
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.stores.dynamodb.wire.Wire.transact", die)
        with pytest.raises(KeyboardInterrupt):
            bench.store.insert([group])
    bench.clock.advance(minutes=1)
    bench.store.unsubmitted(0, 10)
    assert not any(bench.store.read(ids))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dynamodb://", "not the name of a DynamoDB table"),
        ("dynamodb://a b c", "not the name of a DynamoDB table"),
        ("dynamodb://jobs?shards=0", "shards of a DynamoDB URL must be a whole number from 1 to 100"),
        ("dynamodb://jobs?endpoint=nonsense", "endpoint of a DynamoDB URL cannot be 'nonsense'"),
        ("dynamodb://jobs?poll=never", "poll of a DynamoDB URL must be seconds"),
        ("dynamodb://jobs?color=blue", "has no option 'color'"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_store(url)


def test_nobody_at_the_endpoint_is_said_so() -> None:
    with pytest.raises(StoreUnreachable, match=r"nobody answers there\."):
        open_store(f"dynamodb://jobs?endpoint=http://127.0.0.1:{free_port()}").counts()


def test_a_table_that_is_not_there_is_made_on_an_emulator_only(
    aws_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.dynamodb.address._LOOPBACK", frozenset[str]())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(StoreUnusable, match=r"There is no table .* make it with `holdfast init aws`"):
        open_store(emulator.table_of(aws_endpoint)).counts()


def test_no_credentials_are_said_so(aws_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.dynamodb.address._LOOPBACK", frozenset[str]())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = emulator.table_of(aws_endpoint, region="us-west-2")  # a client of its own
    with pytest.raises(StoreUnusable, match="no AWS credentials"):
        open_store(url).counts()


def test_a_table_with_another_key_is_refused(dynamodb_url: str) -> None:
    store = DynamoStore(dynamodb_url)
    Outside(store.url).dynamodb.create_table(
        TableName=store.address.table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(StoreUnusable, match="has another key than PK and SK"):
        store.counts()


def test_a_page_that_expires_carries_the_tables_own_word_for_it_and_leaves_nothing_behind(bench: Lab) -> None:
    now = bench.clock.now()
    table = Outside(bench.store.url).table

    def kept() -> list[dict[str, Any]]:
        return [item for item in table.scan()["Items"] if item["PK"].startswith("pages")]

    bench.store.write_page(Page("book", "stays", "{}"), None)
    bench.store.write_page(Page("book", "goes", "{}", expires_at=now + SECOND + 1), None)
    bench.store.write_page(Page("book", "goes", "{}", expires_at=now + 2 * SECOND), 1)
    expiring = [item for item in kept() if "ttl_at" in item]
    seconds = now // SECOND
    assert sorted(int(item["ttl_at"]) - seconds for item in expiring) == [2, 2, 2], "a page and two marks"
    bench.clock.advance(seconds=2)
    assert bench.store.purge(10).pages == 1
    assert [(item["PK"], item["name"]) for item in kept()] == [("pages#book", "stays")]
    assert list(bench.store.check()) == []


def test_a_page_that_is_too_large_is_refused_in_a_sentence(bench: Lab) -> None:
    with pytest.raises(StoreError, match="The page 'large' of 'book' is too large"):
        bench.store.write_page(Page("book", "large", "x" * 500_000), None)
    assert bench.store.pages("book") == []
