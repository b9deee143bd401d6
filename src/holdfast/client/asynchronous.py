"""The asynchronous twin of a blocking method: the same call in a thread, so that nothing is written twice.

Whoever is in a loop has loaded `asyncio`; those who never are need not wait for it when they import Holdfast.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Make a blocking call without blocking the loop."""
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)


async def pause(seconds: float) -> None:
    """Let the loop do something else for so long."""
    from asyncio import sleep

    await sleep(seconds)


def asynchronous(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Give the `async` form of a method that does I/O."""

    @wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    twin.__doc__ = f"Asynchronous twin of `{method.__name__}`."
    return twin
