"""The dashboard, the alerts and the page on monitoring speak of metrics that there are, and leave none out."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from holdfast.runtime.telemetry.families import FAMILIES

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
PAGE = ROOT / "docs" / "operations" / "monitoring.md"
_METRIC = re.compile(r"\bholdfast_[a-z_]+\b")
_SELECTOR = re.compile(r"(holdfast_[a-z_]+)(?:\{([^}]*)\})?")
_SUFFIXES = ("_bucket", "_sum", "_count")


def family(name: str) -> str:
    """Give the metric that a series belongs to."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and FAMILIES.get(name.removesuffix(suffix), None) is not None:
            return name.removesuffix(suffix)
    return name


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load(ALERTS.read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def test_every_metric_that_is_asked_for_exists() -> None:
    asked = {family(name) for expression in expressions() for name in _METRIC.findall(expression)}
    assert asked <= FAMILIES.keys()
    assert FAMILIES.keys() <= asked, "a metric that nobody looks at"


def test_every_label_that_is_asked_for_is_one_of_the_metrics_own() -> None:
    for expression in expressions():
        for name, selector in _SELECTOR.findall(expression):
            labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= set(FAMILIES[family(name)].labels), expression


@pytest.mark.parametrize("expression", list(expressions()))
def test_gauges_of_the_store_are_never_added_up_over_processes(expression: str) -> None:
    assert not re.search(
        r"\bsum(?: by \([^)]*\))? ?\(holdfast_(jobs|dead|oldest|workers|store|queue_paused|paused|limit)\b", expression
    )
    assert expression.count("(") == expression.count(")")


def test_dead_letter_depth_pages_somebody() -> None:
    [rule] = [rule for rule in rules() if rule["alert"] == "HoldfastDlqDepth"]
    assert "holdfast_dead_letter_jobs" in rule["expr"]
    assert rule["labels"]["severity"] == "page"


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"].endswith(".")


def test_every_metric_and_every_alert_is_on_the_page_on_monitoring_and_nothing_else() -> None:
    text = PAGE.read_text()
    assert {family(name) for name in _METRIC.findall(text)} == FAMILIES.keys()
    for each in FAMILIES.values():
        labels = ", ".join(each.labels) or "–"
        assert f"| `{each.name}` | {each.sort} | {labels} | {each.help.rstrip('.')} |" in text
    assert set(re.findall(r"^\| `(Holdfast\w+)` \|", text, re.MULTILINE)) == {rule["alert"] for rule in rules()}


def test_the_dashboard_has_a_panel_for_each_place_and_none_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
        assert panel["description"].endswith(".")
