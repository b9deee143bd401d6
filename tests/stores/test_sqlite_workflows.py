"""What only a SQLite file can get wrong about workflows: older files, hand-written SQL, batches, the bell."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.domain import lifecycle
from holdfast.domain.errors import InsufficientCredits, StoreError
from holdfast.domain.job import JobRecord, NewJob, Retention
from holdfast.domain.move import Answer, Event, Held, Move
from holdfast.port.store import Claim
from holdfast.stores import statements
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.connection import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION

MINUTE = 60_000_000
PLAIN = NewJob("echo", "1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{file}")
    yield store
    store.close()


def running(store: SqliteStore, *news: NewJob) -> list[JobRecord]:
    store.insert([[(f"job-{number}", new) for number, new in enumerate(news)]])
    return store.claim(Claim("me", "lease", MINUTE, len(news)))


def older(file: Path) -> None:
    """Make a file as the version before this one left it, with a job that has recorded two steps."""
    db = apsw.Connection(str(file))
    db.pragma("journal_mode", "wal")
    for migration in MIGRATIONS[:2]:
        db.execute(statements.script("holdfast.stores.sqlite.migrations", migration))
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", 2)
    db.execute(
        "INSERT INTO job (id, kind, queue, tenant, priority, payload, retry, max_attempts, crash_cap, trigger, "
        "created_at, steps_total, state, version, available_at, updated_at, ready, step_cursor) "
        "VALUES ('old', 'echo', 'default', '', 0, '1', 'none', 3, 3, 'manual', 1, 0, 'queued', 4, 1, 1, 1, 2)"
    )
    db.execute("INSERT INTO tally VALUES ('default', 'queued', 1)")
    db.execute("INSERT INTO step VALUES (1, 0, 'first', '1', 1), (1, 1, 'second', '2', 1)")
    db.close()


def test_an_older_file_is_brought_up_to_date_and_its_workflows_go_on(file: Path) -> None:
    older(file)
    store = SqliteStore(f"sqlite:///{file}")
    assert store.file.writer.pragma("user_version") == SCHEMA_VERSION
    [job] = store.claim(Claim("me", "lease", MINUTE, 1))
    assert (job.id, job.parent, job.code_version, job.flow, job.step_cursor) == ("old", None, 0, None, 2)
    assert store.commit([lifecycle.checkpoint(job, "second", "9")]) == [Answer.OK]
    assert store.commit([lifecycle.checkpoint(job, "third", "3")]) == [Answer.OK]
    assert [(step.name, step.result) for step in store.steps("old")] == [
        ("first", "1"),
        ("second", "2"),
        ("third", "3"),
    ]
    assert list(store.check()) == []
    store.close()


def test_a_process_of_the_older_version_still_stores_jobs(file: Path, store: SqliteStore) -> None:
    db = apsw.Connection(str(file))
    db.execute(
        "INSERT INTO entry (id, kind, queue, tenant, user, priority, payload, retry, max_attempts, crash_cap, trigger, "
        "trace_id, key, created_at, expires_at, steps_total, state, available_at, updated_at, ready) "
        "VALUES ('old', 'echo', 'default', '', NULL, 0, '1', 'none', 3, 3, 'manual', "
        "NULL, NULL, 1, NULL, 0, 'queued', 1, 1, 1)"
    )
    db.close()
    [job] = store.claim(Claim("me", "lease", MINUTE, 1))
    assert (job.id, job.step_cursor, job.code_version, job.flow) == ("old", 0, 0, None)
    assert list(store.check()) == []


def test_several_processes_may_bring_a_file_up_to_date_at_the_same_moment(file: Path) -> None:
    older(file)
    script = f"""
