"""Enqueue by plain SQL, for other languages; and the views, for people and dashboards."""

import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Holdfast, JobFunction, KeyConflict, Permanent, Retry
from holdfast.domain import retry
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import HOUR, SECOND, to_datetime
from holdfast.port.store import Claim
from tests import postgres

Add = JobFunction[[int, int], int]


class Sql:
    """Somebody who speaks SQL only."""

    def __init__(self, address: str, schema: str) -> None:
        self.db = psycopg.connect(address, autocommit=True)
        self.schema = schema

    def enqueue(self, arguments: str, *values: Any) -> UUID:
        return UUID(str(self.ask(f"SELECT {{schema}}.enqueue({arguments})", *values)[0][0]))

    def ask(self, statement: str, *values: Any) -> list[Any]:
        return self.db.execute(statement.replace("{schema}", self.schema), values).fetchall()


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url)) as opened:
        opened.counts()
        yield opened


@pytest.fixture
def add(app: Holdfast) -> Add:
    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture
def sql(app: Holdfast, postgres_server: str) -> Iterator[Sql]:
    one = Sql(postgres_server, app.url.rpartition("=")[2])
    yield one
    one.db.close()


@pytest.fixture(scope="module")
def empty(postgres_server: str) -> Iterator[tuple[Holdfast, Sql]]:
    """Give a store that every test leaves as empty as it was."""
    url = postgres.schema_of(postgres_server)
    with closing(Holdfast(url)) as app:
        app.counts()
        one = Sql(postgres_server, url.rpartition("=")[2])
        yield app, one
        one.db.close()
    postgres.drop(url)


def clean(app: Holdfast) -> dict[str, int]:
    """Count the jobs, once the store has been found in order."""
    assert list(app.store.check()) == []
    return {state: number for state, number in app.counts().items() if number}


def test_a_job_stored_by_sql_runs_like_any_other(app: Holdfast, add: Add, sql: Sql) -> None:
    id_ = sql.enqueue("""'add', '{"a": 1, "b": 2}'""")
    app.run_worker(until_idle=True)
    assert app.get(id_).result() == 3
    assert clean(app) == {"succeeded": 1}


def test_it_is_stored_as_python_would_have_stored_it(app: Holdfast, add: Add, sql: Sql) -> None:
    by_sql, by_python = app.get(sql.enqueue("""'add', '{"a":1,"b":2}'""")).record, add.enqueue(1, 2).record
    own = {"id", "payload", "created_at", "updated_at", "available_at"}
    assert {name: value for name, value in by_sql._asdict().items() if name not in own} == {
        name: value for name, value in by_python._asdict().items() if name not in own
    }
    assert by_sql.retry == NewJob("", "").retry
    assert by_sql.created_at == by_sql.available_at


def test_arguments_may_be_given_by_their_place(app: Holdfast, add: Add, sql: Sql) -> None:
    job = app.get(sql.enqueue("""'add', '{"a":1,"b":2}', 'mail', 'k', 'acme', 5, '10 minutes'""")).record
    assert (job.queue, job.key, job.tenant, job.priority) == ("mail", "k", "acme", 5)
    assert job.available_at - job.created_at == 600 * SECOND


def test_arguments_may_be_given_by_their_name(app: Holdfast, add: Add, sql: Sql) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    job = app.get(
        sql.enqueue(
            "kind => 'add', payload => %s, run_at => %s, max_attempts => 2, retry => %s, \"user\" => 'ada', "
            "trace_id => 't-1', expires_after => '1 hour', priority => -3, queue => 'späť 😀'",
            '{"a": 1, "b": 2}', at, Retry.table(30, 120, 600).spec,
        )
    ).record  # fmt: skip
    assert to_datetime(job.available_at) == at
    assert (job.max_attempts, job.user, job.trace_id, job.priority) == (2, "ada", "t-1", -3)
    assert job.expires_at == job.available_at + HOUR
    assert job.queue == "späť 😀"
    assert retry.parse(job.retry, 2).bounds(2) == (120 * SECOND, 120 * SECOND)


def test_what_is_null_is_not_chosen(app: Holdfast, add: Add, sql: Sql) -> None:
    everything = ", ".join(["NULL"] * 12)
    job = app.get(sql.enqueue(f"""'add', '{{"a":1,"b":2}}', {everything}""")).record
    assert (job.queue, job.key, job.tenant, job.priority, job.max_attempts) == ("default", None, "", 0, 5)
    assert (job.retry, job.user, job.expires_at) == (NewJob("", "").retry, None, None)


