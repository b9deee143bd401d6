"""The roles every Python peer plays: setup, single, bulk, send, work. One JSON object per line, on standard output.

A script hands its peer to `play`; the role and its number come from the command line, the database from BENCH_URL.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

WARM_UP = 20
GAP = 0.02
"""Seconds between two jobs when latency is measured."""


class Sender(NamedTuple):
    """A connected producer. A job's payload is its number: below zero to be counted, else to be timed."""

    one: Callable[[int], Awaitable[object]]
    many: Callable[[int], Awaitable[object]]
    """Enqueue so many jobs to be counted."""


class Probe:
    """What a handler does: count, or say when it began."""

    def __init__(self) -> None:
        self.handled = 0
        self.first = 0.0

    def handle(self, seq: int) -> None:
        """Be the whole of a job."""
        if seq >= 0:
            say(seq=seq, started=time.time())
            return
        if not self.handled:
            self.first = time.time()
        self.handled += 1

    async def begin(self) -> None:
        """Be called when the worker is connected and about to run: wait for the word, and report from then on."""
        await ready()
        self.reporting = asyncio.create_task(self._report())

    async def _report(self) -> None:
        said = 0
        async for _ in _ticks(0.01):
            if self.handled != said:
                said = self.handled
                say(handled=said, first=self.first)


class Peer(NamedTuple):
    """One peer's own way to do it."""

    setup: Callable[[str], Awaitable[None]]
    sender: Callable[[str], AbstractAsyncContextManager[Sender]]
    work: Callable[[str, bool, Probe], Awaitable[None]]
    """Run a worker until killed: at this URL, tuned or not, with this probe in the handler."""


def say(**facts: object) -> None:
    """Tell the driver."""
    print(json.dumps(facts), flush=True)


async def ready() -> None:
    """Say that all is in place, and wait for the word."""
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)


def play(peer: Peer, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """Play the role that the command line names, on the event loop that the peer prefers."""
    run(_play(peer, os.environ["BENCH_URL"], sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))


async def _play(peer: Peer, url: str, role: str, argument: str) -> None:
    match role:
        case "setup":
            await ready()
            await peer.setup(url)
            say(done=True)
        case "work":
            await peer.work(url, argument == "tuned", Probe())
        case _:
            async with peer.sender(url) as sender:
                await ready()
                await {"single": _single, "bulk": _bulk, "send": _send}[role](sender, int(argument))


async def _single(sender: Sender, jobs: int) -> None:
    for _ in range(WARM_UP):
        await sender.one(-1)
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(jobs):
        await sender.one(-1)
    _enqueued(jobs, jobs + WARM_UP, started, cpu)


async def _bulk(sender: Sender, jobs: int) -> None:
    started, cpu = time.perf_counter(), time.process_time()
    await sender.many(jobs)
    _enqueued(jobs, jobs, started, cpu)


def _enqueued(jobs: int, enqueued: int, started: float, cpu: float) -> None:
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    say(rate=jobs / seconds, cpu_us=cpu / jobs * 1e6, enqueued=enqueued)


async def _send(sender: Sender, jobs: int) -> None:
    seq = -WARM_UP
    async for _ in _ticks(GAP):
        called = time.time()
        await sender.one(seq)
        returned = time.time()
        if seq >= 0:
            say(seq=seq, called=called, returned=returned)
        seq += 1
        if seq == jobs:
            return


async def _ticks(gap: float) -> AsyncIterator[None]:
    due = time.perf_counter()
    while True:
        due = max(due + gap, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        yield
