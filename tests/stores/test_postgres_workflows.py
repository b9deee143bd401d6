"""Workflows, credits and events where PostgreSQL could go wrong by itself: batches, transactions, commits out of order.

What every store must do is in the conformance suite; here is what only this one has.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, InsufficientCredits, JobFunction
from holdfast.domain import events, lifecycle
from holdfast.domain.ids import Ids
from holdfast.domain.job import Account, JobRecord, NewJob, Retention, State
from holdfast.domain.move import Answer, Move, Verb
from holdfast.port.store import Beat, Claim
from holdfast.stores.postgres import PostgresStore, address, schema
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.postgres.settlement import Settlement
from tests.stores.callers import KINDS, Kind

LEASE = 60_000_000
RETENTION = Retention()
Add = JobFunction[[int], int]


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store
        assert list(store.check()) == []


@pytest.fixture
def db(postgres_server: str, store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody else, which finds the store's tables by their bare names."""
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f"SET search_path = {store.address.schema}")
        yield db


def running(store: PostgresStore, number: int, **options: Any) -> list[JobRecord]:
    ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8)
    store.insert([[(id_, NewJob("noop", "{}", **options)) for id_ in ids.take(number)]])
    return claimed(store, number)


def claimed(store: PostgresStore, number: int) -> list[JobRecord]:
    jobs = store.claim(Claim("somebody", os.urandom(8).hex(), LEASE, number))
    assert len(jobs) == number
    return sorted(jobs, key=lambda job: job.id)


def steps_of(store: PostgresStore, job: JobRecord) -> list[tuple[str, str | None]]:
    return [(step.name, step.result) for step in store.steps(job.id)]


def standing(store: PostgresStore, job: JobRecord) -> JobRecord:
    (found,) = store.read([job.id])
    assert found is not None
    return found


def test_a_batch_of_checkpoints_records_those_whose_guards_hold(store: PostgresStore) -> None:
    fine, again, cancelled, lost, _, note, undoable = jobs = running(store, 7)
    store.commit([lifecycle.checkpoint(again, "one", '"first"')])
    store.commit([lifecycle.cancel(cancelled, RETENTION), lifecycle.release(lost)])
    moves = [lifecycle.checkpoint(job, "one", '"now"') for job in jobs]
    moves[4] = moves[4]._replace(result="\x00")
    moves[5] = lifecycle.note(note, "~beside", "1")
    moves[6] = lifecycle.checkpoint(undoable, "one", '"now"', undoable=True)
    assert store.commit(moves) == [
        Answer.OK,
        Answer.OK,
        Answer.CANCEL_REQUESTED,
        Answer.ALREADY_CLAIMED,
        Answer.UNWRITABLE,
        Answer.OK,
        Answer.OK,
    ]
    told = [(standing(store, job).version, standing(store, job).step_cursor, steps_of(store, job)) for job in jobs]
    assert told == [
        (3, 1, [("one", '"now"')]),
        (3, 1, [("one", '"first"')]),
        (3, 0, []),
        (3, 0, []),
        (2, 0, []),
        (3, 0, [("~beside", "1")]),
        (3, 1, [("one", '"now"')]),
    ]
    assert standing(store, fine).flow is None
    assert standing(store, undoable).flow is not None


def test_the_steps_of_one_job_in_one_batch_keep_their_order(store: PostgresStore) -> None:
    one, other = running(store, 2)
    names = [f"step {n}" for n in range(12, 0, -1)]
    moves = [lifecycle.checkpoint(job, name, None) for name in names for job in (one, other)]
    assert store.commit(moves) == [Answer.OK] * 24
    for job in (one, other):
        assert [step.name for step in store.steps(job.id)] == names
        assert standing(store, job).step_cursor == 12


