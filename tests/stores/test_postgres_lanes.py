"""Flow control on PostgreSQL, where the reference has nothing to compare with: jobs stored by others, processes whose
rules are a second old, many jobs that change their places, and who waits for whom.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from holdfast.domain import lifecycle, limits, ring
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention, State
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import HOUR, MINUTE, SECOND
from holdfast.domain.move import Move
from holdfast.port.store import Claim, Page, Query, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore, ahead
from holdfast.stores.postgres.lanes import BATCH
from holdfast.testing.clock import ManualClock
from tests.servers import until

LEASE = MINUTE
Opening = Callable[[], PostgresStore]


@pytest.fixture
def another(postgres_url: str) -> Iterator[Opening]:
    """Open store objects on the same jobs, by the server's own clock."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(PostgresStore(postgres_url)))


@pytest.fixture
def store(another: Opening) -> PostgresStore:
    return another()


def rule(store: Store, queue: str = "default", **fields: Any) -> None:
    name = limits.page_name("queue", queue)
    found = store.page(limits.BOOK, name)
    body = limits.encoded(Kept(Rule(queue)._replace(**fields)))
    assert store.write_page(Page(limits.BOOK, name, body), found and found.version)


def put(store: Store, jobs: int, **fields: Any) -> list[str]:
    ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) % 2**bits)
    group = [(id_, NewJob("echo", "{}")._replace(**fields)) for id_ in ids.take(jobs)]
    store.insert([group])
    return [id_ for id_, _ in group]


def take(store: Store, limit: int, queue: str = "default") -> list[JobRecord]:
    return store.claim(Claim("w", os.urandom(8).hex(), LEASE, limit, {queue: limit}))


def gather(store: PostgresStore, jobs: int, limit: int) -> list[str]:
    """Claim until there are so many."""
    found: list[str] = []

    def look() -> bool:
        found.extend(job.id for job in take(store, limit))
        return len(found) >= jobs

    until(look, f"{jobs} jobs to be claimed")
    return found


def places(store: PostgresStore) -> Counter[str]:
    with psycopg.connect(store.address.conninfo) as db:
        found = db.execute(f"SELECT queue, count(*) FROM {store.address.schema}.waiting GROUP BY 1").fetchall()
    return Counter(dict(found))


def test_jobs_that_others_store_find_their_lanes(store: PostgresStore) -> None:
    rule(store, order="fair")
    put(store, 3, tenant="crowd")
    with psycopg.connect(store.address.conninfo, autocommit=True) as db:
        db.execute(f"SELECT {store.address.schema}.enqueue('echo', tenant => 'late')")
        store.insert_on(db, [("01920000-0000-7000-8000-000000000001", NewJob("echo", "{}", tenant="guest"))])
    assert [job.tenant for job in take(store, 3)] == ["crowd", "guest", "late"]
    assert places(store) == {"default\x1ftcrowd": 2}


def test_who_knows_the_rule_stores_jobs_straight_into_lanes(store: PostgresStore) -> None:
    rule(store, order="fair")
    take(store, 1)
    store._turns.forget()
    take(store, 1)
    put(store, 2, tenant="a")
    put(store, 1, tenant="b", delay=HOUR)
    put(store, 1, tenant="c")
    assert places(store) == {"default\x1fta": 2, "default": 1, "default\x1ftc": 1}
    assert sorted(job.tenant for job in take(store, 9)) == ["a", "a", "c"]
    assert list(store.check()) == []


def test_many_jobs_line_up_and_step_out_again(store: PostgresStore) -> None:
    """More than one claim moves: nothing is lost, nothing taken twice, and the counters stay right."""
    ids = put(store, 2 * BATCH + 100, tenant="a") + put(store, 10, tenant="b", group="x")
    taken: list[str] = []
    for fields in ({"order": "fair"}, {"limits": (Limit("key", concurrency=9_000),)}, {}):
        rule(store, **fields)
        taken += [job.id for _ in range(4) for job in take(store, 20)]
        assert list(store.check()) == []
    taken += gather(store, len(ids) - len(taken), 1_000)
    assert Counter(taken) == Counter(ids)
    assert store.counts() == {("default", State.RUNNING): len(ids)}


def test_a_rule_is_followed_by_all_within_about_a_second(store: PostgresStore, another: Opening) -> None:
    other = another()
    put(store, 2_000)
    assert take(other, 1)
    rule(store, limits=(Limit(concurrency=3),))
    until(lambda: take(other, 1) == [], "the limit to be known")
    assert store.counts()["default", State.RUNNING] >= 3
    assert take(store, 5) == []
    assert store.remove_page(limits.BOOK, limits.page_name("queue", "default"))
    until(lambda: len(take(other, 1)) == 1, "the limit to be gone")


