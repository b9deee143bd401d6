"""The Terraform modules say the same as `holdfast init aws`: attribute by attribute, and they are formatted."""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import hcl2
import pytest

from holdfast.aws.desired import Account, Kind, Layout, Resource, Wish, desired
from holdfast.cli.init import aws

FOLDER = Path(__file__).parents[2] / "deploy" / "terraform"
FILES = sorted(FOLDER.rglob("*.tf"))
ACCOUNT = Account("123456789012", "us-east-1")
DEFAULTS: dict[str, Any] = {option.name: option.default for option in aws.params if option.name is not None}
"""What `init aws` takes if it is told nothing."""
SEED = Wish(
    Layout.CONTRACT,
    "lifebook-orchestrator-jobs",
    "lifebook-orchestrator-queue",
    None,
    "lifebook-alerts",
    DEFAULTS["visibility"],
    DEFAULTS["max_receives"],
)
OWN = SEED._replace(dead_letters="lifebook-orchestrator-dlq")
TOPIC = "arn:aws:sns:us-east-1:123456789012:ours"
_BLOCK = "__is_block__"
_CHOICE = re.compile(r"(\S+) (==|!=) null \? (.+) : (.+)")
_REFERENCE = re.compile(r"(?:data\.)?(aws_\w+)\.(\w+)(?:\[0\])?\.(\w+)")
_INTERPOLATION = re.compile(r"\$\{([^}]+)\}")
_QUEUE = {
    "visibility_timeout_seconds": "VisibilityTimeout",
    "message_retention_seconds": "MessageRetentionPeriod",
    "receive_wait_time_seconds": "ReceiveMessageWaitTimeSeconds",
    "sqs_managed_sse_enabled": "SqsManagedSseEnabled",
    "redrive_policy": "RedrivePolicy",
}
_ALARM = {
    "namespace": "Namespace",
    "metric_name": "MetricName",
    "dimensions": "Dimensions",
    "statistic": "Statistic",
    "period": "Period",
    "evaluation_periods": "EvaluationPeriods",
    "threshold": "Threshold",
    "comparison_operator": "ComparisonOperator",
    "treat_missing_data": "TreatMissingData",
    "alarm_actions": "AlarmActions",
}