def test_the_same_checkpoint_sent_twice_at_once_counts_once(store: PostgresStore) -> None:
    """As when a worker asks again while its first call is still on the way."""
    for _ in range(20):
        jobs = running(store, 5)
        moves = [lifecycle.checkpoint(job, "one", "1") for job in jobs]
        gate = threading.Barrier(4)

        def send(moves: list[Move] = moves, gate: threading.Barrier = gate) -> list[Answer]:
            gate.wait()
            return store.commit(moves)

        with ThreadPoolExecutor(4) as crew:
            answers = [each.result() for each in [crew.submit(send) for _ in range(4)]]
        assert answers == [[Answer.OK] * 5] * 4
        assert [(job.version, job.step_cursor) for job in (standing(store, job) for job in jobs)] == [(3, 1)] * 5


def test_an_event_that_becomes_visible_later_has_a_later_position(store: PostgresStore, postgres_server: str) -> None:
    """Though it was written, and got its number, before the other."""
    slow, quick = running(store, 2)
    late, early = (events.told(job, lifecycle.complete(job, None, RETENTION), public=True) for job in (slow, quick))
    with psycopg.connect(postgres_server) as other:
        assert Settlement(other, store.address.schema, None).settle([late]) == [Answer.OK]
        assert store.commit([early]) == [Answer.OK]
        seen = store.events(0, 100)
        assert {event.job_id for event in seen} == {quick.id}
        other.commit()
    rest = store.events(seen[-1].position, 100)
    assert [(event.job_id, event.name) for event in rest] == [
        (slow.id, lifecycle.STARTED),
        (slow.id, events.COMPLETED),
    ]
    assert [event.position for event in store.events(0, 100)] == [1, 2, 3, 4]


def test_many_listeners_beside_many_writers_see_every_event_once_and_in_one_order(store: PostgresStore) -> None:
    jobs = running(store, 60)
    done = threading.Event()

    def write(part: list[JobRecord]) -> None:
        for number in range(5):
            moves = [events.told(job, lifecycle.note(job, f"step {number}", None), public=True) for job in part]
            assert set(store.commit(moves)) == {Answer.OK}

    def listen() -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        last = False
        while not last:
            last = done.is_set()
            while news := store.events(seen[-1][0] if seen else 0, 7):
                seen += [(event.position, event.id) for event in news]
        return seen

    with ThreadPoolExecutor(6) as crew:
        listening = [crew.submit(listen) for _ in range(3)]
        try:
            for each in [crew.submit(write, jobs[start::3]) for start in range(3)]:
                each.result()
        finally:
            done.set()
        heard = [each.result() for each in listening]
    assert heard[0] == heard[1] == heard[2]
    assert [position for position, _ in heard[0]] == list(range(1, len(heard[0]) + 1))
    steps = [id_ for _, id_ in heard[0] if id_.endswith(events.STEP)]
    assert len(set(steps)) == len(steps) == 300
    for job in jobs:
        mine = [id_ for id_ in steps if id_.startswith(job.id)]
        assert mine == sorted(mine), "in order for each job"


def test_completions_with_events_make_one_trip_with_the_claim(store: PostgresStore) -> None:
    jobs = running(store, 3)
    moves = [events.told(job, lifecycle.complete(job, '"done"', RETENTION), public=True) for job in jobs[:2]]
    moves.append(lifecycle.complete(jobs[2]._replace(lease_id="another's"), None, RETENTION))
    answers, _ = store.exchange(moves, Claim("somebody", "next", LEASE, 5))
    assert answers == [Answer.OK, Answer.OK, Answer.ALREADY_CLAIMED]
    assert {event.job_id for event in store.events(0, 100)} == {job.id for job in jobs[:2]}
    assert [standing(store, job).state for job in jobs] == [State.SUCCEEDED, State.SUCCEEDED, State.RUNNING]


