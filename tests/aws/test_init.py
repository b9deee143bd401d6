"""`holdfast init aws` as people run it: it says what differs, changes nothing unasked, and mends what it can."""

import json
import subprocess
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.aws.session import client
from tests.servers import free_port
from tests.surfaces.processes import parsed, run

REGION = "eu-central-1"
_NUMBERS = count(1)
INDEX = "workspace_id (S), created_at (S) with credits_estimate, status, trigger_type, workflow_id"
STUCK = "the key of a table cannot be changed: name another table"
OTHER = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["sqs:SendMessage"], "Resource": ["arn:aws:sqs:*:*:another"]}],
}
_KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}


class Place:
    """Names that nobody has used, at an emulator."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.endpoint = endpoint
        self.folder = folder
        number = next(_NUMBERS)
        self.table, self.queue, self.topic = f"init-jobs-{number}", f"init-calls-{number}", f"init-alerts-{number}"

    def init(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        names = ("--table", self.table, "--queue", self.queue, "--alarm-topic", self.topic)
        return self.run(*names, *words, **environment)

    def run(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        where = ("--region", REGION, "--endpoint", self.endpoint)
        return run("init", "aws", *where, *words, cwd=self.folder, timeout=60, **environment)

    def client(self, service: str) -> Any:
        return client(service, REGION, self.endpoint)

    def url(self, store: str) -> str:
        """Give a store's URL with the place where it is."""
        return f"{store}?region={REGION}&endpoint={self.endpoint}"


@pytest.fixture
def place(aws_endpoint: str, tmp_path: Path) -> Place:
    return Place(aws_endpoint, tmp_path)


def differences(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in done.stdout.splitlines() if line[0] in "+~!"]


def test_a_first_run_makes_nothing_and_says_what_is_missing(place: Place) -> None:
    done = place.init()
    assert (done.returncode, done.stderr) == (1, "")
    assert differences(done) == [
        f"+ table {place.table}",
        f"+ table {place.table}-holdfast",
        f"+ queue {place.queue}-dlq",
        f"+ queue {place.queue}",
        f"+ topic {place.topic}",
        f"+ alarm {place.queue}-dlq-depth",
        f"+ policy {place.table}-worker",
        f"+ policy {place.table}-enqueuer",
        f"+ policy {place.table}-operator",
    ]
    assert done.stdout.splitlines()[-1] == (
        "9 differences; nothing was changed. To mend: the same command with --apply."
    )
    assert place.table not in place.client("dynamodb").list_tables()["TableNames"]
    assert place.init().stdout == done.stdout


def test_apply_makes_everything_once(place: Place) -> None:
    done = place.init("--apply")
    assert (done.returncode, done.stderr) == (0, "")
    url = place.url(f"dynamodb+sqs://{place.table}/{place.queue}")
    assert done.stdout.splitlines()[-1] == f"9 differences mended; the store is {url}."
    with closing(Holdfast(url)) as app:
        assert app.counts()["queued"] == 0, "what it says opens the store, whatever the AWS settings are"
    for words in ((), ("--apply",)):
        again = place.init(*words)
        assert (again.returncode, differences(again)) == (0, [])
        assert again.stdout.splitlines()[-1].startswith("Nothing differs")
    table = place.client("dynamodb").describe_table(TableName=place.table)["Table"]
    assert table["KeySchema"] == [{"AttributeName": "job_id", "KeyType": "HASH"}]
    assert "workspace_created_at" in {one["IndexName"] for one in table["GlobalSecondaryIndexes"]}
    (alarm,) = place.client("cloudwatch").describe_alarms(AlarmNames=[f"{place.queue}-dlq-depth"])["MetricAlarms"]
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": f"{place.queue}-dlq"}]
    assert [arn.rpartition(":")[2] for arn in alarm["AlarmActions"]] == [place.topic]


def test_json_says_the_same_for_programs(place: Place) -> None:
    done = place.init("--json")
    told = parsed(done.stdout)
    assert done.returncode == 1
    assert (told["region"], told["applied"]) == (REGION, False)
    assert told["url"] == place.url(f"dynamodb+sqs://{place.table}/{place.queue}")
    assert {(one["kind"], one["name"]) for one in told["differences"]} >= {("table", place.table)}
    assert all(one["setting"] is None and isinstance(one["want"], dict) for one in told["differences"])
    assert parsed(place.init("--json", "--apply").stdout)["applied"] is True
    assert parsed(place.init("--json").stdout)["differences"] == []


