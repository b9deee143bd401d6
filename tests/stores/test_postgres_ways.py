"""Claims by rules that are gone in short ways (lanes read ahead, limits that are far from full) take what the reference
takes, job by job.

Walks are longer and batches larger than those of the state machine, and rules are those under which the short ways
exist; how often they were gone is counted, so that the test does not come to nothing.
"""

import random
import time
from collections import Counter
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from holdfast.domain import lifecycle, limits, ring
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.port.store import Claim, Page, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.claiming import Claims
from holdfast.stores.postgres.lanes import Look
from holdfast.testing.clock import ManualClock

STEPS = 40
WAYS: Counter[str] = Counter()
RULES = {
    "fair": Rule("a", order="fair"),
    "weighted": Rule("a", order="fair", weights={"t1": 3, "t4": 2}),
    "per queue": Rule("a", limits=(Limit(concurrency=90), Limit(rate=(50, SECOND), burst=70))),
    "per tenant": Rule("a", limits=(Limit("tenant", concurrency=40),)),
    "per tenant and queue": Rule("a", order="fair", limits=(Limit(concurrency=80), Limit("tenant", concurrency=30))),
    "per key": Rule("a", limits=(Limit("key", concurrency=25),)),
    "a rate per tenant": Rule("a", limits=(Limit("tenant", rate=(9, SECOND), burst=20),)),
    "tight": Rule("a", limits=(Limit("tenant", concurrency=2),)),
}
ROUND = {
    "fair": Rule("a", order="fair"),
    "per queue": Rule("a", order="fair", limits=(Limit(concurrency=100_000),)),
    "per tenant": Rule("a", order="fair", limits=(Limit("tenant", concurrency=100_000),)),
    "near": Rule("a", order="fair", limits=(Limit("tenant", concurrency=300),)),
}
"""Rules under which one statement goes round the lanes."""
LINED = {
    "per tenant": Rule("a", limits=(Limit("tenant", concurrency=70),)),
    "per tenant and queue": Rule("a", limits=(Limit("tenant", concurrency=90), Limit(rate=(90, SECOND), burst=120))),
    "per key": Rule("a", limits=(Limit("key", concurrency=60),)),
}
"""Rules whose limits are far and near by turns."""


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, by_spare, by_round = Look.begin, Claims._by_spare, Claims._by_round

    def looked(look: Look, *room: Any, **how: Any) -> None:
        begin(look, *room, **how)
        WAYS["read ahead"] += len(look._ahead)
        WAYS["few run"] += len(look.roomy)

    def spared(claims: Claims, *asked: Any) -> Any:
        WAYS["at once"] += 1
        return by_spare(claims, *asked)

    def rounded(claims: Claims, *asked: Any) -> Any:
        done = by_round(claims, *asked)
        WAYS["round"] += bool(done[1])
        return done

    monkeypatch.setattr(Claims, "_by_round", rounded)
    monkeypatch.setattr(Look, "begin", looked)
    monkeypatch.setattr(Claims, "_by_spare", spared)
    WAYS.clear()


