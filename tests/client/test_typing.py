"""What a type checker makes of `@app.job`: `enqueue` has the function's own parameters, and `result` its type."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HANDLERS = """
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from holdfast import Context, Holdfast, Retry

app = Holdfast("memory://")


class Summary(BaseModel):
    user_id: int


@app.job
def add(a: int, b: int = 1) -> int:
    return a + b


@app.job
def named(*, a: int, b: str) -> str:
    return b


@app.job
def nothing() -> None: ...


@app.job
async def later(a: int, b: int) -> str:
    return ""


@app.job
def first(ctx: Context, a: int, b: str = "") -> float:
    return 1.0


@app.job
async def first_async(ctx: Context, a: int, *, b: str) -> float:
    return 1.0


@app.job
def alone(ctx: Context) -> int:
    return 1


@app.job(queue="mail", retry=Retry.fixed(1), timeout=timedelta(seconds=1), permanent=(ValueError,), priority=3)
async def summary(payload: Summary, ctx: Context) -> str:
    return ""


@app.job(name="other", run_in="process", crash_cap=1)
def last(a: int, b: str, ctx: Context) -> bytes:
    return b""


@app.job
async def last_async(a: int, b: str, c: float, ctx: Context) -> bytes:
    return b""


@app.job
def last_of_five(a: int, b: str, c: float, d: bool, ctx: Context) -> bytes:
    return b""


@app.job
async def last_of_six(a: int, b: str, c: float, d: bool, e: int, ctx: Context) -> bytes:
    return b""


@app.job
def last_of_seven(a: int, b: str, c: float, d: bool, e: int, f: str, ctx: Context) -> bytes:
    return b""


@app.job
def by_name(a: int, *, ctx: Context) -> bytes:
    return b""


@app.job
def anything(a: int, value: Any) -> int:
    return a


@app.job
def thing(value: object) -> int:
    return 1
"""

RIGHT = """
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from handlers import (
    Summary, add, alone, anything, app, by_name, first, first_async, last, last_async, last_of_five, last_of_seven,
    last_of_six, later, named, nothing, summary, thing,
)
from holdfast import Job, Prepared

assert_type(add.enqueue(1), Job[int])
assert_type(add.enqueue(1, b=2), Job[int])
assert_type(add.enqueue(1).result(), int)
assert_type(add.enqueue(1).result(timeout=3), int)
assert_type(add.enqueue(1).refresh(), Job[int])
assert_type(named.enqueue(a=1, b=""), Job[str])
assert_type(nothing.enqueue(), Job[None])
assert_type(later.enqueue(1, 2), Job[str])
assert_type(later.enqueue(1, 2).result(), str)
assert_type(first.enqueue(1), Job[float])
assert_type(first.enqueue(1, b=""), Job[float])
assert_type(first_async.enqueue(1, b=""), Job[float])
assert_type(alone.enqueue(), Job[int])
assert_type(summary.enqueue(Summary(user_id=1)), Job[str])
assert_type(last.enqueue(1, ""), Job[bytes])
assert_type(last_async.enqueue(1, "", 1.0), Job[bytes])
assert_type(last_of_five.enqueue(1, "", 1.0, True), Job[bytes])
assert_type(last_of_six.enqueue(1, "", 1.0, True, 5), Job[bytes])
assert_type(last_of_seven.enqueue(1, "", 1.0, True, 5, ""), Job[bytes])
assert_type(by_name.enqueue(1), Job[bytes])
assert_type(anything.enqueue(1, {"x": 1}), Job[int])
assert_type(thing.enqueue(1), Job[int])
assert_type(add.prepare(1, 2), Prepared)
assert_type(add.using(key="k", run_at=datetime.now(UTC)).enqueue(1), Job[int])
assert_type(summary.using(run_after=timedelta(1), queue="q").prepare(Summary(user_id=1)), Prepared)
assert_type(app.enqueue_many([add.prepare(1), later.prepare(1, 2)]), list[Job[Any]])
assert_type(app.get(UUID(int=0)), Job[Any])
assert_type(app.redrive(kind="add"), int)
assert_type(app.redrive(UUID(int=0)), Job[Any])


async def main() -> None:
    assert_type(await later.aenqueue(1, 2), Job[str])
    assert_type(await (await add.aenqueue(1)).aresult(), int)
    assert_type(await (await add.aenqueue(1)).aresult(timeout=timedelta(seconds=1)), int)
    assert_type(await add.using(tenant="acme").aenqueue(1), Job[int])
    assert_type(await app.aenqueue_many([add.prepare(1)]), list[Job[Any]])
    assert_type(await app.afind(state="dead"), list[Job[Any]])
"""

WRONG = """
from handlers import (
    add, alone, anything, by_name, first, first_async, last, last_async, later, named, summary, thing,
)

add.enqueue("1")  # [arg-type]
add.enqueue()  # [call-arg]
add.enqueue(1, 2, 3)  # [call-arg]
add.enqueue(1, c=3)  # [call-arg]
add.enqueue(1).result().upper()  # [attr-defined]
named.enqueue(1, "")  # [call-arg]
later.enqueue("", 2)  # [arg-type]
first.enqueue("", "")  # [arg-type]
first.enqueue()  # [call-arg]
first_async.enqueue(1, "")  # [call-arg]
alone.enqueue(1)  # [call-arg]
summary.enqueue()  # [call-arg]
summary.enqueue(3)  # [arg-type]
last.enqueue(1)  # [call-arg]
last.enqueue(1, 2)  # [arg-type]
last_async.enqueue(1, "", "")  # [arg-type]
by_name.enqueue(1, 2)  # [call-arg]
anything.enqueue(1)  # [call-arg]
thing.enqueue()  # [call-arg]
add.prepare("")  # [arg-type]
add.prepare(1, 2, 3)  # [call-arg]
add.using(key="k").enqueue("")  # [arg-type]
add.using(key="k").prepare()  # [call-arg]
add.using(prio=1)  # [call-arg]
add.using(key=1)  # [arg-type]


async def main() -> None:
    await add.aenqueue("")  # [arg-type]
    await summary.using(key="k").aenqueue()  # [call-arg]
    later.aenqueue(1, 2)  # [unused-coroutine]
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, int, str]]:
    """What mypy has to say, as (file, line, code): one run for all, since most of its time goes into starting."""
    folder = tmp_path_factory.mktemp("typing")
    for name, text in (("handlers", HANDLERS), ("right", RIGHT), ("wrong", WRONG)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty", "--cache-dir=cache"]
    run = subprocess.run([*command, "."], cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE)
    assert len(found) == run.stdout.count(": error:"), run.stdout + run.stderr
    assert found, run.stdout + run.stderr
    return {(file, int(line), code) for file, line, code in found}


def test_what_is_right_passes(complaints: set[tuple[str, int, str]]) -> None:
    assert {each for each in complaints if each[0] != "wrong"} == set()


CALLS = {number: line for number, line in enumerate(WRONG.splitlines(), start=1) if "  # [" in line}


@pytest.mark.parametrize("line", CALLS, ids=lambda line: CALLS[line].strip())
def test_what_is_wrong_does_not(complaints: set[tuple[str, int, str]], line: int) -> None:
    _, _, code = CALLS[line].rpartition("# ")
    assert ("wrong", line, code.strip("[]")) in complaints


def test_nothing_else_is_complained_about(complaints: set[tuple[str, int, str]]) -> None:
    assert {line for file, line, _ in complaints if file == "wrong"} == set(CALLS)


def test_the_package_says_that_it_is_typed() -> None:
    import holdfast

    assert (Path(holdfast.__file__).parent / "py.typed").exists()
