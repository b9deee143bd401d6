"""procrastinate, on psycopg. It fetches jobs one by one; what can be tuned is how many run at once."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
from roles import Peer, Probe, Sender, play

BULK = 1_000
AT_ONCE = 60
CONNECTIONS = 40


def application(url: str, probe: Probe, **pool: Any) -> tuple[procrastinate.App, Any]:
    """Make an application with one task."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, **pool))

    @app.task(name="noop", queue="default")
    async def noop(seq: int) -> None:
        probe.handle(seq)

    return app, noop


async def setup(url: str) -> None:
    """Make its tables."""
    app, _ = application(url, Probe())
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def sender(url: str) -> AsyncIterator[Sender]:
    """Defer from a pool; in bulk by batches."""
    app, noop = application(url, Probe())

    async def many(jobs: int) -> None:
        for start in range(0, jobs, BULK):
            await noop.batch_defer_async(*[{"seq": -1}] * min(BULK, jobs - start))

    async with app.open_async():
        yield Sender(lambda seq: noop.defer_async(seq=seq), many)


async def work(url: str, tuned: bool, probe: Probe) -> None:  # noqa: FBT001 - a role's argument
    """Run a worker: by default one job at a time."""
    app, _ = application(url, probe, **({"max_size": CONNECTIONS} if tuned else {}))
    async with app.open_async():
        await probe.begin()
        await app.run_worker_async(**({"concurrency": AT_ONCE} if tuned else {}))


logging.disable(logging.WARNING)
play(Peer(setup, sender, work))
