"""Flow control on a file, at sizes where it matters what a claim looks at."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.domain import lifecycle, limits
from holdfast.domain.ids import Ids
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import MINUTE
from holdfast.domain.way import AT_ONCE
from holdfast.port.store import Claim, Page
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.lines import BATCH
from holdfast.testing.clock import ManualClock


class Bench:
    """A file, with short ways to fill and to empty it."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.url = f"sqlite:///{path}/jobs.db"
        self.store = SqliteStore(self.url, self.clock)
        self.ids = Ids(lambda: self.clock.now() // 1000, lambda bits: (1 << bits) - 1)
        self.numbers = iter(range(10**6))

    def rule(self, queue: str = "default", **fields: object) -> None:
        name = limits.page_name("queue", queue)
        found = self.store.page(limits.BOOK, name)
        body = limits.encoded(Kept(Rule(queue)._replace(**fields)))  # type: ignore[arg-type]
        assert self.store.write_page(Page(limits.BOOK, name, body), found and found.version)

    def fill(self, jobs: int, **fields: object) -> None:
        self.clock.advance(milliseconds=1)
        new = NewJob("echo", "{}")._replace(**fields)  # type: ignore[arg-type]
        self.store.insert([[(id_, new) for id_ in self.ids.take(jobs)]])

    def claim(self, most: int, store: SqliteStore | None = None) -> list[JobRecord]:
        want = Claim("w", f"lease-{next(self.numbers)}", MINUTE, most, {"default": most})
        return (store or self.store).claim(want)

    def finish(self, jobs: list[JobRecord]) -> None:
        self.store.commit([lifecycle.complete(job, None, Retention()) for job in jobs])

    def ready(self) -> Counter[int]:
        """Count waiting jobs by where they stand."""
        with self.store.file.read() as db:
            return Counter(dict(db.execute("SELECT ready, count(*) FROM job WHERE ready IS NOT NULL GROUP BY ready")))

    @contextmanager
    def listening(self) -> Iterator[list[str]]:
        """Write down every statement that the file is asked."""
        asked: list[str] = []

        def note(_cursor: object, sql: str, _values: object) -> bool:
            asked.append(sql)
            return True

        self.store.file.writer.set_exec_trace(note)
        yield asked
        self.store.file.writer.set_exec_trace(None)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.store.close()


def test_weights_are_kept_to_over_thousands_of_claims(bench: Bench) -> None:
    bench.rule(order="fair", weights={"a": 3, "b": 2})
    for tenant in "abc":
        bench.fill(4_000, tenant=tenant)
    served: Counter[str] = Counter()
    for size in (1, 7, 20, 100) * 47:
        claimed = bench.claim(min(size, 6_000 - served.total()))
        served.update(job.tenant for job in claimed)
        bench.finish(claimed)
    a_round = 6 * (100 // AT_ONCE)
    assert all(abs(served[tenant] - share) < a_round for tenant, share in (("a", 3_000), ("b", 2_000), ("c", 1_000)))


def test_a_crowd_does_not_keep_small_tenants_waiting(bench: Bench) -> None:
    bench.rule(order="fair")
    bench.fill(20_000, tenant="crowd", priority=9)
    for number in range(99):
        bench.fill(10, tenant=f"t{number:02}")
    left, claims = Counter({f"t{number:02}": 10 for number in range(99)}), 0
    while left.total():
        claimed = bench.claim(50)
        left.subtract(job.tenant for job in claimed if job.tenant != "crowd")
        claims += len(claimed)
        bench.finish(claimed)
    assert claims <= 2 * 990


def test_a_late_tenant_is_served_at_once_though_others_brought_more_than_a_claim_lines_up(bench: Bench) -> None:
    bench.rule(order="fair")
    bench.fill(3 * BATCH, tenant="crowd")
    bench.claim(1)
    bench.fill(1, tenant="late")
    assert "late" in {job.tenant for job in bench.claim(2)}


def test_a_rule_over_a_backlog_takes_hold_step_by_step_and_loses_nothing(bench: Bench) -> None:
    bench.fill(3 * BATCH, tenant="crowd")
    bench.rule(order="fair")
    bench.claim(1)
    assert bench.ready() == {1: 2 * BATCH, 2: BATCH - 1}
    bench.claim(1)
    bench.rule()
    for _ in range(4):
        assert len(bench.claim(1)) == 1
    assert set(bench.ready()) == {1}
    assert list(bench.store.check()) == []


def test_what_is_paused_does_not_stand_in_the_way(bench: Bench) -> None:
    bench.fill(2 * BATCH, tenant="paused", priority=9)
    bench.fill(3, tenant="free")
    page = Page(limits.BOOK, limits.page_name("tenant", "paused"), "{}")
    assert bench.store.write_page(page, None)
    claimed: list[JobRecord] = []
    for _ in range(BATCH):
        claimed += bench.claim(3)
        if len(claimed) == 3:
            break
    assert {job.tenant for job in claimed} == {"free"}
    aside = bench.ready()[3]
    assert aside >= BATCH
    bench.fill(1, tenant="free")
    assert len(bench.claim(1)) == 1
    assert bench.store.remove_page(limits.BOOK, limits.page_name("tenant", "paused"))
    assert len(bench.claim(10)) == 10
    bench.claim(1)
    assert 3 not in bench.ready()


def test_a_full_limit_is_not_looked_at_again_until_something_has_changed(bench: Bench) -> None:
    bench.rule(limits=(Limit("tenant", concurrency=1),))
    for number in range(50):
        bench.fill(20, tenant=f"t{number:02}")
    running = bench.claim(100)
    assert len(running) == 50
    assert bench.claim(100) == []
    with bench.listening() as asked:
        assert bench.claim(100) == []
    assert not any("WITH RECURSIVE ring" in sql for sql in asked)
    bench.finish(running[:1])
    assert len(bench.claim(100)) == 1
    bench.fill(1, tenant="new")
    assert [job.tenant for job in bench.claim(100)] == ["new"]


def test_another_process_that_ends_a_job_opens_the_gate_here(bench: Bench) -> None:
    bench.rule(limits=(Limit("tenant", concurrency=1),))
    other = SqliteStore(bench.url, bench.clock)
    bench.fill(3, tenant="a")
    [running] = bench.claim(9)
    assert bench.claim(9, other) == []
    bench.finish([running])
    assert len(bench.claim(9, other)) == 1
    assert bench.claim(9) == []
    other.close()


def test_plain_queues_are_asked_nothing_more_than_without_rules(bench: Bench) -> None:
    def statements() -> list[str]:
        with bench.listening() as asked:
            assert len(bench.claim(2)) == 2
        return asked

    bench.fill(20)
    before = statements()
    bench.rule("other", order="fair")
    bench.claim(2)
    assert statements() == before