class Walk:
    """What is done to both stores."""

    def __init__(self, both: tuple[Store, Store], clock: ManualClock, seed: int) -> None:
        self.both, self.clock, self.rng = both, clock, random.Random(seed)
        self.held: list[tuple[JobRecord, JobRecord]] = []
        self.leases = count()
        self.ids = Ids(lambda: time.time_ns() // 1_000_000, self.rng.getrandbits)

    def rule(self, rule: Rule) -> None:
        for store in self.both:
            name = limits.page_name("queue", rule.queue)
            found = store.page(limits.BOOK, name)
            page = Page(limits.BOOK, name, limits.encoded(Kept(rule)))
            assert store.write_page(page, found and found.version)

    def put(self, jobs: int) -> None:
        rng, lanes = self.rng, self.rng.choice((1, 2, 6, 40))
        news = [
            NewJob(
                "echo",
                "{}",
                rng.choice("aab"),
                f"t{rng.randrange(lanes)}",
                priority=rng.choice((0, 0, 0, 5)),
                delay=rng.choice((0, 0, 0, SECOND)),
                group=rng.choice((None, "x", "y")),
            )
            for _ in range(jobs)
        ]
        group = list(zip(self.ids.take(jobs), news, strict=True))
        for store in self.both:
            store.insert([group])

    def trip(self, *, alone: bool = False) -> None:
        """Hand in some of what is held, and claim; from one queue, if it is to be."""
        some = [pair for pair in self.held if self.rng.random() < 0.6]
        self.held = [pair for pair in self.held if pair not in some]
        limit = self.rng.choice((1, 3, 10, 60, 100))
        queues = {"a": limit} if alone or self.rng.random() < 0.7 else {"a": limit, "b": self.rng.choice((1, 9, 100))}
        want = Claim("w", f"lease-{next(self.leases)}", MINUTE, limit, queues)
        found = []
        for side, store in enumerate(self.both):
            moves = [lifecycle.complete(pair[side], None, Retention()) for pair in some]
            found.append(store.exchange(moves, want)[1])
        assert [job.id for job in found[0]] == [job.id for job in found[1]]
        self.held += list(zip(*found, strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RULES)
def test_short_ways_lead_where_the_long_way_does(name: str, seed: int, postgres_url: str) -> None:
    clock = ManualClock()
    with closing(PostgresStore(postgres_url, clock)) as ours, closing(MemoryStore(clock=clock)) as reference:
        walk = Walk((ours, reference), clock, seed)
        walk.rule(RULES[name])
        walk.put(300)
        for _ in range(STEPS):
            match walk.rng.randrange(10):
                case 0:
                    walk.put(walk.rng.choice((1, 20, 150)))
                case 1:
                    clock.advance(milliseconds=walk.rng.choice((1, 300, 2_000)))
                case _:
                    walk.trip()
        assert ours.standing("a") == reference.standing("a")
        assert list(ours.check()) == []
    assert WAYS["at once" if name == "per queue" else "read ahead"] > STEPS // 8, WAYS
    if name in ("per tenant", "per key"):
        assert WAYS["few run"] > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ROUND)
def test_one_statement_goes_round_as_a_ring_does(name: str, seed: int, postgres_url: str) -> None:
    """Claims of any size, few lanes and many, full ones and empty ones."""
    clock = ManualClock()
    with closing(PostgresStore(postgres_url, clock)) as ours, closing(MemoryStore(clock=clock)) as reference:
        walk = Walk((ours, reference), clock, seed)
        walk.rule(ROUND[name])
        for step in range(STEPS):
            if step % 3 == 0:
                walk.put(walk.rng.choice((30, 100, 250)))
            if step % 7 == 6:
                clock.advance(seconds=1)
            ours._turns._uncertain.clear()  # else a way that led nowhere is not tried for a second
            walk.trip(alone=True)
        assert ours.standing("a") == reference.standing("a")
        assert list(ours.check()) == []
    assert WAYS["round"] > STEPS // 3, WAYS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LINED)
def test_jobs_go_in_one_order_whether_limits_are_far_or_near(
    name: str, seed: int, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROOMY", 50)
    monkeypatch.setattr(ring, "WIDE", 200)  # as many lanes as there can be
    clock = ManualClock()
    with closing(PostgresStore(postgres_url, clock)) as ours, closing(MemoryStore(clock=clock)) as reference:
        walk = Walk((ours, reference), clock, seed)
        walk.rule(LINED[name])
        for step in range(STEPS):
            if step % 4 == 0:
                walk.put(walk.rng.choice((30, 100, 250)))
            if step % 7 == 6:
                clock.advance(seconds=1)
            walk.trip(alone=step % 3 > 0)
        assert ours.standing("a") == reference.standing("a")
        assert list(ours.check()) == []
    assert WAYS["at once"] > 0, WAYS
