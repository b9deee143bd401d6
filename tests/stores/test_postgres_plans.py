"""The plans of PostgreSQL's hot statements, pinned beside many finished and many waiting jobs (L7).

The statements are caught as the store sends them, and explained in a session with the store's own settings, just before
they are carried out. A plan may read the tables that grow by look-ups only, and the pages it touches may depend on the
number of jobs asked for, never on the number stored.

`HOLDFAST_TEST_ROWS` says how many of each: a million by default.
"""

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import ClientCursor
from psycopg._queries import PostgresQuery, PostgresRawQuery
from psycopg.adapt import Transformer

from holdfast.domain import events, lifecycle, limits
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.limits import Kept, Limit, Rule
from holdfast.domain.moments import HOUR
from holdfast.domain.move import Answer, Event
from holdfast.port.store import Beat, Claim, Page, Query
from holdfast.stores.postgres import PostgresStore, lanes, sql
from holdfast.stores.postgres.address import SETTINGS
from holdfast.stores.postgres.swift import Swift
from tests import postgres, servers

ROWS = int(os.environ.get("HOLDFAST_TEST_ROWS", "1000000"))
BATCH = 100
LEASE = 60_000_000
GROWING = {
    "job",
    "waiting",
    "running",
    "outcome",
    "step",
    "child",
    "signal",
    "attempt",
    "event",
    "outbox",
    "credit_entry",
    "bucket",
}
PAGES_PER_JOB = 15
"""How many pages a statement may touch for each job it is about: some look-ups in some indexes of some levels."""


class Node(NamedTuple):
    """One step of a plan."""

    kind: str
    relation: str
    along: str
    condition: str
    pages: int


_TURNED = re.compile(r"turned AS \(UPDATE \S+ SET lane = (\S+), used = (\S+), share = (\S+) WHERE queue = (\S+)\)")
_UNTURNED = r"turned AS (SELECT CAST(\1 AS text), CAST(\2 AS integer), CAST(\3 AS integer), CAST(\4 AS text))"


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

    def explain(self, statement: str, values: Any, *, numbered: bool) -> None:
        """Explain a statement as it is run: prepared, and planned once for whatever values come."""
        asked = (PostgresRawQuery if numbered else PostgresQuery)(Transformer(self._db))
        asked.convert(statement, values)
        types = [
            self._db.execute("SELECT %s::regtype::text", [oid or 705]).fetchone()[0]  # type: ignore[index]
            for oid in asked.types
        ]
        marks = ", ".join(["%s"] * len(types))
        given = values if numbered else [values[name] for name in dict.fromkeys(asked._order or [])]
        with self._db.transaction(force_rollback=True):
            self._db.execute(f"PREPARE probe ({', '.join(types)}) AS {asked.query.decode()}")
            try:
                plan = self._db.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE probe ({marks})",
                    given,
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
    execute = psycopg.Cursor.execute
    caught: list[tuple[str, Any]] = []

    def spy(cursor: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any) -> Any:
        asked = _TURNED.sub(_UNTURNED, query) if isinstance(query, str) else query  # it holds a lock
        ours = params and cursor.connection is not probe._db
        alone = "within AS (" in asked  # a claim by one statement, which holds no lock before it
        if ours and "pg_notify" not in query and (alone or ".turn SET" not in asked):
            caught.append((query, params))
            probe.explain(asked, params, numbered=isinstance(cursor, psycopg.RawCursor))
        return execute(cursor, query, params, **options)

    probe.seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", spy)
        patch.setattr(Swift, "asked", lambda *_: None)  # what is sent by hand goes the driver's way, and is seen
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
    store._claims.marks._cost, store._claims.marks._looked = 1e9, 0.0
    try:
        with explained(probe) as plans:
            assert held(store)
    finally:
        store._claims.marks._cost = 0.0
    frugal(plans, BATCH)
    waiting = [node for plan in plans for node in plan if node.relation == "waiting" and node.kind != "ModifyTable"]
    assert {node.along for node in waiting if node.kind != "Tid Scan"} == {"waiting_order"}
    assert any("available_at" in node.condition and "job_id" in node.condition for node in waiting)


@pytest.mark.parametrize("part", ["", "alone", "alone_in_queue"])
def test_a_claim_that_was_made_ready_walks_it_as_well(store: PostgresStore, probe: Probe, part: str) -> None:
    values = {"now": None, "limit": 20, "lease_id": "x", "owner": "w", "lease": LEASE, "queue": "q1", "rank": -1}
    probe.explain(sql.statement(store.address.schema, "claim_ready", part), values, numbered=False)
    frugal(probe.seen, 20)
    waiting = [node for node in probe.seen[0] if node.relation == "waiting" and node.kind != "ModifyTable"]
    assert {node.along for node in waiting if node.kind != "Tid Scan"} == {"waiting_order"}
    assert any("queue" in node.condition and "rank" in node.condition for node in waiting)