@pytest.mark.parametrize(
    "policy",
    [
        Retry.table(30, 120, 600, 1800), Retry.exponential(base=60), Retry.exponential(2, jitter=0.1, max_delay=60),
        Retry.exponential(2, jitter=0.00001), Retry.exponential(2, jitter=1), Retry.fixed(0), Retry.fixed(0.000001),
    ],
    ids=lambda policy: policy.spec,
)  # fmt: skip
def test_every_policy_of_python_is_taken(empty: tuple[Holdfast, Sql], policy: Retry) -> None:
    app, sql = empty
    with sql.db.transaction(force_rollback=True):
        id_ = sql.enqueue("'add', retry => %s, max_attempts => %s", policy.spec, policy.max_attempts)
        ((stored, most),) = sql.ask("SELECT retry, max_attempts FROM {schema}.job WHERE id = %s", id_)
    assert retry.parse(stored, most) == policy
    assert clean(app) == {}


def test_an_id_is_a_version_7_uuid_and_later_ones_sort_later(app: Holdfast, add: Add, sql: Sql) -> None:
    before = time.time() * 1000
    made = [UUID(str(id_)) for (id_,) in sql.ask("SELECT {schema}.new_id() FROM generate_series(1, 1000)")]
    after = time.time() * 1000
    assert {(id_.version, id_.variant) for id_ in made} == {(7, "specified in RFC 4122")}
    assert all(before - 1000 < id_.int >> 80 < after + 1000 for id_ in made)
    assert len(set(made)) == 1000
    jobs = [UUID(str(id_)) for (id_,) in sql.ask("SELECT {schema}.enqueue('add') FROM generate_series(1, 100)")]
    assert jobs == sorted(jobs)
    claimed = app.store.claim(Claim("ada", "lease", HOUR, 100))
    assert [UUID(job.id) for job in claimed] == jobs, "what is stored first is claimed first"


def test_it_comes_and_goes_with_the_callers_transaction(app: Holdfast, add: Add, sql: Sql) -> None:
    with sql.db.transaction(force_rollback=True):
        sql.enqueue("'add', key => 'k'")
        assert app.find() == []
    assert clean(app) == {}
    with sql.db.transaction():
        sql.enqueue("""'add', '{"a":1}', key => 'k'""")
    assert clean(app) == {"queued": 1}


def test_a_key_finds_its_job_from_sql_and_from_python(app: Holdfast, add: Add, sql: Sql) -> None:
    by_python = add.using(key="p", tenant="acme").enqueue(1, 2)
    assert sql.enqueue("""'add', '{"b": 2, "a": 1}', key => 'p', tenant => 'acme'""") == by_python.id
    by_sql = sql.enqueue("""'add', '{"b": 2, "a": 1}', key => 's'""")
    again = add.using(key="s").enqueue(1, 2)
    assert (again.id, again.duplicate) == (by_sql, True)
    assert sql.enqueue("""'add', '{"b": 2, "a": 1}', key => 's', tenant => 'other'""") != by_sql
    assert clean(app) == {"queued": 3}


@pytest.mark.parametrize("arguments", ["""'add', '{"a": 1, "b": 3}'""", """'other', '{"a": 1, "b": 2}'"""])
def test_a_key_that_belongs_to_something_else_is_a_conflict(app: Holdfast, add: Add, sql: Sql, arguments: str) -> None:
    job = add.using(key="k").enqueue(1, 2)
    with pytest.raises(psycopg.errors.UniqueViolation, match=f"the key k already belongs to job {job.id}"):
        sql.enqueue(f"{arguments}, key => 'k'")
    assert clean(app) == {"queued": 1}


def test_python_sees_the_conflict_with_what_sql_stored(app: Holdfast, add: Add, sql: Sql) -> None:
    sql.enqueue("""'add', '{"a": 1, "b": 2}', key => 'k'""")
    with pytest.raises(KeyConflict):
        add.using(key="k").enqueue(1, 3)


def test_a_key_is_free_again_once_its_time_is_over(app: Holdfast, add: Add, sql: Sql) -> None:
    first = sql.enqueue("'add', key => 'k', key_ttl => '0'")
    second = sql.enqueue("""'add', '{"a": 2}', key => 'k', key_ttl => '1 hour'""")
    assert sql.enqueue("""'add', '{"a": 2}', key => 'k'""") == second != first
    assert clean(app) == {"queued": 2}


