"""Payloads are validated when a job is enqueued and again when it runs; what is refused leaves nothing behind."""

import json
import math
import typing
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from holdfast import BadInput, BadPayload, Context, Holdfast, JobFunction, Prepared
from holdfast.domain.job import NewJob
from holdfast.testing.engine import TestHoldfast

SECRET = "4111-1111-1111-1111"


class Card(BaseModel):
    number: int
    limit: float = 0.0
    holder: str = ""
    more: Any = None


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.fixture
def app() -> Iterator[Holdfast]:
    app = Holdfast("memory://")
    yield app
    assert app.counts().total == 0, "what was refused is stored"
    app.close()


@pytest.fixture
def pay(app: Holdfast) -> JobFunction[..., None]:
    @app.job
    def pay(a: int, b: float = 1.0, *, s: str = "", x: Any = None) -> None: ...

    return pay


def sentence(call: Callable[[], object]) -> str:
    """Make a call that must be refused; give what was said."""
    with pytest.raises(BadPayload) as caught:
        call()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 500
    assert SECRET not in text
    return text


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((SECRET,), {}, "pay: field 'a': Input should be a valid integer"),
        ((None,), {}, "pay: field 'a': Input should be a valid integer"),
        ((1, "much"), {}, "pay: field 'b': Input should be a valid number"),
        ((1,), {"s": 5}, "pay: field 's': Input should be a valid string"),
        ((), {}, "pay: missing a required argument: 'a'; it takes (a, b, s, x)"),
        ((1, 2, SECRET, 4), {}, "pay: too many positional arguments; it takes (a, b, s, x)"),
        ((1,), {"z": SECRET}, "pay: got an unexpected keyword argument 'z'; it takes (a, b, s, x)"),
        ((1,), {"a": 1}, "pay: multiple values for argument 'a'"),
        ((1, math.nan), {}, "pay.b is nan, which JSON cannot hold"),
        ((1, -math.inf), {}, "pay.b is -inf, which JSON cannot hold"),
        ((1,), {"x": [1, {"deep": math.nan}]}, "pay.x[1].deep is nan, which JSON cannot hold"),
        ((1,), {"s": f"{SECRET}\x00"}, "pay.s holds a NUL character"),
        ((1,), {"x": {"\x00": 1}}, "pay.x has a key with a NUL character"),
        ((1,), {"s": f"{SECRET}\ud800"}, "The payload of pay holds a lone surrogate"),
        ((1,), {"x": [["\udfff"]]}, "The payload of pay holds a lone surrogate"),
        ((1,), {"x": {"\ud800": 1}}, "The payload of pay holds a lone surrogate"),
        ((2**63,), {}, "pay.a is an integer of more than 64 bits"),
        ((-(2**63) - 1,), {}, "pay.a is an integer of more than 64 bits"),
        ((1,), {"x": [10**400]}, "pay.x[0] is an integer of more than 64 bits"),
        ((1,), {"s": "x" * 256 * 1024}, "bytes of JSON, and at most 262,144 are kept; store it elsewhere"),
        ((1,), {"s": "é" * 128 * 1024}, "bytes of JSON, and at most 262,144 are kept; store it elsewhere"),
        ((1,), {"x": object}, "The payload of pay cannot be written as JSON"),
        ((1,), {"x": b"\xff"}, "The payload of pay holds bytes that are not text"),
        ((1,), {"x": dict.fromkeys(map(str, range(1001)))}, "pay.x has more than 1000 keys"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_call_is_refused_in_one_sentence(
    pay: JobFunction[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    assert said in sentence(lambda: pay.enqueue(*args, **kwargs))
    assert said in sentence(lambda: pay.prepare(*args, **kwargs))


def test_nesting_is_bounded_however_deep_it_goes(app: Holdfast, pay: JobFunction[..., None]) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    assert "is nested more than 32 levels deep" in sentence(lambda: pay.enqueue(1, x=deep))
    assert "is nested more than 32 levels deep" in sentence(lambda: pay.enqueue(1, x=circle))
    assert "is nested more than 32 levels deep" in sentence(lambda: app.enqueue("pay", {"a": 1, "x": deep}))
    text = f'{{"a": 1, "x": {"[" * 100_000}{"]" * 100_000}}}'
    assert "recursion limit exceeded" in sentence(lambda: app.enqueue("pay", text))
    while deep:
        deep = deep[0]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"a": ', "pay: field '(payload)': Invalid JSON"),
        ("[1]", "pay: field '(payload)': Input should be an object"),
        (f'{{"a": "{SECRET}"}}', "pay: field 'a': Input should be a valid integer"),
        ('{"a": 1, "b": NaN}', "pay.b is nan, which JSON cannot hold"),
        ('{"a": 1, "x": Infinity}', "pay.x is inf, which JSON cannot hold"),
        ('{"a": 1, "s": "\\u0000"}', "pay.s holds a NUL character"),
        ('{"a": 1, "s": "\ud800"}', "The payload of pay holds a lone surrogate"),
        ('{"a": 1, "s": "\\ud800"}', "pay: field '(payload)': Invalid JSON"),
        ('{"a": 9223372036854775808}', "pay.a is an integer of more than 64 bits"),
        (f'{{"a": 1, "s": "{"x" * 262_144}"}}', "at most 262,144 are kept"),
        (f"{' ' * 262_144}{{}}", "at most 262,144 are kept"),
        ({}, "pay: field 'a': Field required"),
        ({"a": 1, "z": SECRET}, "pay: field 'z': Extra inputs are not permitted"),
        ({"a": 1, "x": math.nan}, "nan, which JSON cannot hold"),
        ({"a": 1, "x": "\ud800"}, "holds a lone surrogate"),
        ({1: 1}, "pay: field 'a': Field required; field '1': Extra inputs are not permitted"),
        ([1], "The payload of pay is JSON text, a mapping or a model, not list"),
        (b'{"a": 1}', "The payload of pay is JSON text, a mapping or a model, not bytes"),
        (None, "The payload of pay is JSON text, a mapping or a model, not NoneType"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.usefixtures("pay")
def test_a_payload_given_by_the_kinds_name_is_refused_in_one_sentence(app: Holdfast, payload: Any, said: str) -> None:
    assert said in sentence(lambda: app.enqueue("pay", payload))
    assert said in sentence(lambda: app.prepare("pay", payload))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"number": SECRET}, "charge: field 'number': Input should be a valid integer"),
        ({}, "charge: field 'number': Field required"),
        (None, "charge: field '(payload)': Input should be a valid dictionary or instance of Card"),
        (Cat(kind="cat"), "charge: field 'number': Field required"),
        (Card(number=1, limit=math.inf), "charge.limit is inf, which JSON cannot hold"),
        (Card(number=1, holder="\x00"), "charge.holder holds a NUL character"),
        (Card(number=1, holder="\ud800"), "The payload of charge holds a lone surrogate"),
        (Card(number=2**64), "charge.number is an integer of more than 64 bits"),
        (Card.model_construct(number=SECRET), "charge: field 'number': Input should be a valid integer"),
        (Card.model_construct(), "charge: field 'number': Field required"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_model_is_refused_in_one_sentence_even_if_it_was_built_unchecked(
    app: Holdfast, value: Any, said: str
) -> None:
    @app.job
    def charge(card: Card, ctx: Context) -> None: ...

    assert said in sentence(lambda: charge.enqueue(value))


def test_a_tag_that_matches_nothing_is_not_repeated(app: Holdfast) -> None:
    @app.job
    def feed(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert "field 'pet': Input has an unknown tag" in sentence(lambda: feed.enqueue({"kind": SECRET}))  # type: ignore[arg-type]


class Hidden(Enum):
    TOO_LARGE = 2**70
    NUL = "a\x00b"


@pytest.mark.parametrize("value", [*Hidden, deque([2**70]), deque(["\x00"]), deque([math.nan])], ids=repr)
def test_what_cannot_be_kept_cannot_be_hidden_either(value: Any) -> None:
    app = Holdfast("memory://")

    @app.job
    def keep(value: Any) -> None: ...

    sentence(lambda: keep.enqueue(value))


def test_many_problems_are_counted_not_listed(app: Holdfast) -> None:
    @app.job
    def many(numbers: list[int]) -> None: ...

    assert "(and 2 more)" in sentence(lambda: many.enqueue([SECRET] * 7))  # type: ignore[list-item]


def test_the_limit_is_the_applications_own() -> None:
    app = Holdfast("memory://", max_payload=20)

    @app.job
    def note(text: str) -> None: ...

    assert note.enqueue("x" * 9).payload == {"text": "x" * 9}
    assert "is 21 bytes of JSON, and at most 20 are kept" in sentence(lambda: note.enqueue("x" * 10))


def test_the_largest_numbers_and_texts_are_kept(holdfast: TestHoldfast) -> None:
    seen: list[Any] = []

    @holdfast.job
    def keep(low: int, high: int, text: str) -> None:
        seen.extend((low, high, text))

    text = "é" * (128 * 1024 - 40)
    keep.enqueue(-(2**63), 2**63 - 1, text)
    holdfast.run_until_idle()
    assert seen == [-(2**63), 2**63 - 1, text]


def test_parameters_are_stored_by_name_and_defaults_stay_the_functions_own(holdfast: TestHoldfast) -> None:
    seen: list[tuple[int, str, date]] = []

    @holdfast.job
    def note(a: int, b: str = "the default", *, day: date) -> None:
        seen.append((a, b, day))

    job = note.enqueue("7", day=date(2026, 11, 16))  # type: ignore[arg-type]
    other = note.enqueue(8, "given", day="2026-11-17")  # type: ignore[arg-type]
    assert job.payload == {"a": 7, "day": "2026-11-16"}
    assert other.payload == {"a": 8, "b": "given", "day": "2026-11-17"}
    holdfast.run_until_idle()
    assert seen == [(7, "the default", date(2026, 11, 16)), (8, "given", date(2026, 11, 17))]


def test_a_lone_model_is_the_payload_itself(holdfast: TestHoldfast) -> None:
    seen: list[Card] = []

    @holdfast.job
    def charge(card: Card) -> None:
        seen.append(card)

    by_object = charge.enqueue(Card(number=1, holder="Ada"))
    by_mapping = charge.enqueue({"number": 1, "holder": "Ada"})  # type: ignore[arg-type]
    by_name = holdfast.enqueue("charge", '{"number": 1, "holder": "Ada"}')
    expected = {"number": 1, "limit": 0.0, "holder": "Ada", "more": None}
    assert by_object.payload == by_mapping.payload == by_name.payload == expected
    holdfast.run_until_idle()
    assert seen == [Card(number=1, holder="Ada")] * 3


def test_a_model_among_other_parameters_is_one_of_them(holdfast: TestHoldfast) -> None:
    seen: list[Any] = []

    @holdfast.job
    def charge(card: Card, times: int) -> None:
        seen.extend((card, times))

    job = charge.enqueue(Card(number=1), times=2)
    assert job.payload == {"card": {"number": 1, "limit": 0.0, "holder": "", "more": None}, "times": 2}
    holdfast.run_until_idle()
    assert seen == [Card(number=1), 2]


def test_the_context_is_no_part_of_the_payload_wherever_it_stands(holdfast: TestHoldfast) -> None:
    seen: list[tuple[str, int, int]] = []

    @holdfast.job
    def first(ctx: Context, a: int) -> None:
        seen.append((ctx.kind, ctx.attempt, a))

    @holdfast.job
    def last(a: int, ctx: Context) -> None:
        seen.append((ctx.kind, ctx.attempt, a))

    @holdfast.job
    def by_another_name(a: int, *, here: Context) -> None:
        seen.append((here.kind, here.attempt, a))

    @holdfast.job
    def unannotated(a: int, ctx) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        seen.append((ctx.kind, ctx.attempt, a))

    jobs = [first.enqueue(1), last.enqueue(2), by_another_name.enqueue(3), unannotated.enqueue(4)]  # type: ignore[call-arg]
    assert [job.payload for job in jobs] == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
    holdfast.run_until_idle()
    assert seen == [("first", 1, 1), ("last", 1, 2), ("by_another_name", 1, 3), ("unannotated", 1, 4)]


def test_a_function_may_do_without_a_context_when_it_is_called(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def count(a: int, ctx: Context | None = None) -> int:
        return a if ctx is None else a + ctx.attempt

    assert count(5) == 5
    job = count.enqueue(5)
    assert job.payload == {"a": 5}
    holdfast.run_until_idle()
    assert job.result() == 6


def test_a_context_cannot_be_sent_along(app: Holdfast) -> None:
    @app.job
    def last(a: int, ctx: Context) -> None: ...

    assert "too many positional arguments; it takes (a)" in sentence(lambda: last.enqueue(1, 2))  # type: ignore[call-arg]
    assert "unexpected keyword argument 'ctx'" in sentence(lambda: last.enqueue(1, ctx=2))  # type: ignore[call-arg]


def test_the_context_tells_about_the_attempt(holdfast: TestHoldfast) -> None:
    told: dict[str, Any] = {}

    @holdfast.job(queue="mail")
    def look(ctx: Context) -> None:
        names = ("job_id", "kind", "queue", "tenant", "key", "trace_id", "attempt", "max_attempts", "generation")
        told.update({name: getattr(ctx, name) for name in names})
        told.update(created_at=ctx.created_at, effect_key=ctx.effect_key, stopping=ctx.stopping)

    job = look.using(tenant="acme", key="k", trace_id="t").enqueue()
    holdfast.run_until_idle()
    assert told == {
        "job_id": job.id,
        "kind": "look",
        "queue": "mail",
        "tenant": "acme",
        "key": "k",
        "trace_id": "t",
        "attempt": 1,
        "max_attempts": 5,
        "generation": 1,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "effect_key": f"{job.id}:1",
        "stopping": False,
    }


@pytest.mark.parametrize(
    ("stored", "field"),
    [(f'{{"a": "{SECRET}"}}', "'a'"), ("{}", "'a'"), ('{"a": 1, "gone": 2}', "'gone'"), ("not JSON", "'(payload)'")],
)
def test_a_payload_that_no_longer_fits_its_handler_is_rejected_at_once(
    holdfast: TestHoldfast, stored: str, field: str
) -> None:
    ran: list[int] = []

    @holdfast.job
    def pay(a: int) -> None:
        ran.append(a)

    (job,) = holdfast.enqueue_many([Prepared(NewJob("pay", stored))])
    holdfast.run_until_idle()
    assert (job.refresh().state, job.cause, job.attempt, ran) == ("dead", "rejected", 1, [])
    assert job.failure is not None
    assert job.failure.code == "bad_payload"
    assert f"pay: field {field}" in job.failure.message
    assert SECRET not in job.failure.message


def test_a_validators_own_words_reach_the_caller(app: Holdfast) -> None:
    @app.job
    def pay(a: Annotated[int, Field(gt=0)]) -> None: ...

    assert "field 'a': Input should be greater than 0" in sentence(lambda: pay.enqueue(-5))


def test_what_is_stored_is_json_and_nothing_else(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def keep(value: Any) -> Any:
        return value

    value = {"text": "naïve – ☃", "list": [1, 2.5, True, None], "empty": {}}
    job = keep.enqueue(value)
    assert json.loads(job.record.payload) == {"value": value}
    holdfast.run_until_idle()
    assert job.result() == value


class Unfinished(BaseModel):
    part: "Missing"  # type: ignore[name-defined]  # noqa: F821


class Marked(typing.TypedDict):
    """A shape that Pydantic reads from Python 3.12 on."""

    number: int


class Opaque:
    pass


class Renamed(BaseModel):
    """A model whose fields are read by other names than it calls them, or has more to show than it reads."""

    model_config = ConfigDict(extra="forbid")
    user_id: int = Field(alias="userId")
    day: str = Field(default="", validation_alias="on", serialization_alias="at")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.user_id} on {self.day}"


class Withheld(BaseModel):
    secret: int = Field(exclude=True)


@pytest.mark.parametrize("hint", [Unfinished, list[Unfinished], Opaque])
def test_a_type_that_pydantic_cannot_read_is_told_in_one_sentence(app: Holdfast, hint: Any) -> None:
    def pay(a: Any) -> Any:
        return a

    pay.__annotations__["a"] = hint
    kind = app.job(pay)
    for call in (lambda: kind.enqueue(1), lambda: app.enqueue("pay", {"a": 1})):
        with pytest.raises(BadInput, match="pay: Pydantic cannot validate one of its parameters") as caught:
            call()  # type: ignore[no-untyped-call]
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hint", [Unfinished, Marked, Opaque])
def test_a_result_of_a_type_that_pydantic_cannot_read_is_plain_json(holdfast: TestHoldfast, hint: Any) -> None:
    def make() -> Any:
        return {"number": 7}

    make.__annotations__["return"] = hint
    job = holdfast.job(make).enqueue()
    holdfast.run_until_idle()
    assert job.result() == {"number": 7}


@pytest.mark.parametrize("hint", [Renamed, list[Renamed], dict[str, Renamed]])
def test_a_model_with_aliases_and_computed_fields_arrives_as_it_was_enqueued(holdfast: TestHoldfast, hint: Any) -> None:
    seen: list[Any] = []

    def note(a: Any) -> None:
        seen.append(a)

    note.__annotations__["a"] = hint
    kind = holdfast.job(note)
    model = Renamed(userId=7, on="monday")  # type: ignore[call-arg]
    value = {Renamed: model, list[Renamed]: [model], dict[str, Renamed]: {"x": model}}[hint]
    kind.enqueue(value)
    raw = {"userId": 7, "on": "monday"}
    plain: Any = {Renamed: raw, list[Renamed]: {"a": [raw]}, dict[str, Renamed]: {"a": {"x": raw}}}[hint]
    holdfast.enqueue("note", plain)
    holdfast.enqueue("note", json.dumps(plain))
    assert holdfast.run_until_idle() == 3
    assert seen == [value] * 3


@pytest.mark.parametrize("hint", [Withheld, list[Withheld]])
def test_what_could_not_be_read_when_it_runs_is_refused_when_it_is_enqueued(app: Holdfast, hint: Any) -> None:
    def note(a: Any) -> None: ...

    note.__annotations__["a"] = hint
    kind, value = app.job(note), Withheld(secret=1)
    assert "secret': Field required" in sentence(lambda: kind.enqueue(value if hint is Withheld else [value]))


def test_a_model_may_be_the_payload_of_a_kind_that_is_named(holdfast: TestHoldfast) -> None:
    seen: list[Any] = []

    @holdfast.job
    def charge(card: Card) -> None:
        seen.append(card)

    @holdfast.job
    def note(number: int, holder: str, limit: float, more: Any) -> None:
        seen.append(Card(number=number, holder=holder, limit=limit, more=more))

    for kind in ("charge", "note"):
        holdfast.enqueue(kind, Card(number=7, holder="ada"))
    holdfast.run_until_idle()
    assert seen == [Card(number=7, holder="ada")] * 2


def test_a_prepared_job_tells_its_kind_and_not_its_payload(app: Holdfast) -> None:
    @app.job
    def greet(name: str) -> None: ...

    assert repr(greet.prepare("Ada")) == "<prepared greet>"