def test_what_was_changed_by_hand_is_told_and_mended(place: Place) -> None:
    place.init("--apply")
    sqs, dynamodb = place.client("sqs"), place.client("dynamodb")
    url = sqs.get_queue_url(QueueName=place.queue)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    update = {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": "workspace_created_at"}}]}
    dynamodb.update_table(TableName=place.table, **update)
    off = {"PointInTimeRecoveryEnabled": False}
    dynamodb.update_continuous_backups(TableName=place.table, PointInTimeRecoverySpecification=off)
    place.client("cloudwatch").delete_alarms(AlarmNames=[f"{place.queue}-dlq-depth"])
    arn = "arn:aws:iam::000000000000:policy/" + f"{place.table}-enqueuer"
    document = json.dumps(OTHER)
    place.client("iam").create_policy_version(PolicyArn=arn, PolicyDocument=document, SetAsDefault=True)
    done = place.init()
    assert done.returncode == 1
    assert differences(done) == [
        f"~ table {place.table}: index workspace_created_at is not set, not {INDEX}",
        f"~ table {place.table}: point-in-time recovery is off, not on",
        f"~ queue {place.queue}: VisibilityTimeout is 7, not 60",
        f"+ alarm {place.queue}-dlq-depth",
        f"~ policy {place.table}-enqueuer: document is one that allows 1 action, not {_allows(place, 'enqueuer')}",
    ]
    assert place.init("--apply").returncode == 0
    assert differences(place.init()) == []


def _allows(place: Place, role: str) -> str:
    """Say how many actions a policy should allow, as the first run told."""
    other = Place(place.endpoint, place.folder)
    lines = other.init().stdout.splitlines()
    told = lines[lines.index(f"+ policy {other.table}-{role}") + 1]
    return told.strip().removeprefix("document: ")


def test_a_policy_that_has_all_the_versions_it_may_have_is_mended_too(place: Place) -> None:
    place.init("--apply")
    iam, arn = place.client("iam"), f"arn:aws:iam::000000000000:policy/{place.table}-worker"
    for _ in range(4):
        document = json.dumps(OTHER)
        iam.create_policy_version(PolicyArn=arn, PolicyDocument=document, SetAsDefault=True)
    assert place.init("--apply").returncode == 0
    assert differences(place.init()) == []
    assert len(iam.list_policy_versions(PolicyArn=arn)["Versions"]) == 5


def test_a_queue_without_a_dead_letter_queue_is_told_and_gets_one(place: Place) -> None:
    place.client("sqs").create_queue(QueueName=place.queue)
    done = place.init()
    assert f"+ queue {place.queue}-dlq" in differences(done)
    assert any(line.startswith(f"~ queue {place.queue}: RedrivePolicy is not set") for line in differences(done))
    assert place.init("--apply").returncode == 0
    assert differences(place.init()) == []


def test_a_table_with_another_key_is_refused_and_nothing_is_changed(place: Place) -> None:
    place.client("dynamodb").create_table(
        TableName=place.table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    done = place.init()
    told = f"! table {place.table}: key is id (S), not job_id (S); {STUCK}"
    assert (done.returncode, told in differences(done)) == (1, True)
    done = place.init("--apply")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: The table {place.table!r} has key id (S), not job_id (S), and {STUCK}; nothing was changed.\n"
    )
    assert place.queue not in str(place.client("sqs").list_queues().get("QueueUrls", []))


def test_the_layout_scheduled_is_a_table_and_its_policies(place: Place) -> None:
    words = ("--layout", "scheduled", "--table", place.table)
    assert [line.split()[1] for line in differences(place.run(*words))] == ["table", "policy", "policy", "policy"]
    done = place.run(*words, "--apply")
    store = place.url(f"dynamodb://{place.table}")
    assert done.stdout.splitlines()[-1] == f"4 differences mended; the store is {store}."
    assert place.run(*words).returncode == 0


def test_policies_can_be_left_to_somebody_else(place: Place) -> None:
    assert not any("policy" in line for line in differences(place.init("--no-policies")))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--table", "jobs"), "The layout contract needs a queue; name it with --queue"),
        (("--table", "j", "--queue", "q"), "'j' is not the name of a table"),
        (("--table", "jobs", "--queue", "a b"), "'a b' is not the name of a queue"),
        (("--table", "jobs", "--queue", "q", "--dlq", "q"), "cannot be its own dead-letter queue"),
        (("--table", "jobs", "--queue", "q", "--layout", "scheduled"), "The layout scheduled has no queue"),
        (("--table", "jobs", "--queue", "q", "--alarm-topic", "a b"), "'a b' is not the name of a topic"),
        (
            ("--table", "jobs", "--queue", "q", "--alarm-topic", "arn:aws:sns:us-east-1:123456789012:ours"),
            "The topic arn:aws:sns:us-east-1:123456789012:ours is not in eu-central-1",
        ),
        (("--queue", "q"), "Missing option '--table'"),
    ],
)
def test_names_that_aws_would_refuse_are_refused_first(place: Place, words: tuple[str, ...], says: str) -> None:
    done = place.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_credentials_it_says_so(place: Place) -> None:
    nothing = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    blank = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    words = ("--table", place.table, "--queue", place.queue, "--region", REGION)
    done = run("init", "aws", *words, cwd=place.folder, timeout=20, **nothing, **blank)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: There are no AWS credentials; set them, or take a profile or a role that has some.\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--region", "nowhere at all"), 2, "'nowhere at all' is not a region of AWS; name one with --region."),
        (("--region", REGION, "--endpoint", "nonsense"), 2, "'nonsense' is not an endpoint"),
        ((), 2, "There is no AWS region; name it with --region, or in your AWS settings."),
    ],
    ids=["no region of AWS", "no endpoint", "no region"],
)
def test_a_place_that_is_none_is_told_so(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    settings = {"AWS_CONFIG_FILE": "/dev/null", "AWS_DEFAULT_REGION": "", "AWS_REGION": "", **_KEYS}
    done = run("init", "aws", "--table", "jobs", "--queue", "q", *words, cwd=tmp_path, timeout=20, **settings)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_nobody_at_the_endpoint_is_told_so(tmp_path: Path) -> None:
    words = ("--table", "jobs", "--queue", "q", "--region", REGION, "--endpoint", f"http://127.0.0.1:{free_port()}")
    done = run("init", "aws", *words, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: Nobody answers for sts in {REGION}; is the region right, and the endpoint?\n"