def test_batches_that_spend_beside_each_other_and_beside_heartbeats_are_exact(store: PostgresStore) -> None:
    """Several tenants in every batch, in whatever order; nothing is waited for in a circle, and nothing overspent."""
    for tenant in ("a", "b", "c"):
        store.grant(tenant, 90, "first")
    jobs = [job for tenant in ("a", "b", "c") for job in running(store, 8, tenant=tenant, credits=2)]
    stop = threading.Event()

    def spend(number: int) -> int:
        paid = 0
        mine = jobs[number::3] if number % 2 else jobs[number::3][::-1]
        for step in range(12):
            answers = store.commit([lifecycle.checkpoint(job, f"{number} {step}", None, spend=1) for job in mine])
            assert set(answers) <= {Answer.OK, Answer.UNPAID}
            paid += answers.count(Answer.OK)
        return paid

    def beat() -> None:
        beats = [Beat(job.id, job.token, job.lease_id or "", True) for job in jobs]
        while not stop.is_set():
            assert set(store.heartbeat(beats, LEASE)) == {Answer.OK}

    def audit() -> None:
        while not stop.is_set():
            assert all(account.available >= 0 for account in store.accounts())

    with ThreadPoolExecutor(5) as crew:
        beside = [crew.submit(beat), crew.submit(audit)]
        try:
            paid = sum(crew.map(spend, range(3)))
        finally:
            stop.set()
        for each in beside:
            each.result()
    assert sum(account.spent for account in store.accounts()) == paid
    assert sum(account.spent + account.reserved for account in store.accounts()) == 270
    assert list(store.check()) == []
    ended = [lifecycle.complete(job, None, RETENTION) for job in store.read([job.id for job in jobs]) if job]
    assert set(store.commit(ended)) == {Answer.OK}
    assert {account.reserved for account in store.accounts()} == {0}


def test_a_spend_that_is_refused_leaves_the_rest_of_its_batch(store: PostgresStore) -> None:
    store.grant("t", 5, "first")
    jobs = running(store, 3, tenant="t")
    answers = store.commit(
        [lifecycle.checkpoint(job, "one", None, spend=n) for job, n in zip(jobs, (4, 3, 1), strict=True)]
    )
    assert answers == [Answer.OK, Answer.UNPAID, Answer.OK]
    assert store.account("t") == Account("t", 5, 0, 5)
    assert [steps_of(store, job) for job in jobs] == [[("one", None)], [], [("one", None)]]


def in_a_block(store: PostgresStore, statement: str, move: Move) -> Answer:
    transaction = store.transaction()
    with transaction as db:
        db.execute(statement)
    return transaction.settle(move)


def in_an_awaited_block(store: PostgresStore, statement: str, move: Move) -> Answer:
    async def work() -> Answer:
        transaction = store.transaction()
        async with transaction as db:
            await db.execute(statement)
        return await transaction.asettle(move)

    return asyncio.run(work())


@pytest.mark.parametrize("settled", [in_a_block, in_an_awaited_block])
def test_a_handlers_transaction_takes_credits_and_events_along(
    store: PostgresStore, db: psycopg.Connection[Any], settled: Callable[[PostgresStore, str, Move], Answer]
) -> None:
    db.execute("CREATE TABLE effect (n integer)")
    store.grant("t", 10, "first")
    paid, unpaid, told, lost = running(store, 4, tenant="t", credits=2)

    def write(n: int) -> str:
        return f"INSERT INTO {store.address.schema}.effect VALUES ({n})"

    cost = events.told(paid, lifecycle.complete(paid, "1", RETENTION, spend=3), public=True)
    assert settled(store, write(1), cost) is Answer.OK
    assert settled(store, write(2), lifecycle.complete(unpaid, "1", RETENTION, spend=9)) is Answer.UNPAID
    free = events.told(told, lifecycle.complete(told._replace(flow=None), "1", RETENTION), public=True)
    assert settled(store, write(3), free) is Answer.OK, "the store knows of the credits, if its holder does not"
    stolen = lifecycle.complete(lost._replace(lease_id="another's"), "1", RETENTION)
    assert settled(store, write(4), stolen) is Answer.ALREADY_CLAIMED
    assert db.execute("SELECT n FROM effect ORDER BY n").fetchall() == [(1,), (3,)]
    assert store.account("t") == Account("t", 10, 4, 3)
    assert {event.job_id for event in store.events(0, 100)} == {paid.id, told.id}
    assert [standing(store, job).state.value for job in (paid, unpaid, told, lost)] == [
        "succeeded",
        "running",
        "succeeded",
        "running",
    ]


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url)) as opened:
        yield opened
        assert list(opened.store.check()) == []


@pytest.fixture
def add(app: Holdfast) -> Add:
    @app.job
    def add(n: int) -> int:
        return n + 1

    return add


