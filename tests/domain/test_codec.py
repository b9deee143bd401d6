"""What a payload may be, the same for every store."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from holdfast.domain import codec
from holdfast.domain.errors import BadPayload


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def a_list(value: Any) -> Any:
    return [value]


def a_dict(value: Any) -> Any:
    return {"k": value}


def looped() -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (math.nan, "is nan"),
        ({"a": [1, math.inf]}, "is inf"),
        ({"a": {"b": -math.inf}}, "is -inf"),
        ("a\x00b", "NUL"),
        ({"a": ["\x00"]}, "NUL"),
        ({"a\x00": 1}, "key with a NUL"),
        ([{"x": {"\x00": "y"}}], "key with a NUL"),
        ("\ud800", "lone surrogate"),
        ({"a": "x\udfff"}, "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        (2**63, "more than 64 bits"),
        ({"n": -(2**63) - 1}, "more than 64 bits"),
        ([10**4301], "more than 64 bits"),
        (nested(codec.MAX_DEPTH + 1, a_list), "levels deep"),
        (nested(codec.MAX_DEPTH + 1, a_dict), "levels deep"),
        (nested(100_000, a_list), "levels deep"),
        (nested(100_000, a_dict), "levels deep"),
        (looped(), "levels deep"),
        ({str(n): n for n in range(codec.MAX_KEYS + 1)}, "more than 1000 keys"),
        ("x" * codec.MAX_BYTES, "262,146 bytes of JSON, and at most 262,144"),
        (object(), "cannot be written as JSON"),
        ({"f": lambda: None}, "cannot be written as JSON"),
        (b"\xff", "bytes that are not text"),
    ],
    ids=lambda value: None if not isinstance(value, str) or len(value) > 40 or "\ud800" in value else ascii(value),
)  # fmt: skip
def test_what_some_store_could_not_keep_is_refused_in_one_sentence(value: Any, complaint: str) -> None:
    with pytest.raises(BadPayload) as refusal:
        codec.encode(value, "payload")
    assert complaint in str(refusal.value)
    assert str(refusal.value).startswith("payload")
    assert "\n" not in str(refusal.value)


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(BadPayload, match=r"^payload\.items\[2\]\.price is nan"):
        codec.encode({"items": [{}, {}, {"price": math.nan}]}, "payload")


@pytest.mark.parametrize(
    "value",
    [
        2**63 - 1,
        -(2**63),
        1.7976931348623157e308,
        5e-324,
        nested(codec.MAX_DEPTH, a_list),
        nested(codec.MAX_DEPTH, a_dict),
        {str(n): n for n in range(codec.MAX_KEYS)},
        "x" * (codec.MAX_BYTES - 2),
        "\x01\x7f\u2028\ufeff\uffff🦀",
        "",
        {"": ""},
    ],
    ids=lambda _: "",
)
def test_what_is_just_within_the_limits_is_kept(value: Any) -> None:
    assert codec.decode(codec.encode(value, "payload")) == value


def test_the_size_is_counted_in_bytes() -> None:
    with pytest.raises(BadPayload, match="bytes of JSON"):
        codec.encode("é" * (codec.MAX_BYTES // 2), "payload")
    assert codec.encode("é" * 10, "result", limit=22) == '"' + "é" * 10 + '"'
    with pytest.raises(BadPayload, match=r"^result is 22 bytes of JSON, and at most 21"):
        codec.encode("é" * 10, "result", limit=21)


class Colour(Enum):
    RED = "red"


class Item(BaseModel):
    name: str
    at: datetime


def test_what_pydantic_can_write_can_be_a_payload() -> None:
    value = {
        "model": Item(name="x", at=datetime(2026, 1, 1, tzinfo=UTC)),
        "id": UUID(int=7),
        "day": date(2026, 1, 2),
        "money": Decimal("1.10"),
        "colour": Colour.RED,
        "pair": (1, 2),
        7: "a number as a key",
    }
    assert codec.decode(codec.encode(value, "payload")) == {
        "model": {"name": "x", "at": "2026-01-01T00:00:00Z"},
        "id": "00000000-0000-0000-0000-000000000007",
        "day": "2026-01-02",
        "money": "1.10",
        "colour": "red",
        "pair": [1, 2],
        "7": "a number as a key",
    }


def test_a_model_s_own_fields_are_checked_too() -> None:
    with pytest.raises(BadPayload, match="NUL"):
        codec.encode(Item(name="a\x00", at=datetime(2026, 1, 1, tzinfo=UTC)), "payload")


text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(codec.MIN_INT, codec.MAX_INT) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_every_json_value_comes_back_unchanged(value: Any) -> None:
    written = codec.encode(value, "payload")
    assert codec.decode(written) == value
    assert codec.encode(codec.decode(written), "payload") == written


@given(st.dictionaries(text, values, max_size=5))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))
    assert codec.same(codec.encode(value, "payload"), codec.encode(backwards, "payload"))


@pytest.mark.parametrize(
    ("left", "right"), [("1", "2"), ('{"a":1}', '{"a":1,"b":null}'), ("[1,2]", "[2,1]"), ('"1"', "1"), ("null", "0")]
)
def test_different_values_are_not_the_same(left: str, right: str) -> None:
    assert not codec.same(left, right)
