"""The server: requests a second through HTTP against a bare FastAPI route that writes the same rows with bare apsw.

Both run in a process of their own, in the same uvicorn, with durable commits. The callers are bare sockets, so that
they take as little as can be of the processors that the servers are measured on.

`python -m bench.http ROLE FILE` is a server under test: `bare` or `ours`.
"""

import asyncio
import contextlib
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench import floor
from holdfast import Holdfast
from holdfast.bench.lines import Line
from holdfast.bench.processes import Crew, crew, say
from holdfast.domain.ids import Ids
from holdfast.domain.job import NewJob
from holdfast.server import Limits, serve
from holdfast.stores.sqlite import SqliteStore, rows
from holdfast.stores.sqlite.sql import SQL

CALLERS = 16
BATCH = 100
PAYLOAD = {"a": 1, "b": 1}


class Sizes(NamedTuple):
    """How much is asked for."""

    single: int = 6_000
    batches: int = 200
    jobs: int = 3_000
    rounds: int = 3


class Asked(BaseModel):
    """A job, as a bare route takes it."""

    kind: str
    payload: dict[str, Any]


class Batch(BaseModel):
    """Some of them."""

    jobs: list[Asked]


def lines(folder: Path, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Measure both servers in turn, and then the work of workers through ours."""
    sizes = Sizes(2_000, 50, 1_000, 1) if short else Sizes()
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "bare": {}}
    for number in range(1, sizes.rounds + 1):
        for role in ("bare", "ours"):
            tell(f"HTTP, {role}, round {number} of {sizes.rounds}")
            for what, rate in _round(role, folder / f"{role}-{number}.db", sizes).items():
                found[role].setdefault(what, []).append(rate)
    ours = {what: statistics.median(rates) for what, rates in found["ours"].items()}
    bare = {what: statistics.median(rates) for what, rates in found["bare"].items()}
    for what, name in (("single", "one job each request"), ("batch", f"{BATCH} jobs each request")):
        yield Line(f"HTTP: enqueue, {name}", ours[what], bare[what], "jobs/s", 0.7)
        busy = f"{what} busy"
        yield Line(f"the same, by the server's CPU time, {name}", ours[busy], bare[busy], "jobs/CPU s", 0.7)
    yield Line(f"HTTP: claim and complete, {CALLERS} workers, jobs/s", ours["work"], None, "")


def _round(role: str, file: Path, sizes: Sizes) -> dict[str, float]:
    with crew([sys.executable, "-m", "bench.http", role, str(file)], {}) as server:
        _, said = server.hear()
        return asyncio.run(_measure(role, server, int(said["port"]), sizes))


async def _measure(role: str, server: Crew, port: int, sizes: Sizes) -> dict[str, float]:
    job = {"kind": "add", "payload": PAYLOAD}
    one = _request(port, "/v1/jobs", job)
    many = _request(port, "/v1/jobs/batch", {"jobs": [job] * BATCH})
    await _rate(port, one, CALLERS * 10)
    rates = {}
    for what, request, times, jobs in (("single", one, sizes.single, 1), ("batch", many, sizes.batches, BATCH)):
        spent = server.cpu()
        rates[what] = jobs * await _rate(port, request, times)
        rates[f"{what} busy"] = jobs * times / (server.cpu() - spent)
    if role == "ours":
        rates["work"] = await _work(port, sizes.jobs)
    return rates


async def _rate(port: int, request: bytes, times: int) -> float:
    """Send a request so many times over all callers; give how many are answered in a second."""
    left = iter(range(times))

    async def call(ask: Callable[[bytes], Awaitable[bytes]]) -> None:
        for _ in left:
            await ask(request)

    return times / await _together(port, call)


async def _work(port: int, jobs: int) -> float:
    """Claim jobs one by one and complete them; jobs per second."""
    left = iter(range(jobs))

    async def call(ask: Callable[[bytes], Awaitable[bytes]]) -> None:
        claim = _request(port, "/v1/claims", {"worker": "bench"})
        for _ in left:
            (job,) = json.loads(await ask(claim))["jobs"]
            await ask(_request(port, f"/v1/jobs/{job['id']}/complete", {"token": job["lease"]["token"], "result": 2}))

    return jobs / await _together(port, call)


async def _together(port: int, call: Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[None]]) -> float:
    """Let all callers work at once; give the seconds it took."""
    async with contextlib.AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(_line(port)) for _ in range(CALLERS)]
        started = time.perf_counter()
        await asyncio.gather(*(call(ask) for ask in asks))
        return time.perf_counter() - started


@asynccontextmanager
async def _line(port: int) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)

    async def ask(request: bytes) -> bytes:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        assert head.split(b" ")[1] in (b"200", b"201"), body
        return body

    try:
        yield ask
    finally:
        writer.close()


def _request(port: int, path: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def bare(file: Path) -> None:
    """Serve inserts of the same row into the same table by bare statements; one commit each request, in turn."""
    store, turn, app = SqliteStore(f"sqlite:///{file}"), threading.Lock(), FastAPI()
    store.counts()
    db = floor.connect(file)
    ids = Ids(lambda: time.time_ns() // 1_000_000, random.Random().getrandbits)

    def insert(jobs: list[Asked]) -> list[str]:
        with turn:
            made = ids.take(len(jobs))
            new = [NewJob(job.kind, json.dumps(job.payload)) for job in jobs]
            now = time.time_ns() // 1_000
            db.execute("BEGIN IMMEDIATE")
            db.executemany(SQL["insert"], [rows.fresh(id_, job, now) for id_, job in zip(made, new, strict=True)])
            db.execute("COMMIT")
            return made

    @app.post("/v1/jobs", status_code=201)
    def enqueue(job: Asked) -> dict[str, str]:
        return {"id": insert([job])[0]}

    @app.post("/v1/jobs/batch", status_code=201)
    def enqueue_many(body: Batch) -> dict[str, list[str]]:
        return {"ids": insert(body.jobs)}

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    _serve(server.servers[0].sockets[0].getsockname()[1])


def ours(file: Path) -> None:
    """Serve jobs as `holdfast server` does."""
    app = Holdfast(f"sqlite:///{file}")
    serving = serve(app, port=0, dashboard=False, limits=Limits(rate=1e9, burst=1e9))
    _serve(serving.port)


def _serve(port: int) -> None:
    say(port=port)
    sys.stdin.read()


if __name__ == "__main__":
    {"bare": bare, "ours": ours}[sys.argv[1]](Path(sys.argv[2]))