def test_what_somebody_claimed_who_did_not_know_the_rule_is_counted(store: PostgresStore, another: Opening) -> None:
    other = another()
    put(store, 9, tenant="a")
    assert take(other, 1)
    rule(store, limits=(Limit("tenant", concurrency=4),))
    assert len(take(store, 1)) == 1
    gather(other, 2, 1)
    until(lambda: take(store, 9) == [], "all that runs to be counted")
    assert store.counts()["default", State.RUNNING] == 4


def test_what_is_put_into_a_lane_of_a_rule_that_is_gone_is_claimed(store: PostgresStore, another: Opening) -> None:
    other = another()
    rule(store, order="fair")
    take(other, 1)
    take(store, 1)
    other._turns.forget()
    take(other, 1)
    assert store.remove_page(limits.BOOK, limits.page_name("queue", "default"))
    assert take(store, 1) == []
    [id_] = put(other, 1, tenant="a")
    assert places(store) == {"default\x1fta": 1}
    assert gather(store, 1, 1) == [id_]
    assert list(store.check()) == []


def test_a_crowd_of_a_paused_tenant_is_put_aside_and_comes_back(store: PostgresStore) -> None:
    crowd = put(store, BATCH + 500, tenant="crowd", priority=9)
    [other] = put(store, 1, tenant="other")
    page = Page(limits.BOOK, limits.page_name("tenant", "crowd"), "{}")
    assert store.write_page(page, None)
    assert gather(store, 1, 5) == [other]
    until(lambda: store.next_due(None) is None, "nothing to be claimed")
    assert {job.id for job in store.find(Query(tenant="crowd", limit=9_999))} == set(crowd)
    assert store.remove_page(page.book, page.name)
    assert Counter(gather(store, len(crowd), 1_000)) == Counter(crowd)
    assert list(store.check()) == []


def test_the_view_shows_what_stands_in_a_lane(store: PostgresStore) -> None:
    rule(store, order="fair")
    [first, second] = put(store, 2, tenant="a")
    assert [job.id for job in take(store, 1)] == [first]
    with psycopg.connect(store.address.conninfo) as db:
        asked = f"SELECT id::text, state, queue, tenant FROM {store.address.schema}.jobs ORDER BY id"
        assert db.execute(asked).fetchall() == [
            (first, "running", "default", "a"),
            (second, "queued", "default", "a"),
        ]


def test_those_who_claim_by_rules_wait_for_each_other_and_for_nobody_else(
    store: PostgresStore, another: Opening
) -> None:
    rule(store, "slow", order="fair")
    put(store, 2, queue="slow")
    put(store, 5, queue="quick")
    assert len(take(store, 1, "slow")) == 1
    with psycopg.connect(store.address.conninfo) as holder:
        holder.execute(f"SELECT * FROM {store.address.schema}.turn WHERE queue = 'slow' FOR UPDATE")
        began = time.monotonic()
        jobs = take(store, 2, "quick")
        store.commit([lifecycle.complete(job, None, Retention()) for job in jobs])
        put(store, 1, queue="slow", tenant="x")
        assert len(jobs) == 2
        assert time.monotonic() - began < 5
    assert len(take(another(), 5, "slow")) == 2


def test_a_full_limit_is_not_looked_at_again_at_once(store: PostgresStore) -> None:
    rule(store, "full", limits=(Limit(concurrency=1),))
    put(store, 3, queue="full")
    put(store, 3, queue="other")
    everything = Claim("w", "one", LEASE, 1)
    first = [job for number in range(3) for job in store.claim(everything._replace(lease_id=f"a{number}"))]
    assert Counter(job.queue for job in first) == {"full": 1, "other": 2}
    assert store._turns.narrowed(everything) == (everything._replace(full=frozenset({"full"})), False)
    [held] = [job for job in first if job.queue == "full"]
    store.commit([lifecycle.complete(held, None, Retention())])
    assert store._turns.narrowed(everything) == (everything, True)
    assert [job.queue for job in store.claim(everything)] == ["full"]


def test_waiters_are_called_when_a_place_under_a_limit_is_free(store: PostgresStore, another: Opening) -> None:
    other = another()
    rule(store, limits=(Limit(concurrency=1),))
    put(store, 2)
    [job] = take(store, 1)
    until(lambda: take(other, 1) == [] and other.next_due(["default"]) is None, "the limit to be full")
    until(lambda: not other.wait(["default"], 0.1), "silence")
    store.exchange([lifecycle.complete(job, None, Retention())], Claim("w", "none", LEASE, 0))
    assert other.wait(["default"], 5)
    assert len(take(other, 1)) == 1


def test_full_buckets_are_removed(store: PostgresStore) -> None:
    rule(store, limits=(Limit("tenant", rate=(1_000, SECOND)),))
    put(store, 3, tenant="a")
    take(store, 3)
    until(lambda: store.standing("default").buckets == {}, "a full bucket")
    store._turns._drained = float("-inf")
    store.purge(10)
    with psycopg.connect(store.address.conninfo) as db:
        assert db.execute(f"SELECT count(*) FROM {store.address.schema}.bucket").fetchone() == (0,)


