"""The application that the chaos tests run in real worker processes.

Each body leaves one line in a ledger outside the store, appended in one write, so that the tests can compare what
happened with what is recorded.
"""

import asyncio
import os
import random
import time
from pathlib import Path

from holdfast import Context, Holdfast, Retry

app = Holdfast(os.environ.get("CHAOS_URL", "memory://"), lease=2, heartbeat=0.5, upkeep=0.2, grace=5)


def _note(ctx: Context) -> None:
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, f"{ctx.job_id} {ctx.attempt} {os.getpid()}\n".encode())
    os.close(ledger)


@app.job(retry=Retry.fixed(0, retries=60), crash_cap=60)
def work(n: int, ctx: Context) -> int:
    """Take a moment, and fail the first time now and then."""
    _note(ctx)
    time.sleep(random.uniform(0, 0.04))
    if n % 50 == 0 and ctx.attempt == 1:
        raise OSError
    return n


@app.job(retry=Retry.fixed(0, retries=60), crash_cap=60)
async def awork(n: int, ctx: Context) -> int:
    """The same on the event loop."""
    _note(ctx)
    await asyncio.sleep(random.uniform(0, 0.04))
    return n


@app.job(retry=Retry.fixed(0, retries=5))
def hold(marker: str, ctx: Context) -> int:
    """Run until the test lets go, on the first attempt only."""
    _note(ctx)
    while ctx.attempt == 1 and not Path(marker).exists():
        time.sleep(0.01)
    return ctx.attempt


@app.job(retry=Retry.fixed(0, retries=9))
def poison(ctx: Context) -> None:
    """Take the whole worker down."""
    _note(ctx)
    os.kill(os.getpid(), 9)
