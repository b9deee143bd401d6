"""The kinds an application knows: how they get in, what is refused, and how they are found again."""

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import BadInput, BadPayload, Context, Holdfast, JobFunction, JobHandler, Retry, UnknownKind
from holdfast.testing.engine import TestHoldfast


class Summary(BaseModel):
    user_id: int
    day: str


class DailySummary(JobHandler):
    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        return Summary

    def handle(self, payload: Summary) -> str:
        return f"{payload.user_id} on {payload.day}"


class AsyncSummary(DailySummary):
    async def handle(self, payload: Summary) -> str:  # type: ignore[override]
        return f"later: {payload.user_id}"


class WithoutModel(JobHandler):
    def handle(self, payload: Any) -> None: ...


class WithAnotherModel(JobHandler):
    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        return int  # type: ignore[return-value]

    def handle(self, payload: Any) -> None: ...


class WithContext(DailySummary):
    def handle(self, payload: Summary, ctx: Context) -> str:  # type: ignore[override]
        return f"{payload.user_id}, attempt {ctx.attempt}"


async def on_the_loop() -> None: ...


def in_a_thread() -> None: ...


def by_position(a: int, /) -> None: ...


def many(*numbers: int) -> None: ...


def any_names(**names: int) -> None: ...


def test_a_decorated_function_is_still_the_function(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert isinstance(add, JobFunction)
    assert (add(2, 3), add(2), add.function(4)) == (5, 3, 5)
    assert (add.name, add.__doc__, repr(add)) == ("add", "Add.", "<job add>")
    assert list(holdfast.registry) == ["add"]
    assert holdfast.counts().total == 0


def test_a_kind_has_its_functions_name_unless_it_is_given_one(holdfast: TestHoldfast) -> None:
    @holdfast.job(name="mail.send")
    def send(to: str) -> str:
        return to

    job = send.enqueue("ada")
    assert (send.name, job.kind) == ("mail.send", "mail.send")
    holdfast.run_until_idle()
    assert job.result() == "ada"


def test_the_defaults_of_a_kind_are_its_jobs(holdfast: TestHoldfast) -> None:
    @holdfast.job(queue="mail", priority=7, retry=Retry.fixed(1, retries=3), crash_cap=2)
    def send() -> None: ...

    record = send.enqueue().record
    assert (record.queue, record.priority, record.max_attempts, record.crash_cap) == ("mail", 7, 4, 2)
    assert record.retry.startswith("fixed:1000000:")


def test_a_handler_class_runs_like_a_function(holdfast: TestHoldfast) -> None:
    summary = holdfast.register("daily_summary", DailySummary, queue="mail")
    later = holdfast.register("later", AsyncSummary)
    jobs = [
        summary.enqueue(Summary(user_id=7, day="monday")),
        holdfast.enqueue("daily_summary", {"user_id": 8, "day": "tuesday"}),
        later.enqueue({"user_id": 9, "day": "wednesday"}),
    ]
    assert [job.queue for job in jobs] == ["mail", "mail", "default"]
    assert jobs[0].payload == {"user_id": 7, "day": "monday"}
    holdfast.run_until_idle()
    assert [job.result() for job in jobs] == ["7 on monday", "8 on tuesday", "later: 9"]


def test_a_handler_class_gets_payloads_of_its_model_only(holdfast: TestHoldfast) -> None:
    summary = holdfast.register("daily_summary", DailySummary)
    with pytest.raises(BadPayload, match="daily_summary: field 'day': Field required"):
        summary.enqueue({"user_id": 7})
    assert holdfast.counts().total == 0


def test_each_attempt_gets_a_handler_of_its_own(holdfast: TestHoldfast) -> None:
    made: list[int] = []

    class Counting(DailySummary):
        def __init__(self) -> None:
            made.append(1)

    summary = holdfast.register("daily_summary", Counting)
    assert made == []
    for _ in range(2):
        summary.enqueue(Summary(user_id=1, day=""))
    holdfast.run_until_idle()
    assert len(made) == 2


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (DailySummary(), "a handler class needs payload_model"),
        (Summary, "a handler class needs payload_model"),
        (in_a_thread, "a handler class needs payload_model"),
        (WithoutModel, "payload_model.. of a handler class gives the Pydantic model"),
        (WithAnotherModel, "payload_model.. of a handler class gives the Pydantic model"),
        (WithContext, "takes the payload alone"),
    ],
    ids=["an object", "a model", "a function", "no model", "another model", "more than a payload"],
)
def test_what_is_no_handler_class_is_refused(holdfast: TestHoldfast, handler: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        holdfast.register("wrong", handler)
    assert len(holdfast.registry) == 0


@pytest.mark.parametrize("name", ["", "n" * 256, "new\nline", "\x00", 5])
def test_a_kinds_name_can_be_printed(holdfast: TestHoldfast, name: Any) -> None:
    for call in (lambda: holdfast.register(name, DailySummary), lambda: holdfast.job(name=name)(in_a_thread)):
        with pytest.raises(BadInput, match="A kind is 1 to 255 printable characters"):
            call()


def test_a_default_that_does_not_exist_is_named(holdfast: TestHoldfast) -> None:
    with pytest.raises(TypeError, match="'prioritty'"):
        holdfast.register("daily_summary", DailySummary, prioritty=1)


@pytest.mark.parametrize("fn", [by_position, many, any_names])
def test_parameters_need_names_to_be_stored(holdfast: TestHoldfast, fn: Callable[..., None]) -> None:
    with pytest.raises(BadInput, match=f"{fn.__name__}: a job's parameters need names"):
        holdfast.job(fn)
    assert len(holdfast.registry) == 0


def test_where_a_handler_runs_must_suit_it(holdfast: TestHoldfast) -> None:
    with pytest.raises(BadInput, match="on_the_loop is async; it runs on the loop or in a process"):
        holdfast.job(run_in="thread")(on_the_loop)
    with pytest.raises(BadInput, match="in_a_thread is not async; on the loop it would block every other job"):
        holdfast.job(run_in="loop")(in_a_thread)
    assert holdfast.job(on_the_loop).kind.run_in == "loop"
    assert holdfast.job(in_a_thread).kind.run_in == "thread"
    assert holdfast.job(name="far", run_in="process")(on_the_loop).kind.run_in == "process"


def test_an_async_generator_is_no_handler(holdfast: TestHoldfast) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(BadInput, match="numbers is an async generator, and a job has one result: return it"):
        holdfast.job(numbers)
    assert len(holdfast.registry) == 0


def test_a_name_is_given_once(holdfast: TestHoldfast) -> None:
    holdfast.job(name="work")(in_a_thread)
    with pytest.raises(BadInput, match="The kind 'work' is registered already; give one of the two another name="):
        holdfast.job(name="work")(on_the_loop)
    with pytest.raises(BadInput, match="The kind 'work' is registered already"):
        holdfast.register("work", DailySummary)
    assert holdfast.registry["work"].fn is in_a_thread


def test_the_same_function_may_come_twice(holdfast: TestHoldfast) -> None:
    holdfast.job(in_a_thread)
    assert holdfast.job(queue="other")(in_a_thread).enqueue().queue == "other"
    assert len(holdfast.registry) == 1


def test_a_callable_that_is_no_function_is_to_be_wrapped_in_one(holdfast: TestHoldfast) -> None:
    for decorate in (holdfast.job, holdfast.job(name="named")):
        with pytest.raises(BadInput, match="A job is a function; wrap this partial in one"):
            decorate(functools.partial(in_a_thread))
    assert len(holdfast.registry) == 0


@pytest.mark.parametrize("wrong", [5, "add", ()])
def test_only_a_function_can_be_decorated(holdfast: TestHoldfast, wrong: Any) -> None:
    with pytest.raises(BadInput, match=r"Write @app\.job or @app\.job\(queue="):
        holdfast.job(wrong)


def test_an_option_that_there_is_not_is_named_by_the_call_that_was_given_it(holdfast: TestHoldfast) -> None:
    with pytest.raises(TypeError, match=r"app\.pipeline has no option 'colour'; it takes name, queue, retry"):
        holdfast.pipeline("ingest", [in_a_thread], colour="red")
    with pytest.raises(TypeError, match=r"app\.register has no option 'colour'; it takes name, queue, retry"):
        holdfast.register("sub", JobHandler, colour="red")


def test_an_unknown_kind_is_answered_with_the_known_ones(holdfast: TestHoldfast) -> None:
    with pytest.raises(UnknownKind, match="No handler is registered for the kind 'sub'; known kinds: none yet"):
        holdfast.enqueue("sub", {})
    holdfast.job(name="b")(in_a_thread)
    holdfast.job(name="a")(on_the_loop)
    with pytest.raises(UnknownKind, match="the kind 'sub'; known kinds: a, b"):
        holdfast.enqueue("sub", {})
    with pytest.raises(UnknownKind, match=r"the kind \['a'\]; known kinds: a, b"):
        holdfast.enqueue(["a"], {})  # type: ignore[arg-type]
    assert holdfast.counts().total == 0


def test_applications_know_their_own_kinds_only() -> None:
    one, other = Holdfast("memory://"), Holdfast("memory://")
    one.job(name="work")(in_a_thread)
    other.job(name="work")(on_the_loop)
    assert one.registry["work"].fn is in_a_thread
    assert other.registry["work"].fn is on_the_loop
    assert one.registry.get("nothing") is None