@contextmanager
def believed_empty(store: PostgresStore) -> Iterator[None]:
    """Have the planner believe that nothing is in the tables, as if they had been looked at in a quiet minute."""
    tables = f"relnamespace = '{store.address.schema}'::regnamespace AND relname IN ('job', 'waiting', 'running')"
    with psycopg.connect(store.address.conninfo, autocommit=True) as db:
        told = db.execute(f"SELECT oid, reltuples FROM pg_class WHERE {tables} AND reltuples >= 0").fetchall()
        db.execute(f"UPDATE pg_class SET reltuples = 0 WHERE {tables}")
        try:
            yield
        finally:
            for oid, rows in told:
                db.execute("UPDATE pg_class SET reltuples = %s WHERE oid = %s", [rows, oid])


@pytest.mark.parametrize("queues", [None, {"q1": BATCH}, {"q0": BATCH, "q1": BATCH, "gone": 5}])
def test_what_was_planned_when_nothing_waited_does_for_a_backlog(
    store: PostgresStore, probe: Probe, queues: dict[str, int] | None
) -> None:
    with believed_empty(store), explained(probe) as plans:
        claims = [store.claim(Claim("w", os.urandom(8).hex(), LEASE, BATCH, queues)) for _ in range(2)]
        jobs = claims[1]
        moves = [lifecycle.complete(job, None, Retention()) for job in jobs]
        assert store.commit(moves) == [Answer.OK] * BATCH
        store.next_due(None if queues is None else list(queues))
        store.expired(BATCH)
    frugal(plans, BATCH)


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


def test_checkpoints_look_their_jobs_and_steps_up(store: PostgresStore, probe: Probe) -> None:
    jobs = held(store)
    moves = [lifecycle.checkpoint(job, "one", "1") for job in jobs]
    with explained(probe) as plans:
        assert set(store.commit(moves)) == {Answer.OK}
        assert len(plans) == 1, "a batch is one statement"
        assert set(store.commit(moves)) == {Answer.OK}, "on record already"
    frugal(plans, BATCH)
    told = [move._replace(events=(Event(f"{move.id}.two", events.STEP, "{}"),), step="two") for move in moves]
    with explained(probe) as plans:
        assert set(store.commit(told)) == {Answer.OK}
        assert len(plans) == 1
    frugal(plans, BATCH)


def test_children_and_signals_are_looked_up(store: PostgresStore, probe: Probe) -> None:
    parents = held(store, 5)
    children = [f"01920000-0000-7000-8000-{os.urandom(6).hex()}" for _ in parents]
    moves = [
        lifecycle.suspend(job, "~wait", None, awaits="go", children=((id_, NewJob("noop", "{}", parent=job.id)),))
        for job, id_ in zip(parents, children, strict=True)
    ]
    assert store.commit(moves) == [Answer.OK] * 5
    with explained(probe) as plans:
        waiting = [job for job in store.read([job.id for job in parents]) if job]
        assert store.commit([lifecycle.signal(job, "s", "go", None) for job in waiting]) == [Answer.OK] * 5
        assert store.open_children([job.id for job in parents]) == {job.id for job in parents}
        assert [job.id for job in store.find(Query(parent=parents[0].id))] == children[:1]
        assert len(store.signals(parents[0].id)) == 1
    frugal(plans, 5)


def test_events_are_looked_up_by_their_positions(store: PostgresStore, probe: Probe) -> None:
    jobs = held(store, 50)
    store.commit([events.told(job, lifecycle.complete(job, None, Retention()), public=True) for job in jobs])
    position = store.events(0, 1_000)[-1].position
    with explained(probe) as plans:
        assert len(store.events(position - 10, 5)) == 5
        assert store.trim(5) == 5
    frugal(plans, 5)


def test_upkeep_looks_at_what_is_due_and_no_further(store: PostgresStore, probe: Probe) -> None:
    held(store)
    with explained(probe) as plans:
        store.expired(BATCH)
        store.unsubmitted(0, BATCH)
        assert store.purge(BATCH).jobs == BATCH
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


LANES = 10_000
MOVED = 2 * lanes.BATCH
"""A job that is moved leaves one place and comes to another, and so many are moved at the most."""