NAMES = "are texts of 1 to 255 printable characters; nothing was enqueued"
TIMES = "are from 0 to a hundred years, and run_at before the year 9999; nothing was enqueued"
NUMBERS = "priority is within a million of 0, and max_attempts from 1 to 10000; nothing was enqueued"
OBJECT = "the payload must be a JSON object of at most 256 KiB; nothing was enqueued"
POLICY = "retry is SHAPE:MICROSECONDS"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("NULL", NAMES),
        ("''", NAMES),
        ("repeat('x', 256)", NAMES),
        ("E'a\\nb'", NAMES),
        ("'add', queue => ''", NAMES),
        ("'add', queue => repeat('x', 256)", NAMES),
        ("'add', key => ''", NAMES),
        ("'add', key => E'a\\tb'", NAMES),
        ("'add', tenant => repeat('x', 256)", NAMES),
        ("'add', \"user\" => ''", NAMES),
        ("'add', trace_id => ''", NAMES),
        *(
            (f"'a{character}b'", NAMES)
            for character in (
                "\x1f",
                "\x7f",
                "\x85",
                "\xa0",
                "\xad",
                "\u200b",
                "\u2028",
                "\ue000",
                "\ufeff",
                "\U000e0041",
            )
        ),
        ("'add', queue => 'a\u2029b'", NAMES),
        ("'add', tenant => '\u3000'", NAMES),
        ("'add', key => '\u200d'", NAMES),
        ("'add', queue => '*'", "stands for all queues; nothing was enqueued"),
        ("'add', key_ttl => '1 hour'", "give the key as well; nothing was enqueued"),
        ("'add', NULL", OBJECT),
        ("'add', '[]'", OBJECT),
        ("'add', '3'", OBJECT),
        ("'add', 'null'", OBJECT),
        ("'add', jsonb_build_object('a', repeat('x', 262144))", OBJECT),
        ("'add', priority => 1000001", NUMBERS),
        ("'add', priority => -2147483648", NUMBERS),
        ("'add', max_attempts => 0", NUMBERS),
        ("'add', max_attempts => 10001", NUMBERS),
        ("'add', run_after => '-1 second'", TIMES),
        ("'add', run_after => '101 years'", TIMES),
        ("'add', run_at => 'infinity'", TIMES),
        ("'add', run_at => '-infinity'", TIMES),
        ("'add', run_at => '290000-01-01'", TIMES),
        ("'add', key => 'k', key_ttl => '-1 second'", TIMES),
        ("'add', expires_after => '-1 second'", TIMES),
        ("'add', run_after => '1 hour', run_at => now()", "give one of them; nothing was enqueued"),
        ("'add', retry => 'never'", POLICY),
        ("'add', retry => 'fixed:x:0:1'", POLICY),
        ("'add', retry => 'fixed:1:0:1:'", POLICY),
        ("'add', retry => E'fixed:1:0:1\\n'", POLICY),
    ],
)
def test_bad_input_is_told_in_one_message_and_nothing_is_stored(
    empty: tuple[Holdfast, Sql], arguments: str, said: str
) -> None:
    app, sql = empty
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=said):
        sql.enqueue(arguments)
    assert clean(app) == {}


def test_sql_takes_the_names_that_python_takes(empty: tuple[Holdfast, Sql]) -> None:
    _, sql = empty
    every = [
        chr(code)
        for code in range(1, 0x110000)
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"
    ]
    with sql.db.cursor(binary=True) as cursor:
        cursor.execute(f"SELECT each FROM unnest(%s::text[]) AS each WHERE {sql.schema}.is_name(each)", [every])
        taken = {character for (character,) in cursor}
    assert taken == {character for character in every if character.isprintable()}


@pytest.mark.parametrize("payload", [r'{"a": "\u0000"}', r'{"\u0000": 1}', '{"a": NaN}', "{", r'{"a": "\ud800"}'])
def test_what_no_store_could_keep_is_refused_by_the_server_itself(empty: tuple[Holdfast, Sql], payload: str) -> None:
    app, sql = empty
    with pytest.raises(psycopg.DataError):
        sql.enqueue("'add', %s", payload)
    assert clean(app) == {}


def test_a_payload_that_its_kind_does_not_take_is_rejected_when_it_runs(app: Holdfast, add: Add, sql: Sql) -> None:
    wrong = sql.enqueue("""'add', '{"a": "one"}'""")
    app.run_worker(until_idle=True)
    job = app.get(wrong)
    assert (job.state, job.cause) == ("dead", "rejected")


