"""pgqueuer, on asyncpg and on uvloop, as its own command line runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from roles import Peer, Probe, Sender, play

BULK = 1_000
BATCH = 500


async def setup(url: str) -> None:
    """Make its tables."""
    await Queries(AsyncpgDriver(await asyncpg.connect(url))).install()


@asynccontextmanager
async def sender(url: str) -> AsyncIterator[Sender]:
    """Enqueue over one connection; in bulk by lists."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))

    async def many(jobs: int) -> None:
        for start in range(0, jobs, BULK):
            number = min(BULK, jobs - start)
            await queries.enqueue(["noop"] * number, [b"-1"] * number, [0] * number)

    yield Sender(lambda seq: queries.enqueue("noop", b"%d" % seq), many)


async def work(url: str, tuned: bool, probe: Probe) -> None:  # noqa: FBT001 - a role's argument
    """Run a worker: by default over one connection with batches of 10, tuned over a pool with large ones."""
    if tuned:
        queuer = PgQueuer.from_asyncpg_pool(await asyncpg.create_pool(url, min_size=2, max_size=10))
    else:
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(url))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        probe.handle(int(job.payload))

    await probe.begin()
    await (queuer.run(batch_size=BATCH) if tuned else queuer.run())


play(Peer(setup, sender, work), uvloop.run)