@pytest.fixture(scope="module")
def fair(postgres_server: str) -> Iterator[PostgresStore]:
    """A queue of many lanes, and one in which as many jobs have not been lined up."""
    url = postgres.schema_of(postgres_server)
    servers.seed(url, waiting=ROWS, queues=2, priorities=3)
    with closing(PostgresStore(url)) as store:
        ruled(store, Rule("q0", order="fair"))
        assert store.claim(Claim("w", "first", LEASE, 1, {"q0": 1}))
        with psycopg.connect(store.address.conninfo, autocommit=True) as db:
            db.execute(f"SET search_path = {store.address.schema}; SET session_replication_role = replica")
            db.execute(f"UPDATE job SET tenant = 'tenant-' || mod(due_at, {LANES})")
            db.execute(
                "UPDATE waiting SET queue = 'q0' || chr(31) || 't' || job.tenant, past = ROW('queued', 1, 1, 0, 0, 0, "
                "NULL, NULL, NULL, NULL, NULL, job.created_at, NULL, NULL, NULL, 0)::past "
                "FROM job WHERE job.id = waiting.job_id AND job.queue = 'q0'"
            )
            db.execute("VACUUM ANALYZE job, waiting")
        assert list(store.check()) == []
        yield store
    postgres.drop(url)


def ruled(store: PostgresStore, rule: Rule) -> None:
    name = limits.page_name("queue", rule.queue)
    found = store.page(limits.BOOK, name)
    assert store.write_page(Page(limits.BOOK, name, limits.encoded(Kept(rule))), found and found.version)


def moving(plans: list[list[Node]]) -> None:
    """Assert that plans move and look up no more than they may.

    Once a second what runs is looked at as a whole, for jobs that somebody claimed who did not know the rule.
    """
    whole = [plan for plan in plans if any(node.kind == "Seq Scan" and node.relation == "running" for node in plan)]
    assert len(whole) <= 1
    frugal([plan for plan in plans if plan not in whole], MOVED)


def test_a_fair_claim_leaps_from_lane_to_lane(fair: PostgresStore) -> None:
    ruled(fair, Rule("q0", order="fair"))
    with closing(Probe(fair.url)) as probe, explained(probe) as plans:
        claimed = [fair.claim(Claim("w", os.urandom(8).hex(), LEASE, BATCH, {"q0": BATCH})) for _ in range(3)]
        assert [len({job.tenant for job in jobs}) for jobs in claimed] == [BATCH] * 3
    frugal(plans, 2 * BATCH)  # one statement looks at the lanes, and takes the jobs
    waiting = [node for plan in plans for node in plan if node.relation == "waiting" and node.kind != "ModifyTable"]
    assert {node.along for node in waiting if node.kind != "Tid Scan"} <= {"waiting_order", "waiting_touched"}


@pytest.mark.parametrize("per", ["queue", "tenant", "key"])
def test_a_claim_under_limits_looks_up_what_is_in_use(fair: PostgresStore, per: str) -> None:
    asked = (Limit(per, rate=(10_000, HOUR), burst=10_000), Limit(per, concurrency=10_000))
    ruled(fair, Rule("q0", limits=asked))
    while len(fair.claim(Claim("w", os.urandom(8).hex(), LEASE, BATCH, {"q0": BATCH}))) < BATCH:
        pass  # they are lined up anew
    with closing(Probe(fair.url)) as probe, explained(probe) as plans:
        assert len(fair.claim(Claim("w", os.urandom(8).hex(), LEASE, BATCH, {"q0": BATCH}))) == BATCH
        assert fair.next_due(["q0"]) is not None
    moving(plans)
    assert "running_lane" in {node.along for plan in plans for node in plan if "lane" in node.condition}


def test_jobs_are_lined_up_and_taken_back_so_many_at_a_time(fair: PostgresStore) -> None:
    for rule in (Rule("q1", order="fair"), Rule("q1", limits=(Limit("key", concurrency=5),)), Rule("q1")):
        ruled(fair, rule)
        with closing(Probe(fair.url)) as probe, explained(probe) as plans:
            assert fair.claim(Claim("w", os.urandom(8).hex(), LEASE, 5, {"q1": 5}))
        moving(plans)
    assert list(fair.check()) == []


def test_paused_jobs_are_put_aside_so_many_at_a_time(fair: PostgresStore) -> None:
    page = Page(limits.BOOK, limits.page_name("kind", "noop"), "{}")
    assert fair.write_page(page, None)
    try:
        with closing(Probe(fair.url)) as probe, explained(probe) as plans:
            assert fair.claim(Claim("w", os.urandom(8).hex(), LEASE, 5, {"q1": 5})) == []
        moving(plans)
    finally:
        fair.remove_page(page.book, page.name)