def test_two_callers_of_one_key_get_one_job(app: Holdfast, add: Add, sql: Sql, postgres_server: str) -> None:
    with sql.db.transaction(), psycopg.connect(postgres_server, autocommit=True) as other:
        first = sql.enqueue("'add', key => 'k'")
        other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(f"SELECT {sql.schema}.enqueue('add', key => 'k')")
    assert sql.enqueue("'add', key => 'k'") == first
    assert clean(app) == {"queued": 1}


def test_the_view_shows_every_job_once_and_no_payload(app: Holdfast, add: Add, sql: Sql) -> None:
    @app.job(queue="mail")
    def reject(why: str) -> None:
        raise Permanent(why, code="nobody")

    @app.job(retry=Retry.fixed(3600, retries=3))
    def flaky() -> None:
        raise ConnectionError

    done, dead, later, again = add.enqueue(1, 2), reject.enqueue("secret"), flaky.enqueue(), reject.enqueue("again")
    app.run_worker(until_idle=True)
    app.pause("mail")
    app.redrive(again.id)
    waiting = add.using(priority=7, tenant="acme", run_after=3600).enqueue(1, 2)
    cancelled = app.cancel(add.enqueue(3, 4).id)
    running = add.enqueue(5, 6)
    app.store.claim(Claim("ada", "lease", HOUR, 1))
    columns = "id, state, queue, kind, tenant, priority, attempt, max_attempts, cause, failure_code, worker"
    rows = {row[0]: row[1:] for row in sql.ask(f"SELECT {columns} FROM {{schema}}.jobs")}
    assert rows == {
        done.id: ("succeeded", "default", "add", "", 0, 1, 5, None, None, None),
        dead.id: ("dead", "mail", "reject", "", 0, 1, 5, "rejected", "nobody", None),
        later.id: ("retrying", "default", "flaky", "", 0, 1, 4, None, "connection_error", None),
        waiting.id: ("queued", "default", "add", "acme", 7, 0, 5, None, None, None),
        cancelled.id: ("cancelled", "default", "add", "", 0, 0, 5, None, None, None),
        again.id: ("queued", "mail", "reject", "", 0, 0, 5, None, None, None),
        running.id: ("running", "default", "add", "", 0, 1, 5, None, None, "ada"),
    }
    for state in State:
        ids = sql.ask("SELECT id FROM {schema}.jobs WHERE state = %s", state.value)
        assert {id_ for (id_,) in ids} == {id_ for id_, row in rows.items() if row[0] == state}
    assert "secret" not in str(sql.ask("SELECT * FROM {schema}.jobs"))
    for job in app.find():
        record = job.record
        told = sql.ask(
            "SELECT created_at, available_at, started_at, finished_at, lease_expires_at FROM {schema}.jobs "
            "WHERE id = %s",
            job.id,
        )
        times = (record.created_at, record.available_at, record.started_at, record.finished_at, record.lease_expires_at)
        assert told == [tuple(None if at is None else to_datetime(at) for at in times)]


def test_the_view_of_counts_agrees_with_the_jobs(app: Holdfast, add: Add, sql: Sql) -> None:
    add.enqueue(1, 2)
    app.run_worker(until_idle=True)
    app.enqueue_many([add.using(queue="mail").prepare(n, n) for n in range(3)])
    counted = sql.ask("SELECT queue, state, jobs FROM {schema}.counts ORDER BY queue")
    assert counted == [("default", "succeeded", 1), ("mail", "queued", 3)]
    assert counted == sql.ask("SELECT queue, state, count(*) FROM {schema}.jobs GROUP BY 1, 2 ORDER BY 1")


def test_a_dashboard_needs_the_right_to_the_view_only(app: Holdfast, add: Add, sql: Sql) -> None:
    add.enqueue(1, 2)
    with sql.db.transaction(force_rollback=True):
        for statement in (
            "CREATE ROLE dashboard",
            "GRANT USAGE ON SCHEMA {schema} TO dashboard",
            "GRANT SELECT ON {schema}.jobs, {schema}.counts TO dashboard",
            "SET LOCAL ROLE dashboard",
        ):
            sql.db.execute(statement.replace("{schema}", sql.schema))
        assert sql.ask("SELECT state, created_at < now() + %s FROM {schema}.jobs", timedelta(minutes=1)) == [
            ("queued", True)
        ]
        assert sql.ask("SELECT jobs FROM {schema}.counts") == [(1,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql.ask("SELECT payload FROM {schema}.job")
