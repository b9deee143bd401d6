"""A signal's handler may raise in the main thread between any two steps: the file is left to the others."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.stores.sqlite.file import OpenFile, Turn


class Stop(BaseException):
    """What a signal's handler raises."""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OpenFile]:
    file = OpenFile(tmp_path / "jobs.db")
    yield file
    file.close()


def interrupt(turn: Turn, at: int) -> bool:
    """Begin a transaction in which the line of this number is not run any more, if there are so many."""
    lines = iter(range(at))

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not Turn.__enter__.__code__:
            return None
        if event == "line" and next(lines, None) is None:
            sys.settrace(None)
            raise Stop
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with turn:
            return False
    except Stop:
        return True
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("ask", [OpenFile.write, OpenFile.read])
def test_whoever_is_interrupted_on_the_way_into_a_transaction_leaves_the_file_to_the_others(
    file: OpenFile, ask: Any
) -> None:
    def other() -> None:
        with ask(file) as db:
            answers.append(db.in_transaction)

    lines = 0
    while interrupt(ask(file), lines):
        answers: list[bool] = []
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        thread.join(10)
        assert answers == [True]
        lines += 1
    assert lines > 4
    other()


def test_whoever_is_interrupted_while_another_has_the_file_takes_nothing_from_it(file: OpenFile) -> None:
    inside, go, answers = threading.Event(), threading.Event(), list[bool]()

    def other() -> None:
        with file.write():
            inside.set()
            assert go.wait(10)
            answers.append(file.writer.in_transaction)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert inside.wait(10)
    assert interrupt(file.write(), 2)  # before it asks for the lock
    assert file.write().is_busy()
    go.set()
    thread.join(10)
    assert answers == [True]
    assert not file.write().is_busy()
