"""The jobs of a chaos run. Waiting stands for the work, so that any machine is fast enough.

Each body writes to the ledger when it begins and when it is done, and returns a receipt that nobody else can have made:
what the store keeps in the end tells which body's return was accepted.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import timedelta

from pydantic import BaseModel

from holdfast.app import Holdfast
from holdfast.chaos.ledger import Ledger
from holdfast.chaos.plan import CRASH_CAP, HOPELESS, LASTING, NAP, STEPS, step
from holdfast.client.context import Context
from holdfast.client.pipeline import Step
from holdfast.domain.errors import Permanent

LEASE = 2.0
"""Short, so that lost work can be seen to come back; the default is 15 s."""
HEARTBEAT = 0.5
UPKEEP = 0.2
_NAP_AFTER = STEPS // 2


class Given(BaseModel):
    """What a handler is given: see `plan.Task`."""

    number: int
    effort: float
    misses: int


def application(url: str | None, ledger: Ledger) -> Holdfast:
    """Make the application; workers and whoever enqueues make the same one."""
    app = Holdfast(url, lease=LEASE, heartbeat=HEARTBEAT, upkeep=UPKEEP, grace=3)
    _register_plain(app, ledger)
    _register_failing(app, ledger)
    _register_stepped(app, ledger)
    return app


def _register_plain(app: Holdfast, ledger: Ledger) -> None:
    @app.job(retry=LASTING, crash_cap=CRASH_CAP)
    def work(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        time.sleep(task.effort)
        return ledger.done(ctx, _receipt())

    @app.job(retry=LASTING, crash_cap=CRASH_CAP)
    async def awork(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        await asyncio.sleep(task.effort)
        return ledger.done(ctx, _receipt())


def _register_failing(app: Holdfast, ledger: Ledger) -> None:
    @app.job(retry=LASTING, crash_cap=CRASH_CAP)
    def flaky(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        time.sleep(task.effort)
        if ctx.attempt <= task.misses:
            raise ConnectionRefusedError
        return ledger.done(ctx, _receipt())

    @app.job(retry=LASTING, crash_cap=CRASH_CAP)
    def reject(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        time.sleep(task.effort)
        msg = "nobody can do this"
        raise Permanent(msg, code="impossible")

    @app.job(retry=HOPELESS, crash_cap=CRASH_CAP)
    async def hopeless(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        await asyncio.sleep(task.effort)
        raise TimeoutError


def _register_stepped(app: Holdfast, ledger: Ledger) -> None:
    @app.workflow(retry=LASTING, crash_cap=CRASH_CAP)
    def flow(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        results = [""]
        for place in range(STEPS):
            results.append(ctx.step(step(place), _body, ledger, ctx, task, place, results[-1]))
            if place == _NAP_AFTER:
                ctx.sleep("nap", timedelta(microseconds=NAP))
        return ledger.done(ctx, " ".join(results[1:]))

    @app.workflow(retry=LASTING, crash_cap=CRASH_CAP)
    async def aflow(task: Given, ctx: Context) -> str:
        ledger.begin(ctx)
        results = [""]
        for place in range(STEPS):
            fn = _body if place % 2 else _abody
            results.append(await ctx.step(step(place), fn, ledger, ctx, task, place, results[-1]))
            if place == _NAP_AFTER:
                await ctx.sleep("nap", timedelta(microseconds=NAP))
        return ledger.done(ctx, " ".join(results[1:]))

    def link(place: int) -> Callable[..., str]:
        def run(payload: Given, results: dict[str, str], ctx: Context) -> str:
            return _body(ledger, ctx, payload, place, results[step(place - 1)] if place else "")

        return run

    links = [Step(link(place), name=step(place)) for place in range(STEPS)]
    app.pipeline("pipe", links, retry=LASTING, crash_cap=CRASH_CAP)


def _body(ledger: Ledger, ctx: Context, task: Given, place: int, given: str) -> str:
    ledger.begin(ctx, step(place), given)
    time.sleep(task.effort)
    return ledger.done(ctx, _receipt(), step(place))


async def _abody(ledger: Ledger, ctx: Context, task: Given, place: int, given: str) -> str:
    ledger.begin(ctx, step(place), given)
    await asyncio.sleep(task.effort)
    return ledger.done(ctx, _receipt(), step(place))


def _receipt() -> str:
    return secrets.token_hex(6)
