"""Claims by turns on a file, of any size: they take what the reference takes, in its order, whichever way they go."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain import lifecycle, limits, ring
from holdfast.domain.ids import Ids
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import MINUTE, SECOND
from holdfast.domain.move import Move
from holdfast.port.store import Claim, Page, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.sql import SQL
from holdfast.testing.clock import ManualClock

SIZES = (0, 1, 2, 3, 7, 24, 49, 50, 60, 63, 75, 100, 130, 200)
ROOMY = 1_000
RULES = (
    *[Rule("default", order="fair")] * 4,
    Rule("default", order="fair", weights={"t003": 3, "t010": 2}),
    Rule("default", limits=(Limit("tenant", concurrency=ROOMY),)),
    Rule("default", limits=(Limit("tenant", concurrency=120),)),
    Rule("default", limits=(Limit("tenant", concurrency=3), Limit(concurrency=200))),
    Rule("default", limits=(Limit("key", concurrency=1),)),
    Rule("default", order="fair", limits=(Limit("tenant", rate=(40, SECOND), burst=5),)),
    Rule("default", order="fair", limits=(Limit(concurrency=ROOMY), Limit("tenant", concurrency=150))),
    Rule("*", limits=(Limit("tenant", concurrency=90),)),
    Rule("*"),
)
FLAKY = Failure("flaky", "not this time", retryable=True)


class Pair:
    """A file and the reference, which are asked for the same."""

    def __init__(self, path: Path, seed: int) -> None:
        self.clock = ManualClock()
        self.file = SqliteStore(f"sqlite:///{path}/jobs.db", self.clock)
        self.stores: tuple[Store, Store] = (self.file, MemoryStore(clock=self.clock))
        self.dice = random.Random(seed)
        self.ids = Ids(lambda: self.clock.now() // 1000, self.dice.getrandbits)
        self.running: list[JobRecord] = []
        self.leases = iter(range(10**6))
        self.flaky = 0.0

    def store(self, tenants: Sequence[str]) -> None:
        """Enqueue a plain job for each of these."""
        group = list(
            zip(self.ids.take(len(tenants)), [NewJob("echo", "{}", tenant=one) for one in tenants], strict=True)
        )
        for store in self.stores:
            store.insert([group])

    def asks(self, most: int) -> list[str]:
        """Name the statements that a trip takes."""
        asked: list[str] = []

        def note(_cursor: object, sql: str, _values: object) -> bool:
            asked.append(sql)
            return True

        self.file.file.writer.set_exec_trace(note)
        self.trip(most, {"default": most})
        self.file.file.writer.set_exec_trace(None)
        names = {text: name for name, text in SQL.items()}
        return [names.get(sql, sql) for sql in asked]

    def fill(self) -> None:
        """Enqueue for some tenants: a few jobs each, or many."""
        tenants = self.dice.sample(range(80), self.dice.choice((1, 3, 20, 60)))
        jobs = [f"t{tenant:03}" for tenant in tenants for _ in range(self.dice.choice((1, 1, 2, 5, 30)))]
        self.dice.shuffle(jobs)
        group = [(id_, self.new(tenant)) for id_, tenant in zip(self.ids.take(len(jobs)), jobs, strict=True)]
        for store in self.stores:
            store.insert([group])

    def new(self, tenant: str) -> NewJob:
        one_in_ten = self.dice.random() < 0.1
        return NewJob(
            "echo",
            "{}",
            "other" if self.dice.random() < 0.05 else "default",
            tenant,
            priority=self.dice.choice((0, 0, 0, 5)),
            delay=SECOND if one_in_ten else 0,
            expires_after=3 * SECOND if self.dice.random() < 0.1 else None,
            group=self.dice.choice((None, "x", "y")),
        )

    def rule(self, rule: Rule) -> None:
        name, body = limits.page_name("queue", rule.queue), limits.encoded(Kept(rule))
        for store in self.stores:
            found = store.page(limits.BOOK, name)
            assert store.write_page(Page(limits.BOOK, name, body), found and found.version)

    def trip(self, most: int, queues: dict[str, int] | None) -> list[JobRecord]:
        """Hand in some jobs and claim others."""
        self.dice.shuffle(self.running)
        done, self.running = self.running[:most], self.running[most:]
        moves = [self.ending(job) for job in done]
        want = Claim("w", f"lease-{next(self.leases)}", MINUTE, most, queues)
        answers, claimed = self.asked(moves, want)
        assert answers == [answers[0]] * len(moves) if moves else not answers
        self.running += claimed
        return claimed

    def ending(self, job: JobRecord) -> Move:
        if self.dice.random() < self.flaky:
            return lifecycle.fail(job, FLAKY, draw=0, retention=Retention())
        return lifecycle.complete(job, None, Retention())

    def asked(self, moves: Sequence[Move], want: Claim) -> tuple[list[object], list[JobRecord]]:
        ours, theirs = (store.exchange(moves, want) for store in self.stores)
        assert [job.id for job in ours[1]] == [job.id for job in theirs[1]]
        assert ours == theirs
        return list(ours[0]), ours[1]


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, getattr(request, "param", 0))
    with closing(pair.file):
        yield pair


@pytest.mark.parametrize("pair", range(10), indirect=True)
def test_claims_of_any_size_take_what_the_reference_takes(pair: Pair) -> None:
    pair.flaky = 0.02
    pair.rule(pair.dice.choice(RULES))
    for _ in range(60):
        match pair.dice.randrange(8):
            case 0 | 1:
                pair.fill()
            case 2:
                pair.clock.advance(milliseconds=pair.dice.choice((1, 400, 1_500)))
            case 3 if pair.dice.random() < 0.5:
                pair.rule(pair.dice.choice(RULES))
            case _:
                size = pair.dice.choice(SIZES)
                alone = {"default": size}
                pair.trip(size, pair.dice.choice((alone, alone, alone, {"default": size, "other": 2}, None)))
    standings = [[store.standing(queue) for queue in ("default", "other", "*")] for store in pair.stores]
    assert standings[0] == standings[1]
    assert pair.stores[0].counts() == pair.stores[1].counts()
    assert list(pair.file.check()) == []


@pytest.mark.parametrize("pair", range(10), indirect=True)
def test_jobs_go_in_one_order_whether_limits_are_far_or_near(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROOMY", 30)
    monkeypatch.setattr(ring, "WIDE", 300)  # as many lanes as there can be
    asked = [Limit("tenant", concurrency=60), Limit("tenant", concurrency=150), Limit("key", concurrency=90)]
    pair.rule(Rule("default", limits=(pair.dice.choice(asked),)))
    pair.fill()
    pair.trip(7, {"default": 7})
    lined = 0
    for step in range(60):
        match pair.dice.randrange(8):
            case 0 | 1:
                pair.fill()
            case 2:
                pair.clock.advance(milliseconds=pair.dice.choice((1, 400, 1_500)))
            case 3 if step % 3 == 0:
                pair.rule(Rule("default", limits=(pair.dice.choice(asked),)))
            case _:
                size = pair.dice.choice((1, 3, 7, 24, 50, 100))
                alone = {"default": size}
                pair.trip(size, pair.dice.choice((alone, alone, alone, {"default": size, "other": 2}, None)))
        db = pair.file.file.writer
        lined += db.execute("SELECT unnamed FROM turn WHERE queue = 'default'").get == 1
    assert lined > 0
    standings = [[store.standing(queue) for queue in ("default", "other", "*")] for store in pair.stores]
    assert standings[0] == standings[1]


def test_limits_that_are_far_cost_three_short_looks(pair: Pair) -> None:
    pair.rule(Rule("default", limits=(Limit("tenant", concurrency=ROOMY),)))
    pair.store([f"t{place % 7}" for place in range(300)])
    pair.trip(6, {"default": 6})
    pair.trip(6, {"default": 6})
    looks = ["orders", "running_in_queue", "lined", "promote", "pick"]
    assert pair.asks(6) == ["BEGIN IMMEDIATE", *looks, "trip", "COMMIT"]


@pytest.mark.parametrize("size", [30, 63, 100])
def test_a_trip_by_turns_takes_few_statements(pair: Pair, size: int) -> None:
    pair.rule(Rule("default", order="fair"))
    pair.store([f"t{place % 97:02}" for place in range(1_500)])
    pair.trip(size, {"default": size})
    for _ in range(5):
        asked = [name for name in pair.asks(size) if name != "sweep"]  # one, or two where the ring ends
        assert asked == ["BEGIN IMMEDIATE", "orders", "stance", "turned", "trip", "COMMIT"]


def test_a_limit_that_a_claim_cannot_reach_costs_two_looks_at_one_number(pair: Pair) -> None:
    pair.rule(Rule("default", order="fair", limits=(Limit("tenant", concurrency=100),)))
    pair.store([f"t{place % 7}" for place in range(300)])
    pair.trip(6, {"default": 6})
    looks = ["orders", "running_in_queue", "running_in_queue", "stance", "sweep"]
    assert pair.asks(1) == ["BEGIN IMMEDIATE", *looks, "turned", "trip", "COMMIT"]


@pytest.mark.parametrize(
    ("tenants", "sizes", "taken"),
    [
        ("a", (4, 3, 5, 1), [4, 3, 3, 0]),
        ("a", (4, 3, 4, 1), [4, 3, 3, 0]),
        ("a", (6, 4, 1), [6, 4, 0]),
        ("ab", (4, 3, 5, 7, 9, 9), [4, 3, 5, 7, 1, 0]),
    ],
)
def test_claims_come_to_the_very_limit_and_not_past_it(
    pair: Pair, tenants: str, sizes: Sequence[int], taken: list[int]
) -> None:
    pair.rule(Rule("default", limits=(Limit("tenant", concurrency=10),)))
    pair.store([*tenants] * 100)
    wants = [Claim("w", f"lease-{next(pair.leases)}", MINUTE, size, {"default": size}) for size in sizes]
    assert [len(pair.asked((), want)[1]) for want in wants] == taken


def test_who_ends_below_a_limit_says_so_to_nobody_and_at_the_limit_to_all(pair: Pair) -> None:
    pair.rule(Rule("default", limits=(Limit("tenant", concurrency=8),)))
    pair.store(["a"] * 100)
    pair.trip(2, {"default": 2})
    assert "changed" not in pair.asks(2)
    pair.asked((), Claim("w", "more", MINUTE, 9, {"default": 9}))
    assert "changed" in pair.asks(1)


def test_a_round_that_is_not_enough_is_gone_round_again(pair: Pair) -> None:
    """Few tenants, then many, then few again: the number of lanes that is remembered is only a hint."""
    pair.rule(Rule("default", order="fair"))
    for tenants in (1, 60, 2, 40, 3):
        pair.store([f"t{place % tenants:02}" for place in range(600)])
        for size in (1, 100, 100, 63, 100, 100, 100):
            pair.trip(size, {"default": size})


def test_statements_are_not_compiled_for_every_value(pair: Pair) -> None:
    for connection in (pair.file.file.writer, pair.file.file.reader):
        assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