every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@every_kind
def test_credits_are_set_aside_once_the_caller_commits(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    app.store.grant("t", 5, "first")
    with kind(postgres_server) as caller:
        caller.enqueue(add.using(tenant="t", credits=3), 1)
        assert app.store.account("t") == Account("t", 5, 0, 0)
        caller.commit()
    assert app.store.account("t") == Account("t", 5, 3, 0)
    with kind(postgres_server) as caller:
        caller.enqueue(add.using(tenant="t", credits=2), 1)
        caller.rollback()
    assert app.store.account("t") == Account("t", 5, 3, 0)


@every_kind
def test_too_few_credits_leave_neither_job_nor_key_and_the_transaction_goes_on(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    app.store.grant("t", 5, "first")
    with kind(postgres_server) as caller:
        before = caller.enqueue(add, 1)
        with pytest.raises(InsufficientCredits):
            caller.enqueue(add.using(tenant="t", credits=6, key="k"), 1)
        after = caller.enqueue(add.using(tenant="t", credits=5, key="k"), 1)
        caller.commit()
    assert {job.id for job in app.find()} == {before.id, after.id}
    assert app.store.account("t") == Account("t", 5, 5, 0)


@every_kind
def test_a_key_that_was_unique_while_active_is_taken_over(
    app: Holdfast, add: Add, postgres_server: str, kind: Kind
) -> None:
    unique = add.using(key="k", unique="active")
    first = unique.enqueue(1)
    with kind(postgres_server) as caller:
        assert caller.enqueue(unique, 1).id == first.id
        caller.commit()
    app.cancel(first.id)
    with kind(postgres_server) as caller:
        second = caller.enqueue(unique, 2)
        assert second.id != first.id
        assert caller.enqueue(unique, 2).id == second.id
        caller.commit()
    assert unique.enqueue(2).id == second.id


def test_what_is_wrong_with_an_account_is_found(store: PostgresStore, db: psycopg.Connection[Any]) -> None:
    store.grant("t", 10, "first")
    store.grant("sound", 10, "first")
    (job,) = running(store, 1, tenant="t", credits=4)
    running(store, 1, tenant="sound", credits=4)

    def said() -> list[str]:
        return [f"{finding.promise} {finding.text}" for finding in store.check()]

    unsound = "S28 The account of tenant 't' is not the sum of its entries."
    assert said() == []
    db.execute("UPDATE credit_account SET reserved = 3 WHERE tenant = 't'")
    assert said() == ["S28 The account of tenant 't' says 3 credits are reserved; its jobs say 4.", unsound]
    db.execute("UPDATE credit_account SET reserved = 4, spent = 1 WHERE tenant = 't'")
    assert said() == [unsound]
    db.execute("UPDATE credit_account SET spent = 0 WHERE tenant = 't'")
    for change in ("spent = 7", "reserved = 11", "reserved = -1", "granted = 3"):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute(f"UPDATE credit_account SET {change} WHERE tenant = 't'")
    assert standing(store, job).state is State.RUNNING


def test_a_signal_to_a_waiting_job_beside_claims_is_never_lost(store: PostgresStore) -> None:
    """A waiting job's row goes and comes back; meanwhile a claim must not find it twice, nor miss it for good."""
    jobs = running(store, 30)
    store.commit([lifecycle.suspend(job, "~wait", None, awaits="go") for job in jobs])

    def signal(job: JobRecord) -> None:
        for number in range(3):
            while True:
                now = standing(store, job)
                if store.commit([lifecycle.signal(now, f"s{number}", "go", "1")]) == [Answer.OK]:
                    break

    taken: list[str] = []
    with ThreadPoolExecutor(4) as crew:
        sending = [crew.submit(signal, job) for job in jobs]
        while len(taken) < 30:
            taken += [job.id for job in store.claim(Claim("w", os.urandom(8).hex(), LEASE, 4))]
        for each in sending:
            each.result()
    assert sorted(taken) == [job.id for job in jobs]
    assert {len(store.signals(job.id)) for job in jobs} == {3}
    assert {flow.signals for job in jobs if (flow := standing(store, job).flow)} == {3}


def test_children_come_with_their_move_or_not_at_all(store: PostgresStore) -> None:
    store.grant("t", 3, "first")
    parent, other = running(store, 2, tenant="t")
    ids = Ids(lambda: time.time_ns() // 1_000_000, lambda bits: int.from_bytes(os.urandom(bits // 8 + 1)) >> 8).take(4)

    def spawn(job: JobRecord, *own: str, cost: int = 0) -> Move:
        news = tuple((id_, NewJob("noop", "{}", tenant="t", parent=job.id, credits=cost)) for id_ in own)
        return lifecycle.suspend(job, "~gather", None, children=news)

    late = spawn(parent._replace(lease_id="another's"), ids[0])
    assert store.commit([late, spawn(other, ids[1], ids[2], cost=2)]) == [Answer.ALREADY_CLAIMED, Answer.UNPAID]
    assert store.read(ids) == [None] * 4
    assert store.commit([spawn(parent, ids[0], ids[3]), spawn(other, ids[1], cost=3)]) == [Answer.OK, Answer.OK]
    assert [job and job.parent for job in store.read(ids)] == [parent.id, other.id, None, parent.id]
    assert store.open_children([parent.id, other.id, ids[0]]) == {parent.id, other.id}
    assert store.account("t") == Account("t", 3, 3, 0)


def test_a_schema_of_the_version_before_is_brought_up_to_date_with_its_jobs(
    postgres_url: str, postgres_server: str
) -> None:
    name = postgres_url.rpartition("schema=")[2]
    with psycopg.connect(postgres_server, autocommit=True) as old:
        old.execute(schema.printed(name, None).partition("-- 0004_workflows.sql")[0] + "COMMIT;")
        for _ in range(3):
            old.execute(f"SELECT {name}.enqueue('noop')")
        with closing(Pool(address.parse(postgres_url))) as pool:
            assert schema.plan(pool) == (3, schema.MIGRATIONS[3:])
            assert schema.migrate(pool) == [*schema.MIGRATIONS[3:]]
            assert schema.migrate(pool) == []
        old.execute(f"SELECT {name}.enqueue('noop')")
    with closing(PostgresStore(postgres_url)) as store:
        jobs = claimed(store, 4)
        assert {(job.parent, job.code_version, job.flow) for job in jobs} == {(None, 0, None)}
        moves = [lifecycle.checkpoint(job, "one", "1") for job in jobs]
        assert store.commit(moves) == [Answer.OK] * 4
        assert store.commit([lifecycle.complete(job, None, RETENTION) for job in jobs]) == [Answer.OK] * 4
        assert list(store.check()) == []


def test_every_verb_that_moves_a_job_is_written_with_its_flow(store: PostgresStore) -> None:
    """What a flow holds goes along from place to place, and a beat's news of progress joins it."""
    store.grant("t", 10, "first")
    (job,) = running(store, 1, tenant="t", credits=4)
    beat = Beat(job.id, job.token, job.lease_id or "", begun=True, progress='[0.5,"halfway"]')
    assert store.heartbeat([beat], LEASE) == [Answer.OK]
    expected = job.flow and job.flow._replace(progress='[0.5,"halfway"]')
    assert standing(store, job).flow == expected
    for verb in (Verb.SNOOZE, Verb.RELEASE, Verb.CHECKPOINT, Verb.START):
        job = standing(store, job)
        if job.state is not State.RUNNING:
            (job,) = claimed(store, 1)
        match verb:
            case Verb.SNOOZE:
                move = lifecycle.snooze(job, 0)
            case Verb.RELEASE:
                move = lifecycle.release(job)
            case Verb.START:
                move = lifecycle.start(job)
            case _:
                move = lifecycle.checkpoint(job, "one", None)
        assert store.commit([move]) == [Answer.OK]
        assert standing(store, job).flow == expected, verb
    job = standing(store, job)
    assert store.commit([lifecycle.complete(job, None, RETENTION)]) == [Answer.OK]
    assert standing(store, job).flow == (expected and expected._replace(reserved=0))
