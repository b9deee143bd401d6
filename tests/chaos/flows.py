"""The workflows that the chaos tests run in real worker processes.

Each body of a step leaves one line in a ledger outside the store, with the token of the claim under which it began.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any

from holdfast import Context, Holdfast, Retry, Step

app = Holdfast(os.environ.get("CHAOS_URL", "memory://"), lease=2, heartbeat=0.5, upkeep=0.2, grace=5)
STEPS = 20
SPENDS = 10
KINDS = ("flow", "aflow", "pipe")
LASTING = Retry.fixed(0, retries=300)
SLOW = float(os.environ.get("CHAOS_SLOW", "0.02"))


def chained(value: int, place: int) -> int:
    """Give what a step makes of the value before it."""
    return (value * 31 + place) % 1_000_003


def expected(n: int) -> int:
    """Give what a whole run makes of its number."""
    for place in range(STEPS):
        n = chained(n, place)
    return n


def cost(place: int) -> int:
    """Give what a step costs."""
    return place % 3 + 1


def note(ctx: Context, step: str) -> None:
    """Leave a line in the ledger, in one write."""
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, f"{ctx.job_id} {step} {ctx._job.token}\n".encode())
    os.close(ledger)


def body(ctx: Context, value: int, place: int) -> int:
    """Do one step."""
    note(ctx, f"s{place}")
    time.sleep(random.uniform(0, SLOW))
    return chained(value, place)


async def abody(ctx: Context, value: int, place: int) -> int:
    """Do one step on the event loop."""
    note(ctx, f"s{place}")
    await asyncio.sleep(random.uniform(0, SLOW))
    return chained(value, place)


@app.workflow(retry=LASTING, crash_cap=300)
def flow(n: int, ctx: Context) -> int:
    """Run the steps one after the other, with a nap in the middle."""
    for place in range(STEPS):
        n = ctx.step(f"s{place}", body, ctx, n, place)
        if place == STEPS // 2:
            ctx.sleep("nap", 0.05)
    return n


@app.workflow(retry=LASTING, crash_cap=300)
async def aflow(n: int, ctx: Context) -> int:
    """The same on the event loop, plain functions and coroutines by turns."""
    for place in range(STEPS):
        n = await ctx.step(f"s{place}", body if place % 2 else abody, ctx, n, place)
        if place == STEPS // 2:
            await ctx.sleep("nap", 0.05)
    return n


def _link(place: int) -> Callable[..., int]:
    def link(payload: dict[str, int], results: dict[str, int], ctx: Context) -> int:
        return body(ctx, results[f"s{place - 1}"] if place else payload["n"], place)

    return link


pipe = app.pipeline("pipe", [Step(_link(n), name=f"s{n}") for n in range(STEPS)], retry=LASTING, crash_cap=300)


def prepared(app: Holdfast, n: int) -> Any:
    """Prepare the n-th run, of one kind after the other."""
    kind = KINDS[n % len(KINDS)]
    return app.prepare(kind, {"payload": {"n": n}} if kind == "pipe" else {"n": n})


@app.workflow(retry=Retry.fixed(0.1, retries=8), crash_cap=300)
def spender(ctx: Context) -> int:
    """Spend something in every step."""
    for place in range(SPENDS):
        ctx.step(f"s{place}", _spend, ctx, place)
    return SPENDS


def _spend(ctx: Context, place: int) -> None:
    ctx.spend(cost(place))
    time.sleep(random.uniform(0, SLOW / 4))
