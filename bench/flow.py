"""Flow control on SQLite and PostgreSQL: what turns and limits cost a claim, beside claims without them, and what a
full limit costs others.

A trip hands in a batch and claims the next, in one transaction, as a worker's does. The two that are compared take
turns after every few trips, so that what the machine does meanwhile hits both.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peers.database import fresh
from holdfast.bench.lines import Line, typical
from holdfast.domain import lifecycle, limits
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.domain.move import Move
from holdfast.port.store import Claim, Page, Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

BATCH = 100
SLICE = 500
WARM = 1_000
SMALL = 99
RETENTION = Retention()
ROOMY = 1_000_000
Opened = Callable[[], AbstractContextManager[Store]]
"""Opens an empty store."""


class Sizes(NamedTuple):
    """How much is done."""

    jobs: int = 50_000
    claimed: int = 10_000
    behind: int = 1_000_000
    rounds: int = 5


def lines(folder: Path, conninfo: str, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Measure turns at several numbers of tenants, limits that nobody hits, and a full one beside another queue."""
    sizes = Sizes(20_000, 3_000, 20_000, 3) if short else Sizes()

    @contextmanager
    def in_file() -> Iterator[Store]:
        with closing(SqliteStore(f"sqlite:///{folder}/{secrets.token_hex(8)}.db")) as store:
            yield store

    @contextmanager
    def in_schema() -> Iterator[Store]:
        with fresh(conninfo, f"holdfast_bench_{secrets.token_hex(4)}") as url, closing(PostgresStore(url)) as store:
            yield store

    for engine, opened in (("SQLite", in_file), ("PostgreSQL", in_schema)):
        for line in _measured(opened, lambda what, engine=engine: tell(f"{engine}: {what}"), sizes):
            yield line._replace(what=f"{engine}: {line.what}")


def _measured(opened: Opened, tell: Callable[[str], None], sizes: Sizes) -> Iterator[Line]:
    for tenants in (1, 100, 10_000):
        tell(f"fair claims among {tenants:,} tenants")
        fair = Rule("default", order="fair")
        yield _compared(
            opened, f"fair claims, {tenants:,} tenant{'s'[: tenants - 1]}", fair, sizes, tenants=tenants, goal=1 / 1.3
        )
    tell("limits that nobody hits")
    roomy = (Limit(concurrency=ROOMY), Limit(rate=(ROOMY, SECOND), burst=ROOMY))
    yield _compared(opened, "claims under limits of the queue", Rule("default", limits=roomy), sizes)
    per_tenant = (Limit("tenant", concurrency=ROOMY),)
    yield _compared(opened, "claims under a limit per tenant", Rule("default", limits=per_tenant), sizes)
    tell(f"a full limit with {sizes.behind:,} jobs behind it")
    yield _beside(opened, sizes)
    tell(f"tenants with 10 jobs each beside one with {sizes.behind:,}")
    yield _small(opened, sizes)


def _compared(opened: Opened, name: str, rule: Rule, sizes: Sizes, *, tenants: int = 100, goal: float = 0.9) -> Line:
    rounds = []
    for _ in range(sizes.rounds):
        with opened() as plain, opened() as ruled:
            _write(ruled, rule)
            for store in (plain, ruled):
                _fill(store, sizes.jobs, tenants)
            rounds.append(_in_turns(ruled, plain, sizes.claimed, {"default": BATCH}))
    return Line(name, *typical(rounds), "jobs/s", goal)


def _beside(opened: Opened, sizes: Sizes) -> Line:
    """Claim from one queue while another is full, and without it."""
    rounds = []
    with opened() as store, opened() as empty:
        _write(store, Rule("full", limits=(Limit("tenant", concurrency=1),)))
        _fill(store, sizes.behind, 100, "full")
        store.claim(Claim("bench", secrets.token_hex(8), 60 * MINUTE, 1_000, {"full": 1_000}))
        for _ in range(sizes.rounds):
            for where in (empty, store):
                _fill(where, sizes.claimed + WARM, 100)
            rounds.append(_in_turns(store, empty, sizes.claimed, {"default": BATCH, "full": BATCH}))
    return Line("claims beside a full limit", *typical(rounds), "jobs/s", 0.95)


def _small(opened: Opened, sizes: Sizes) -> Line:
    """Serve tenants with few jobs each beside one with many that was there before, and without it; until the last of
    the few is done.
    """
    rounds = []
    with opened() as store, opened() as empty:
        for where in (store, empty):
            _write(where, Rule("default", order="fair"))
        _fill(store, sizes.behind, 1)
        for _ in range(sizes.rounds):
            for where in (empty, store):
                _fill(where, SMALL * 10, SMALL, first=1)
            rounds.append((_served(store), _served(empty)))
    ours, floor = typical(rounds)
    name = f"{SMALL} tenants with 10 jobs each beside one with {sizes.behind:,}, against alone"
    return Line(name, ours * 1000, floor * 1000, "ms", 2, larger_is_better=False)


def _served(store: Store) -> float:
    """Claim and complete until all of the small tenants are served; give the seconds."""
    side, left = _Side(store, {"default": BATCH}), SMALL * 10
    begun = time.perf_counter()
    while left:
        side.go_on(1)
        left -= sum(job.tenant != "tenant-00000" for job in side.claimed)
    store.commit(side.moves)
    return time.perf_counter() - begun


def _in_turns(ours: Store, floor: Store, jobs: int, queues: dict[str, int]) -> tuple[float, float]:
    """Claim and complete so many jobs in each store, a few trips here and a few there; give how many a second."""
    sides = (_Side(ours, queues), _Side(floor, queues))
    for side in sides:
        side.warm_up()
    while any(side.done < jobs for side in sides):
        for side in sides:
            side.go_on(min(SLICE, jobs - side.done))
    for side in sides:
        side.store.commit(side.moves)
    return sides[0].rate, sides[1].rate


class _Side:
    """One of two stores that take turns."""

    def __init__(self, store: Store, queues: dict[str, int]) -> None:
        self.store = store
        self.claimed: list[JobRecord] = []
        self.moves: list[Move] = []
        self.done = 0
        self._queues = queues
        self._took = 0.0

    @property
    def rate(self) -> float:
        return self.done / self._took

    def warm_up(self) -> None:
        """Let the connection learn its statements, which takes long the first time."""
        self.go_on(WARM)
        self.done, self._took = 0, 0.0

    def go_on(self, jobs: int) -> None:
        """Claim and complete so many jobs more."""
        end = self.done + jobs
        begun = time.perf_counter()
        while self.done < end:
            want = Claim("bench", secrets.token_hex(8), MINUTE, BATCH, self._queues)
            self.claimed = self.store.exchange(self.moves, want)[1]
            assert self.claimed
            self.moves = [lifecycle.complete(job, None, RETENTION) for job in self.claimed]
            self.done += len(self.claimed)
        self._took += time.perf_counter() - begun


def _write(store: Store, rule: Rule) -> None:
    body = limits.encoded(Kept(rule))
    assert store.write_page(Page(limits.BOOK, limits.page_name("queue", rule.queue), body), None)


def _fill(store: Store, jobs: int, tenants: int, queue: str = "default", first: int = 0) -> None:
    ids = Ids(lambda: time.time_ns() // 1_000_000, secrets.randbits)
    for done in range(0, jobs, 10_000):
        number = min(10_000, jobs - done)
        news = (NewJob("add", "{}", queue, f"tenant-{first + (done + n) % tenants:05}") for n in range(number))
        store.insert([list(zip(ids.take(number), news, strict=True))])
