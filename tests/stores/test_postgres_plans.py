"""The plans of PostgreSQL's hot statements, pinned beside many finished and many waiting jobs (L7).

The statements are caught as the store sends them, and explained in a session with the store's own settings, just before
they are carried out. A plan may read the tables that grow by look-ups only, and the pages it touches may depend on the
number of jobs asked for, never on the number stored.

`HOLDFAST_TEST_ROWS` says how many of each: 100,000 by default, so that the tests stay quick; a million in CI.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import ClientCursor
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State
from holdfast.port.store import Beat, Claim, Query
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.address import SETTINGS
from tests import postgres, servers

ROWS = int(os.environ.get("HOLDFAST_TEST_ROWS", "100000"))
BATCH = 100
LEASE = 60_000_000
GROWING = {"job", "waiting", "running", "outcome"}
PAGES_PER_JOB = 15
"""How many pages a statement may touch for each job it is about: some look-ups in some indexes of some levels."""


class Node(NamedTuple):
    """One step of a plan."""

    kind: str
    relation: str
    along: str
    condition: str
    pages: int


class Probe:
    """Explains what the store sends, in a session of the same settings, and undoes it."""

    def __init__(self, url: str) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        self._db = psycopg.connect(
            url.partition("?schema=")[0].partition("&schema=")[0],
            options=options,
            autocommit=True,
            cursor_factory=ClientCursor,
        )
        self.seen: list[list[Node]] = []

    def explain(self, statement: str, values: Any) -> None:
        """Explain a statement as it is run: prepared, and planned once for whatever values come."""
        asked = PostgresQuery(Transformer(self._db))
        asked.convert(statement, values)
        types = [
            self._db.execute("SELECT %s::regtype::text", [oid or 705]).fetchone()[0]  # type: ignore[index]
            for oid in asked.types
        ]
        marks = ", ".join(["%s"] * len(types))
        names = list(dict.fromkeys(asked._order or []))
        with self._db.transaction(force_rollback=True):
            self._db.execute(f"PREPARE probe ({', '.join(types)}) AS {asked.query.decode()}")
            try:
                plan = self._db.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE probe ({marks})",
                    [values[name] for name in names],
                ).fetchone()[0]  # type: ignore[index]
            finally:
                self._db.execute("DEALLOCATE probe")
        self.seen.append(list(_walk(plan[0]["Plan"])))

    def close(self) -> None:
        self._db.close()


def _pages(plan: dict[str, Any]) -> int:
    return int(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0))


def _walk(plan: dict[str, Any]) -> Iterator[Node]:
    below = plan.get("Plans", [])
    pages = _pages(plan) - sum(map(_pages, below)) if plan.get("Relation Name") else 0
    yield Node(
        plan["Node Type"],
        plan.get("Relation Name", ""),
        plan.get("Index Name", ""),
        plan.get("Index Cond", "") or plan.get("TID Cond", ""),
        pages,
    )
    for part in below:
        yield from _walk(part)


@pytest.fixture(scope="module")
def store(postgres_server: str) -> Iterator[PostgresStore]:
    url = postgres.schema_of(postgres_server)
    servers.seed(url, waiting=ROWS, finished=ROWS, queues=4, priorities=3)
    with closing(PostgresStore(url)) as store:
        assert list(store.check()) == []
        yield store
    postgres.drop(url)


@pytest.fixture
def probe(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    probe = Probe(store.url)
    yield probe
    probe.close()


@contextmanager
def explained(probe: Probe) -> Iterator[list[list[Node]]]:
    """Catch every statement with parameters that is sent meanwhile, and explain it before it is carried out."""
    execute = psycopg.Connection.execute
    caught: list[tuple[str, Any]] = []

    def spy(db: psycopg.Connection[Any], query: Any, params: Any = None, **options: Any) -> Any:
        if params and db is not probe._db and "pg_notify" not in query:
            caught.append((query, params))
            probe.explain(query, params)
        return execute(db, query, params, **options)

    probe.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", spy)
        yield probe.seen
    assert caught, "nothing was sent"


def frugal(plans: list[list[Node]], jobs: int) -> None:
    """Assert that plans look jobs up, and how many pages they touch."""
    for plan in plans:
        scans = [node for node in plan if node.relation in GROWING and node.kind != "ModifyTable"]
        assert [node for node in scans if node.kind == "Seq Scan"] == []
        assert sum(node.pages for node in plan) <= PAGES_PER_JOB * jobs + 500, plan


def held(store: PostgresStore, limit: int = BATCH) -> list[JobRecord]:
    return store.claim(Claim("w", os.urandom(8).hex(), LEASE, limit))


@pytest.mark.parametrize("queues", [None, {"q1": BATCH}, {"q0": BATCH, "q1": BATCH, "gone": 5}])
def test_a_claim_walks_the_index_that_has_its_order(
    store: PostgresStore, probe: Probe, queues: dict[str, int] | None
) -> None:
    with explained(probe) as plans:
        assert len(store.claim(Claim("w", os.urandom(8).hex(), LEASE, BATCH, queues))) == BATCH
    frugal(plans, BATCH)
    waiting = [node for plan in plans for node in plan if node.relation == "waiting" and node.kind != "ModifyTable"]
    assert {node.along for node in waiting if node.kind != "Tid Scan"} == {"waiting_order"}
    assert any("queue" in node.condition and "rank" in node.condition for node in waiting)


def test_a_claim_from_the_marks_walks_it_too(store: PostgresStore, probe: Probe) -> None:
    held(store)
    store._marks._cost, store._marks._looked = 1e9, 0.0
    try:
        with explained(probe) as plans:
            assert held(store)
    finally:
        store._marks._cost = 0.0
    frugal(plans, BATCH)
    waiting = [node for plan in plans for node in plan if node.relation == "waiting" and node.kind != "ModifyTable"]
    assert {node.along for node in waiting if node.kind != "Tid Scan"} == {"waiting_order"}
    assert any("available_at" in node.condition and "job_id" in node.condition for node in waiting)


def test_a_claim_of_one_job_looks_it_up(store: PostgresStore, probe: Probe) -> None:
    with explained(probe) as plans:
        assert store.claim(Claim("w", "one", LEASE, 1, id=f"01900000-0000-7000-8000-{ROWS:012x}"))
    frugal(plans, 1)


def test_completions_and_every_other_ending_look_their_jobs_up(store: PostgresStore, probe: Probe) -> None:
    jobs = held(store)
    with explained(probe) as plans:
        store.exchange([lifecycle.complete(job, None, Retention()) for job in jobs], Claim("w", "x", LEASE, 10))
        store.commit([lifecycle.release(job) for job in held(store, 10)])
    frugal(plans, BATCH)
    failure = Failure("no", "no", retryable=False)
    with explained(probe) as plans:
        store.commit([lifecycle.fail(job, failure, draw=0, retention=Retention()) for job in held(store, 10)])
    frugal(plans, 10)


def test_heartbeats_reads_and_enqueues_look_their_jobs_up(store: PostgresStore, probe: Probe) -> None:
    jobs = held(store)
    beats = [Beat(job.id, job.token, job.lease_id or "", True) for job in jobs]
    with explained(probe) as plans:
        store.heartbeat(beats, LEASE)
        store.read([job.id for job in jobs])
        store.insert([[(f"01910000-0000-7000-8000-{os.urandom(6).hex()}", NewJob("noop", "{}")) for _ in range(BATCH)]])
        store.attempts(jobs[0].id)
        store.steps(jobs[0].id)
    frugal(plans, BATCH)


def test_upkeep_looks_at_what_is_due_and_no_further(store: PostgresStore, probe: Probe) -> None:
    held(store)
    with explained(probe) as plans:
        store.expired(BATCH)
        store.unsubmitted(0, BATCH)
        assert store.purge(BATCH) == BATCH
    frugal(plans, BATCH)


def test_the_next_due_job_and_the_queues_to_call_are_found_by_leaps(store: PostgresStore, probe: Probe) -> None:
    with explained(probe) as plans:
        store.next_due(None)
        store.next_due(["q1", "q2", "gone"])
        store._callable()
    frugal(plans, 20)


@pytest.mark.parametrize("state", [None, State.QUEUED, State.RETRYING, State.RUNNING, State.SUCCEEDED, State.DEAD])
def test_listings_by_state_pass_over_what_waits_at_the_most(
    store: PostgresStore, probe: Probe, state: State | None
) -> None:
    """People look at lists, so once over the waiting rows is allowed; what is finished costs nothing but itself."""
    with explained(probe) as plans:
        found = store.find(Query(state, limit=BATCH))
        store.find(Query(state, limit=BATCH, before=found[-1].id if found else None))
    for plan in plans:
        assert sum(node.pages for node in plan) <= PAGES_PER_JOB * BATCH + 500 + ROWS // 25, plan
