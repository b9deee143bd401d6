"""The asynchronous twin of a blocking method: the same call in a thread, so that nothing is written twice."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def asynchronous(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Give the `async` form of a method that does I/O."""

    @wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    twin.__doc__ = f"Asynchronous twin of `{method.__name__}`."
    return twin