from holdfast.stores import open_store
store = open_store("sqlite:///{file}")
assert store.accounts() == []
assert sum(store.counts().values()) == 1
"""
    openers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [opener.wait(60) for opener in openers] == [0] * 4


@pytest.mark.parametrize("statement", ["UPDATE job SET parent = 'other'", "UPDATE job SET code_version = 7"])
def test_whose_child_a_job_is_and_its_code_cannot_be_changed_even_by_hand(store: SqliteStore, statement: str) -> None:
    running(store, PLAIN._replace(parent="p", code_version=2))
    with pytest.raises(apsw.ConstraintError, match="asked to do"):
        store.file.writer.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE credit_account SET spent = granted + 1",
        "UPDATE credit_account SET granted = 0",
        "INSERT INTO credit_entry VALUES (NULL, 't', 'complete', NULL, 1, NULL, 0, 0, 11, 1)",
        "INSERT INTO credit_entry VALUES (NULL, 't', 'grant', NULL, 0, 'g', 5, 0, 0, 1)",
        "UPDATE credit_entry SET granted = 1000",
        "DELETE FROM credit_entry",
    ],
)
def test_the_books_cannot_be_cooked_even_by_hand(store: SqliteStore, statement: str) -> None:
    store.grant("t", 10, "g")
    running(store, PLAIN._replace(tenant="t", credits=4))
    before = store.account("t"), store.entries("t", 9)
    with pytest.raises(apsw.ConstraintError):
        store.file.writer.execute(statement)
    assert (store.account("t"), store.entries("t", 9)) == before


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE credit_account SET granted = 11", "is not the sum of its entries"),
        ("UPDATE job SET flow = json_set(flow, '$[6]', 3)", "sets aside 4 credits; its jobs hold 3"),
        ("UPDATE job SET flow = NULL", "sets aside 4 credits; its jobs hold 0"),
    ],
)
def test_accounts_that_do_not_add_up_are_found(store: SqliteStore, statement: str, said: str) -> None:
    store.grant("t", 10, "g")
    store.grant("u", 10, "g")
    running(store, PLAIN._replace(tenant="t", credits=4), PLAIN._replace(tenant="none", credits=4))
    assert list(store.check()) == []
    store.file.writer.execute(f"{statement} WHERE tenant = 't'")
    [finding] = store.check()
    assert (finding.promise, said in finding.text, "'t'" in finding.text) == ("S28", True, True)


def test_a_position_is_not_used_again_after_all_events_are_gone(store: SqliteStore) -> None:
    [job] = running(store, PLAIN)

    def tell(step: str) -> Move:
        return lifecycle.checkpoint(job, step, None)._replace(events=(Event(step, "told", "{}"),))

    store.commit([tell("a")])
    store.commit([tell("b")])
    assert [event.position for event in store.events(0, 9)] == [1, 2]
    assert store.trim(9) == 2
    store.commit([tell("c")])
    assert [(event.position, event.id) for event in store.events(0, 9)] == [(3, "c")]


def test_events_of_a_mixed_batch_keep_the_order_of_its_moves(store: SqliteStore) -> None:
    """Completions and checkpoints are written before the rest; what is told of them is not."""
    jobs = running(store, *[PLAIN] * 6)
    decided = [
        lifecycle.snooze(jobs[0], 0),
        lifecycle.checkpoint(jobs[1], "a", None),
        lifecycle.complete(jobs[2], "1", Retention()),
        lifecycle.checkpoint(jobs[3], "a", None, undoable=True),
        lifecycle.complete(jobs[4], "1", Retention()),
        lifecycle.checkpoint(jobs[5], "a", None),
    ]
    moves = [
        move._replace(events=(Event(f"{n}a", "x", "{}"), Event(f"{n}b", "x", "{}"))) for n, move in enumerate(decided)
    ]
    assert set(store.commit(moves)) == {Answer.OK}
    assert [event.id for event in store.events(0, 99)] == [f"{n}{part}" for n in range(6) for part in "ab"]
    assert [event.job_id for event in store.events(0, 99)][::2] == [job.id for job in jobs]


def test_one_refused_checkpoint_does_not_hold_up_its_batch_and_leaves_nothing(store: SqliteStore) -> None:
    jobs = running(store, *[PLAIN] * 5)
    store.commit([lifecycle.cancel(jobs[3], Retention())])
    store.commit([lifecycle.checkpoint(jobs[4], "a", '"first"')])
    late = lifecycle.checkpoint(jobs[1], "a", "1")._replace(guard=Held(jobs[1].token, "another"))
    moves = [lifecycle.checkpoint(job, "a", f"{n}") for n, job in enumerate(jobs)]
    answers = store.commit([moves[0], late, moves[2], moves[3], moves[4]])
    assert answers == [Answer.OK, Answer.ALREADY_CLAIMED, Answer.OK, Answer.CANCEL_REQUESTED, Answer.OK]
    recorded = [[step.result for step in store.steps(job.id)] for job in jobs]
    assert recorded == [["0"], [], ["2"], [], ['"first"']]
    cursors = [job and (job.step_cursor, job.version) for job in store.read([job.id for job in jobs])]
    assert cursors == [(1, 3), (0, 2), (1, 3), (0, 3), (1, 3)]


def test_steps_of_many_names_under_many_leases_share_a_commit_and_each_is_guarded(store: SqliteStore) -> None:
    store.insert([[(f"job-{number}", PLAIN) for number in range(6)]])
    first, second, third = (store.claim(Claim("me", f"lease-{number}", MINUTE, 2)) for number in range(3))
    moves = [
        lifecycle.checkpoint(first[0], "a", "1"),
        lifecycle.checkpoint(first[1], "b", '"é"'),
        lifecycle.checkpoint(second[0], "a", None, advance=3),
        lifecycle.checkpoint(second[1], "a", "{}"),
        lifecycle.note(third[0], "~c", "[]"),
    ]
    assert store.commit(moves) == [Answer.OK] * 5
    recorded = [[(step.name, step.result) for step in store.steps(f"job-{number}")] for number in range(5)]
    assert recorded == [[("a", "1")], [("b", '"é"')], [("a", None)], [("a", "{}")], [("~c", "[]")]]
    assert [job.step_cursor for job in store.read([f"job-{number}" for number in range(6)]) if job] == [
        1,
        1,
        3,
        1,
        0,
        0,
    ]
    stale = lifecycle.checkpoint(third[1]._replace(lease_id="lease-0"), "late", "1")
    later = [lifecycle.checkpoint(job, "next", "2") for job in (*first, *second)]
    assert store.commit([*later, stale]) == [Answer.OK] * 4 + [Answer.ALREADY_CLAIMED]
    assert store.steps("job-5") == []
    assert [len(store.steps(f"job-{number}")) for number in range(5)] == [2, 2, 2, 2, 1]


def test_a_step_in_a_file_that_was_moved_away_is_not_said_to_be_recorded(file: Path, store: SqliteStore) -> None:
    [job] = running(store, PLAIN)
    away = file.rename(file.with_name("away.db"))
    for _ in range(2):
        with pytest.raises(StoreError, match="was removed or replaced"):
            store.commit([lifecycle.checkpoint(job, "a", "1")])
    away.rename(file)
    assert store.commit([lifecycle.checkpoint(job, "a", "1")]) == [Answer.OK]
    assert [(step.name, step.result) for step in store.steps(job.id)] == [("a", "1")]
    assert [found and found.step_cursor for found in store.read([job.id])] == [1]


def test_a_signal_and_a_child_ring_the_bell_of_their_queue(file: Path, store: SqliteStore) -> None:
    [job] = running(store, PLAIN)
    waiter = SqliteStore(f"sqlite:///{file}")
    assert waiter.wait(["default", "side"], 0) is False
    child = ("child", PLAIN._replace(queue="side", parent=job.id))
    store.commit([lifecycle.suspend(job, "~wait", None, awaits="go", children=(child,))])
    assert waiter.wait(["side"], 5) is True
    [waiting] = store.read([job.id])
    assert waiting is not None
    assert waiter.wait(["default"], 0) is False
    store.commit([lifecycle.signal(waiting, "s1", "go", None)])
    assert waiter.wait(["default"], 5) is True
    waiter.close()


def test_a_group_on_a_callers_connection_pays_like_any_other(file: Path, store: SqliteStore) -> None:
    store.grant("t", 5, "g")
    new = PLAIN._replace(tenant="t", credits=3)
    db = apsw.Connection(str(file))
    with db:
        store.insert_on(db, [("one", new)])
        with pytest.raises(InsufficientCredits):
            store.insert_on(db, [("two", new)])
    db.close()
    assert store.account("t") == ("t", 5, 3, 0)
    assert [job and job.id for job in store.read(["one", "two"])] == ["one", None]
    assert list(store.check()) == []


def test_steps_that_a_job_starts_out_with_stand_before_its_own(store: SqliteStore) -> None:
    steps = tuple((f"inherited-{number}", f"{number}") for number in range(9))
    [job] = running(store, PLAIN._replace(steps=steps))
    assert store.commit([lifecycle.checkpoint(job, f"own-{number}", None) for number in range(9)]) == [Answer.OK] * 9
    assert [step.name for step in store.steps(job.id)] == [
        *(name for name, _ in steps),
        *(f"own-{number}" for number in range(9)),
    ]


def test_a_purge_leaves_no_row_that_a_later_job_could_take_for_its_own(store: SqliteStore) -> None:
    [job] = running(store, PLAIN._replace(steps=(("a", "1"),), key="k"))
    store.commit([lifecycle.signal(job, "s1", "go", None)])
    store.commit([lifecycle.snooze(job, 0)])
    [again] = store.claim(Claim("me", "lease-2", MINUTE, 1))
    store.commit([lifecycle.checkpoint(again, "b", "2")])
    store.commit([lifecycle.complete(again, None, Retention(succeeded=0))])
    assert store.purge(9).jobs == 1
    for table in ("job", "job_key", "attempt", "step", "signal"):
        assert store.file.reader.execute(f"SELECT count(*) FROM {table}").get == 0, table
