"""What is written of a change is what differs between the items of a job before and after it: nothing is left out."""

from itertools import pairwise
from typing import Any

import pytest

from holdfast.domain import lifecycle
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.moments import HOUR, SECOND
from holdfast.stores.dynamodb.contract import Contract
from holdfast.stores.dynamodb.layout import Layout
from holdfast.stores.dynamodb.scheduled import Scheduled
from holdfast.testing.lab import FLAKY, HOPELESS

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
NOW = 1_790_000_000 * SECOND


def _life() -> list[JobRecord]:
    """Give the records that a job leaves on a long way."""
    new = NewJob("echo", '{"n":1}', tenant="ada", key="k", credits=5, reserved=5, delay=HOUR)
    records, now = [lifecycle.create(ID, new, NOW)], NOW + HOUR

    def claimed() -> JobRecord:
        return lifecycle.claim(records[-1], lease_id="1" * 32, owner="ada", lease=15 * SECOND, now=now)

    def moved(move: Any) -> JobRecord:
        return lifecycle.apply(records[-1], move, now)

    records.append(claimed())
    records.append(lifecycle.beat(records[-1], lease=15 * SECOND, begun=True, now=now + SECOND, progress='[0.5,"x"]'))
    records.append(moved(lifecycle.checkpoint(records[-1], "one", "1", spend=2)))
    records.append(moved(lifecycle.fail(records[-1], FLAKY, draw=0, retention=Retention())))
    now = records[-1].available_at
    records.append(claimed())
    records.append(moved(lifecycle.suspend(records[-1], "two", None, delay=HOUR, awaits="go")))
    records.append(moved(lifecycle.signal(records[-1], "s", "go", None)))
    records.append(claimed())
    records.append(
        moved(lifecycle.fail(records[-1], HOPELESS._replace(message="x" * 3_000), draw=0, retention=Retention()))
    )
    records.append(moved(lifecycle.redrive(records[-1])))
    records.append(claimed())
    records.append(moved(lifecycle.complete(records[-1], '"' + "y" * 70_000 + '"', Retention())))
    return records


def _difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    return {name: value for name, value in new.items() if old.get(name) != value}, old.keys() - new.keys()


@pytest.mark.parametrize("layout", [Contract(4), Scheduled(1)], ids=["contract", "scheduled"])
def test_a_pair_of_items_differs_as_the_whole_items_do(layout: Layout) -> None:
    for before, after in pairwise(_life()):
        whole = _difference(layout.item(before, None), layout.item(after, "op"))
        assert _difference(*layout.pair(before, after, "op")) == whole
