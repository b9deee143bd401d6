"""oban for Python, the free one, on psycopg and on uvloop, as its own command line runs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop
from oban import Job, Oban, worker
from oban.schema import install
from roles import Peer, Probe, Sender, play

BULK = 1_000
LIMIT = 300
"""Jobs at once, and so also the most that one fetch brings."""
probe = Probe()


@worker(queue="default")
class Noop:
    """The only job."""

    async def process(self, job: Job) -> None:
        """Do nothing, and count it."""
        probe.handle(job.args["seq"])


async def setup(url: str) -> None:
    """Make its tables."""
    await install(await Oban.create_pool(url))


@asynccontextmanager
async def sender(url: str) -> AsyncIterator[Sender]:
    """Enqueue from a pool; in bulk by many at once."""
    oban = Oban(pool=await Oban.create_pool(url))

    async def many(jobs: int) -> None:
        for start in range(0, jobs, BULK):
            await oban.enqueue_many([Noop.new({"seq": -1}) for _ in range(min(BULK, jobs - start))])

    yield Sender(lambda seq: oban.enqueue(Noop.new({"seq": seq})), many)


async def work(url: str, tuned: bool, _: Probe) -> None:  # noqa: FBT001 - a role's argument
    """Run a worker: by default ten jobs at a time."""
    pool = await Oban.create_pool(url)
    await probe.begin()
    async with Oban(pool=pool, queues={"default": LIMIT if tuned else {}}):
        await asyncio.Event().wait()


play(Peer(setup, sender, work), uvloop.run)
