"""A signal's handler may raise in the main thread between any two steps: the file is left to the others."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores.sqlite.file import OpenFile, Turn
from tests.interrupted import in_process, interrupted


def interrupt(turn: Turn, at: int) -> bool:
    """Begin a transaction in which the line of this number is not run any more, if there are so many."""

    def begin() -> None:
        with turn:
            pass

    return interrupted(begin, "line", at, lambda frame: frame.f_code is Turn.__enter__.__code__)


def interrupt_at_every_line(path: Path, ask: Callable[[OpenFile], Any]) -> None:
    with closing(OpenFile(path)) as file:

        def other() -> None:
            with ask(file) as db:
                answers.append(db.in_transaction)

        lines = 0
        answers: list[bool] = []
        while interrupt(ask(file), lines):
            answers.clear()
            thread = threading.Thread(target=other, daemon=True)
            thread.start()
            thread.join(10)
            assert answers == [True]
            lines += 1
        assert lines > 4
        other()


def interrupt_beside_another(path: Path) -> None:
    inside, go, answers = threading.Event(), threading.Event(), list[bool]()
    with closing(OpenFile(path)) as file:

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


@pytest.mark.parametrize("ask", [OpenFile.write, OpenFile.read])
def test_whoever_is_interrupted_on_the_way_into_a_transaction_leaves_the_file_to_the_others(
    tmp_path: Path, ask: Callable[[OpenFile], Any]
) -> None:
    in_process(interrupt_at_every_line, tmp_path / "jobs.db", ask)


def test_whoever_is_interrupted_while_another_has_the_file_takes_nothing_from_it(tmp_path: Path) -> None:
    in_process(interrupt_beside_another, tmp_path / "jobs.db")
