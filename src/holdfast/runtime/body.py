"""How the bodies of steps are called."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from holdfast.client.asking import Call
from holdfast.domain.errors import StepTimeout
from holdfast.domain.moments import SECOND, Micros


async def limited(work: Awaitable[Any], timeout: Micros | None) -> Any:
    """Await the body of a step, for as long as it may take."""
    limit = asyncio.timeout(None if timeout is None else timeout / SECOND)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeout from error
        raise


def plainly(call: Call) -> Any:
    """Call a plain function in a thread of its own."""
    try:
        return call.fn(*call.args, **call.kwargs)
    except (StopIteration, GeneratorExit) as error:  # whoever awaits a future that holds one would wait for ever
        msg = f"step {call.step!r} raised {type(error).__name__}"
        raise RuntimeError(msg) from error