def test_far_from_its_limits_a_queue_is_claimed_from_as_the_long_way_does(store: PostgresStore) -> None:
    """What is counted and what is drawn are the same, and it is known when the limits come near."""
    clock, long_ways = ManualClock(), 0
    with closing(PostgresStore(store.url, clock)) as ours, closing(MemoryStore(clock=clock)) as reference:
        the_long_way = ours._turns.claim

        def counting(*claim: Any) -> Any:
            nonlocal long_ways
            long_ways += 1
            return the_long_way(*claim)

        ours._turns.claim = counting  # type: ignore[assignment, method-assign]
        both: tuple[Store, Store] = (ours, reference)
        for one in both:
            rule(one, limits=(Limit(concurrency=25), Limit(rate=(10, SECOND), burst=30)))
            put(one, 80)
        sizes = (1, 5, 5, 2, 5, 5, 5, 7, 5, 1, 9, 5)
        for number, many in enumerate(sizes):
            held = [take(one, many) for one in both]
            assert len(held[0]) == len(held[1])
            assert ours.standing("default") == reference.standing("default")
            if number % 3 == 2:
                for one, jobs in zip(both, held, strict=True):
                    one.commit([lifecycle.complete(job, None, Retention()) for job in jobs])
            clock.advance(milliseconds=333)
        assert 2 <= long_ways < len(sizes)


@pytest.mark.parametrize("per", ["queue", "tenant"])
def test_claims_that_go_the_short_way_at_once_do_not_pass_a_limit_together(
    per: str, store: PostgresStore, another: Opening
) -> None:
    """Every claim finds room for itself when it begins; there is not room for all."""
    rule(store, limits=(Limit(per, concurrency=100),))
    put(store, 1_500)
    others = [another() for _ in range(4)]
    for one in others:
        first = take(one, 1)
        one.commit([lifecycle.complete(job, None, Retention()) for job in first])
        one._turns.forget()
        first = take(one, 1)
        one.commit([lifecycle.complete(job, None, Retention()) for job in first])
        assert "default" in one._turns._roomy
    most, over = 0, threading.Event()

    def work(one: PostgresStore, held: list[JobRecord]) -> None:
        while not over.is_set():
            moves = [lifecycle.complete(job, None, Retention()) for job in held]
            held[:] = one.exchange(moves, asked(30))[1]

    hands = [(one, list[JobRecord]()) for one in others]
    threads = [threading.Thread(target=work, args=hand) for hand in hands]
    for thread in threads:
        thread.start()
    schema, waiting = store.address.schema, 1
    counts = f"SELECT (SELECT count(*) FROM {schema}.running), (SELECT count(*) FROM {schema}.waiting)"
    with psycopg.connect(store.address.conninfo, autocommit=True) as db:
        while waiting and all(thread.is_alive() for thread in threads):
            ((running, waiting),) = db.execute(counts).fetchall()
            most = max(most, running)
    over.set()
    for thread in threads:
        thread.join()
    assert waiting == 0
    assert 30 <= most <= 100
    assert list(store.check()) == []


def asked(limit: int) -> Claim:
    return Claim("w", os.urandom(8).hex(), LEASE, limit, {"default": limit})


def test_claims_that_go_round_at_once_take_every_job_once_and_no_turn_twice(
    store: PostgresStore, another: Opening
) -> None:
    """Whoever finds the turn moved by another waits for it; in the end every tenant has had as much."""
    tenants, each = 40, 30
    rule(store, order="fair")
    for tenant in range(tenants):
        put(store, each, tenant=f"t{tenant:02}")
    taken: list[str] = []
    lock = threading.Lock()

    def work(one: PostgresStore) -> None:
        moves: list[Move] = []
        while True:
            held = one.exchange(moves, asked(40))[1]
            if not held:
                return
            moves = [lifecycle.complete(job, None, Retention()) for job in held]
            with lock:
                taken.extend(job.tenant for job in held)

    threads = [threading.Thread(target=work, args=(another(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == {f"t{tenant:02}": each for tenant in range(tenants)}
    assert list(store.check()) == []


@pytest.mark.parametrize("order", limits.ORDERS)
def test_a_job_behind_more_closed_lanes_than_a_look_goes_through_is_called_for(
    order: str, store: PostgresStore, another: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ring, ahead):
        monkeypatch.setattr(module, "VISITS", 10)
    monkeypatch.setattr(ring, "WIDE", 5)
    rule(store, order=order, limits=(Limit("key", concurrency=1),))
    for number in range(50):
        put(store, 2, tenant=f"t{number % 2}", group=f"k{number:02}")
    while sum(len(take(store, 20)) for _ in range(10)):
        pass
    leader = another()
    assert not any(leader._callable()[0] for _ in range(12))
    for late in ("a", "k25a", "z"):
        put(store, 1, tenant="t1", group=late)
        assert any(leader._callable()[0] for _ in range(12))
        until(lambda: leader._callable()[0] and take(store, 1), f"the claim of {late}")