class Module:
    """A module as Terraform would see it, as far as these modules go: values of expressions, with variables given."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self._given = given
        self._blocks: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(folder.glob("*.tf")):
            with path.open(encoding="utf-8") as file:
                for sort, blocks in hcl2.load(file).items():
                    self._blocks.setdefault(sort, []).extend(blocks)

    def resources(self, sort: str, of: str = "resource") -> dict[str, dict[str, Any]]:
        """Give the blocks of a type by label, their expressions as they are written."""
        found: dict[str, dict[str, Any]] = {}
        for block in self._blocks.get(of, ()):
            for type_, labels in block.items():
                if _bare(type_) == sort:
                    found |= {_bare(label): body for label, body in labels.items() if label != _BLOCK}
        return found

    def body(self, block: dict[str, Any]) -> dict[str, Any]:
        """Evaluate a block."""
        return {_bare(name): self.value(value) for name, value in block.items() if name != _BLOCK}

    def value(self, written: Any) -> Any:
        """Evaluate an expression, or a structure of them."""
        if isinstance(written, list):
            return [self.value(one) for one in written]
        if isinstance(written, dict):
            return self.body(written)
        if not isinstance(written, str):
            return written
        if written.startswith('"'):
            return _INTERPOLATION.sub(lambda found: str(self._term(found[1])), _bare(written))
        return self._term(written.removeprefix("${").removesuffix("}") if written.startswith("${") else written)

    def _term(self, term: str) -> Any:
        if term.startswith("jsonencode("):
            return self.value(hcl2.loads(f"it = {term[len('jsonencode(') : -1]}\n")["it"])
        if choice := _CHOICE.fullmatch(term):
            tested, sign, then, otherwise = choice.groups()
            return self.value(then if (self._term(tested) is None) == (sign == "==") else otherwise)
        if reference := _REFERENCE.fullmatch(term):
            return self._attribute(*reference.groups())
        match term.partition("."):
            case ("var", _, name):
                return self._variable(name)
            case ("local", _, name):
                return self.value(next(block[name] for block in self._blocks["locals"] if name in block))
            case (number, "", "") if number.isdecimal():
                return int(number)
            case ("null", "", ""):
                return None
            case _:
                return self.value(term) if term.startswith('"') else pytest.fail(f"what is {term}?")

    def _variable(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        block = next(block for one in self._blocks["variable"] for label, block in one.items() if _bare(label) == name)
        return self.value(block["default"])

    def _attribute(self, sort: str, label: str, attribute: str) -> Any:
        block = self.resources(sort)[label] if sort != "aws_iam_policy_document" else {}
        match sort, attribute:
            case "aws_iam_policy_document", "json":
                return self._document(self.resources(sort, of="data")[label])
            case "aws_sqs_queue", "id":
                return label
            case "aws_dynamodb_table", "arn":
                return ACCOUNT.arn("dynamodb", f"table/{self.value(block['name'])}")
            case "aws_sqs_queue", "arn":
                return ACCOUNT.arn("sqs", self.value(block["name"]))
            case "aws_sns_topic", "arn":
                return ACCOUNT.arn("sns", self.value(block["name"]))
            case _:
                return self.value(block[attribute])

    def _document(self, block: dict[str, Any]) -> dict[str, Any]:
        statements = [self.body(one) for one in block["statement"]]
        return {
            "Version": "2012-10-17",
            "Statement": [
                {"Sid": one["sid"], "Effect": "Allow", "Action": one["actions"], "Resource": one["resources"]}
                for one in statements
            ],
        }


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def said(module: Module) -> Iterator[tuple[Kind, str, dict[str, Any]]]:
    """Say what a module makes, in the words of `init aws`."""
    for block in module.resources("aws_dynamodb_table").values():
        table = module.body(block)
        yield Kind.TABLE, table["name"], _table(table)
    allowed = [module.body(one) for one in module.resources("aws_sqs_queue_redrive_allow_policy").values()]
    for label, block in module.resources("aws_sqs_queue").items():
        queue = module.body(block)
        settings = {_QUEUE[name]: value for name, value in queue.items() if name in _QUEUE}
        for one in allowed:
            if one["queue_url"] == label:
                settings["RedriveAllowPolicy"] = one["redrive_allow_policy"]
        yield Kind.QUEUE, queue["name"], settings
    for block in module.resources("aws_sns_topic").values():
        topic = module.body(block)
        if topic["count"]:
            yield Kind.TOPIC, topic["name"], {}
    for block in module.resources("aws_cloudwatch_metric_alarm").values():
        alarm = module.body(block)
        assert set(alarm) == {*_ALARM, "alarm_name", "tags"}
        yield Kind.ALARM, alarm["alarm_name"], {_ALARM[name]: alarm[name] for name in _ALARM}
    for block in module.resources("aws_iam_policy").values():
        policy = module.body(block)
        yield Kind.POLICY, policy["name"], {"document": policy["policy"]}


def _table(table: dict[str, Any]) -> dict[str, Any]:
    types = {one["name"]: one["type"] for one in table["attribute"]}

    def key(block: dict[str, Any]) -> list[str]:
        names = [block["hash_key"], *([block["range_key"]] if "range_key" in block else [])]
        return [f"{name} ({types[name]})" for name in names]

    indexes = {
        f"index {one['name']}": {"key": key(one), "projects": sorted(one.get("non_key_attributes", ()))}
        for one in table.get("global_secondary_index", ())
    }
    for one in table.get("global_secondary_index", ()):
        assert one["projection_type"] == ("INCLUDE" if "non_key_attributes" in one else "KEYS_ONLY")
    used = {part.split()[0] for each in (key(table), *(one["key"] for one in indexes.values())) for part in each}
    assert set(types) == used, "an attribute that no key has is an error to Terraform"
    (ttl,) = table.get("ttl", [{"enabled": True, "attribute_name": None}])
    (recovery,) = table["point_in_time_recovery"]
    return {
        "key": key(table),
        "billing mode": table["billing_mode"],
        **indexes,
        "time to live": ttl["attribute_name"] if ttl["enabled"] else None,
        "point-in-time recovery": recovery["enabled"],
    }


def told(resources: list[Resource]) -> dict[tuple[Kind, str], dict[str, Any]]:
    return {(one.kind, one.name): dict(one.settings) for one in resources}


@pytest.mark.parametrize(
    ("given", "wish"),
    [
        ({}, SEED),
        ({"dlq_name": OWN.dlq}, OWN),
        (
            {"table_name": "jobs", "queue_name": "calls", "visibility_timeout": 360, "max_receives": 20},
            SEED._replace(table="jobs", queue="calls", visibility=360, receives=20),
        ),
        ({"alarm_topic_arn": TOPIC}, SEED._replace(topic=TOPIC)),
    ],
    ids=["as it is", "the contract's own alarm", "other names", "a topic of one's own"],
)
def test_the_module_makes_what_init_aws_makes(given: dict[str, Any], wish: Wish) -> None:
    made = {(kind, name): settings for kind, name, settings in said(Module(FOLDER, **given))}
    wanted = told(desired(wish, ACCOUNT))
    assert set(made) == set(wanted)
    for thing, settings in wanted.items():
        assert made[thing] == settings, thing


def test_the_module_of_the_scheduled_queue_makes_what_init_aws_makes() -> None:
    made = {(kind, name): settings for kind, name, settings in said(Module(FOLDER / "scheduled"))}
    wanted = told(desired(SEED._replace(layout=Layout.SCHEDULED, queue=None), ACCOUNT))
    assert set(made) == set(wanted)
    for thing, settings in wanted.items():
        assert made[thing] == settings, thing


def test_the_alarm_has_the_name_that_the_contract_gives_it() -> None:
    assert OWN.alarm == "lifebook-orchestrator-dlq-depth"


def test_the_comparison_would_notice_a_difference() -> None:
    made = {(kind, name): settings for kind, name, settings in said(Module(FOLDER, max_receives=6))}
    wanted = told(desired(SEED, ACCOUNT))
    assert {thing for thing in wanted if made[thing] != wanted[thing]} == {(Kind.QUEUE, SEED.queue)}


def test_what_a_policy_allows_is_named_and_nothing_is_allowed_everywhere() -> None:
    for one in desired(SEED, ACCOUNT):
        if one.kind is Kind.POLICY:
            for statement in one.settings["document"]["Statement"]:
                assert all(re.fullmatch(r"(dynamodb|sqs):[A-Za-z]+", action) for action in statement["Action"])
                assert all(arn.startswith("arn:aws:") and arn.count(":") == 5 for arn in statement["Resource"])
            assert len(json.dumps(one.settings["document"], separators=(",", ":"))) < 6_144, "IAM takes no more"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_files_are_formatted_as_terraform_fmt_would(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\t" not in text
    assert "\n\n\n" not in text
    lines = text.splitlines()
    depth = 0
    for number, line in enumerate(lines, 1):
        assert line == line.rstrip(), number
        depth -= bool(re.match(r"\s*[}\])]", line))
        assert not line or line.startswith("#") or len(line) - len(line.lstrip()) == 2 * depth, number
        depth += bool(re.search(r"[{\[(]$", line))
    for assigned, group in groupby(enumerate(lines, 1), lambda line: _assigned(line[1])):
        if assigned:
            some = [(number, line) for number, line in group]
            assert len({_equals(line) for _, line in some}) == 1, some
            widest = max(len(line[: _equals(line)].rstrip()) for _, line in some)
            assert _equals(some[0][1]) == widest + 1, some


def _assigned(line: str) -> bool:
    """Tell whether a line holds a whole argument: those that stand together are aligned."""
    return bool(re.match(r"\s*\w+\s+= ", line)) and not re.search(r"[{\[(]$", line)


def _equals(line: str) -> int:
    return line.index("= ")
