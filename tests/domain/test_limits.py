"""Rules of flow control: how they are written, what is refused, and what they say for a queue."""

from typing import Any

import pytest

from holdfast.domain import limits
from holdfast.domain.errors import BadInput, StoreError
from holdfast.domain.gates import far
from holdfast.domain.limits import ROOMY, Kept, Limit, Plan, Rule, Rules
from holdfast.domain.moments import DAY, HOUR, MINUTE, SECOND


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/min", (100, MINUTE)),
        ("5/s", (5, SECOND)),
        ("1/10min", (1, 10 * MINUTE)),
        ("7/h", (7, HOUR)),
        ("3/2d", (3, 2 * DAY)),
    ],
)
def test_a_rate_is_read_and_written_the_same(text: str, rate: tuple[int, int]) -> None:
    assert limits.parse_rate(text) == rate
    assert limits.spelled(rate) == text
    assert limits.parse_rate(text.replace("/", " / ")) == rate


@pytest.mark.parametrize("text", ["", "5", "5/", "/s", "0/s", "5/week", "-1/s", "1.5/s", "2000000/s", "9/0s", None, 5])
def test_what_is_no_rate_is_refused(text: Any) -> None:
    with pytest.raises(BadInput, match="A rate is written like 100/min"):
        limits.parse_rate(text)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "rate=, concurrency= or both"),
        ({"burst": 3, "concurrency": 1}, "burst= goes with rate="),
        ({"rate": "1/s", "full": "drop"}, "what a rate holds back waits"),
        ({"concurrency": 0}, "whole number from 1"),
        ({"concurrency": True}, "whole number from 1"),
        ({"rate": "1/s", "burst": 0}, "whole number from 1"),
        ({"concurrency": 1, "per": "user"}, "per one of queue, tenant, key"),
        ({"concurrency": 1, "full": "explode"}, "one of wait, drop, replace"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        limits.checked(**asked)


def test_rules_that_cannot_hold_together_are_refused() -> None:
    fair, per_key = Rule("q", order="fair"), Limit("key", concurrency=1)
    for rules, sentence in (
        ([Rule("*", order="fair")], "An order is for one queue"),
        ([Rule("*", limits=(Limit(concurrency=1, full="drop"),))], "at those of all queues"),
    ):
        with pytest.raises(BadInput, match=sentence):
            limits.agreeing(rules)
    limits.agreeing([Rule("q", limits=(per_key,)), Rule("*", limits=(Limit(concurrency=9),)), Rule("r", order="fair")])
    limits.agreeing([fair._replace(limits=(per_key,)), Rule("*", limits=(per_key,))])


def test_an_order_that_makes_no_sense_is_refused() -> None:
    for order, weights, aging, sentence in (
        ("random", None, None, "one of priority, fair"),
        ("priority", {"a": 2}, None, "weights= goes with"),
        ("fair", {"a": 0}, None, "The weight of 'a'"),
        ("fair", None, 0, "longer than zero"),
        ("fair", ["a"], None, "weights= is a mapping"),
    ):
        with pytest.raises(BadInput, match=sentence):
            limits.ordered(Rule("q"), order, weights, aging)  # type: ignore[arg-type]


def test_a_unit_may_be_spelled_out() -> None:
    for spelling, rate in (
        ("5/sec", "5/s"),
        ("5/minute", "5/min"),
        ("5/m", "5/min"),
        ("5/hour", "5/h"),
        ("1/2day", "1/2d"),
    ):
        assert limits.spelled(limits.parse_rate(spelling)) == rate


def test_a_rule_is_kept_as_it_was_written() -> None:
    rule = Rule("q", "fair", {"acme": 3}, HOUR, (Limit("tenant", (100, MINUTE), 20), Limit(concurrency=4, full="drop")))
    rule = Rule("q", "fair", {"acme": 3}, HOUR).limited(rule.limits[0]).limited(rule.limits[1])
    for stored in (Kept(rule), Kept(Rule("q"), rule)):
        assert limits.kept(limits.encoded(stored), "q") == stored
    for broken in ("", "{}", '{"rule":{},"declared":null}', "[1]", '{"rule":null,"declared":null}'):
        with pytest.raises(StoreError, match="set it again"):
            limits.kept(broken, "q")


def test_a_limit_takes_the_place_of_one_of_its_kind() -> None:
    rule = Rule("q").limited(Limit(concurrency=1)).limited(Limit("tenant", concurrency=2)).limited(Limit(concurrency=3))
    assert rule.limits == (Limit(concurrency=3), Limit("tenant", concurrency=2))
    rule = rule.limited(Limit(rate=(1, SECOND)))
    assert rule.freed(what="rate").limits == (Limit(concurrency=3), Limit("tenant", concurrency=2))
    assert rule.freed("queue").limits == (Limit("tenant", concurrency=2),)
    assert rule.freed().empty


def test_a_queue_follows_its_own_rule_and_that_of_all() -> None:
    rules = Rules({"q": Rule("q", order="fair"), "*": Rule("*", limits=(Limit("key", concurrency=1),))})
    plan, other = rules.plan("q"), rules.plan("other")
    assert plan is not None
    assert other is not None
    assert (plan.shape, other.shape) == ("k", "k")
    assert (plan.nested, other.nested) == (True, False)
    assert [queue for queue, _ in other.limits] == ["*"]
    assert Rules({}).plan("q") is None
    assert Rules({}, kinds=frozenset({"add"})).plan("q") == Plan("q")


def test_the_lanes_of_a_tenant_stand_together() -> None:
    for shape, groups in (("t", [None]), ("k", [None, "x", "ü k"])):
        plan = Plan("q", shape)
        tenants = ("", "a", "ab", "a b", "b", "ü")
        for tenant in tenants:
            low, high = plan.span(tenant)
            inside = {who for who in tenants for group in groups if low <= plan.lane(who, group) < high}
            assert inside == {tenant}
            assert all(low <= plan.lane(tenant, group) < high for group in groups)
            assert plan.span()[0] <= low < high <= plan.span()[1]


def test_a_lane_tells_its_tenant_and_key() -> None:
    for shape, group, told in (("t", "x", None), ("k", "x", "x"), ("k", None, None)):
        for tenant in ("", "acme", "ü k"):
            assert limits.split(Plan("q", shape).lane(tenant, group)) == (tenant, told)


def test_limits_may_be_far_where_nobody_takes_turns_and_none_of_them_is_small() -> None:
    def plan(*limits: Limit, order: str = "priority", everywhere: tuple[Limit, ...] = ()) -> Plan:
        found = Rules({"q": Rule("q", order=order, limits=limits), "*": Rule("*", limits=everywhere)}).plan("q")
        assert found is not None
        return found

    large, queue = Limit("tenant", concurrency=ROOMY), Limit(concurrency=3)
    assert plan(large, queue).roomy
    assert plan(large, queue).in_line() == Plan("q", limits=(("q", queue),))
    for lanes in (
        plan(large, order="fair"),
        plan(large._replace(full="drop")),
        plan(large, queue._replace(full="drop")),
        plan(Limit("key", concurrency=ROOMY - 1)),
        plan(large, Limit("key", rate=(9, SECOND), burst=ROOMY)),
        plan(large, everywhere=(large,)),
    ):
        assert not lanes.roomy
        assert not far(lanes, 0, 1)
    assert far(plan(large, Limit("key", concurrency=ROOMY + 9)), ROOMY - 5, 5)
    assert not far(plan(large, Limit("key", concurrency=ROOMY + 9)), ROOMY - 5, 6)
