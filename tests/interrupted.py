"""Interrupting a call between any two of its steps, by what traces it: in a process of its own.

While an exception waits for a thread that does not come to take it, as some tests leave one behind, CPython 3.11 never
gets past the first step of a function that is traced.
"""

import multiprocessing
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Stop(BaseException):
    """What a signal's handler may raise between any two steps of the main thread."""


def interrupted(call: Callable[[], object], step: str, at: int, is_traced: Callable[[FrameType], bool]) -> bool:
    """Make a call in which the step of this number is not done any more, if it has so many: a `line` or an `opcode`."""
    steps = iter(range(at))

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not is_traced(frame):
            return None
        frame.f_trace_opcodes = step == "opcode"
        if event == step and next(steps, None) is None:
            sys.settrace(None)
            raise Stop
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Stop:
        return True
    finally:
        sys.settrace(before)
    return False


def in_process(call: Callable[..., None], *args: Any) -> None:
    """Make a call in a new process, which must end well."""
    process = multiprocessing.get_context("spawn").Process(target=call, args=args, daemon=True)
    process.start()
    process.join(100)
    process.kill()
    assert process.exitcode == 0
