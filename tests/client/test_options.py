"""The choices of `using(...)`: each checked at once, each stored as chosen."""

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import BadInput, Holdfast, Job, JobFunction, KeyConflict
from holdfast.testing.engine import TestHoldfast

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def add(holdfast: TestHoldfast) -> JobFunction[[int], int]:
    @holdfast.job(queue="sums", priority=3)
    def add(a: int) -> int:
        return a

    return add


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"key": "k" * 256}, "A key is 1 to 255 printable characters"),
        ({"key": ""}, "A key is 1 to 255 printable characters"),
        ({"key": "a\x00b"}, "A key is 1 to 255 printable characters"),
        ({"key": "\ud800"}, "A key is 1 to 255 printable characters"),
        ({"key": 7}, "A key is 1 to 255 printable characters; 7 is not"),
        ({"queue": ""}, "A queue is 1 to 255 printable characters"),
        ({"queue": "q" * 256}, "A queue is 1 to 255 printable characters"),
        ({"queue": "*"}, "'*' stands for all queues, and is the name of none; name one queue"),
        ({"tenant": "t" * 256}, "A tenant is 1 to 255 printable characters"),
        ({"tenant": 7}, "A tenant is 1 to 255 printable characters; 7 is not"),
        ({"user": "u\n"}, "A user is 1 to 255 printable characters"),
        ({"trace_id": "t" * 256}, "A trace_id is 1 to 255 printable characters"),
        ({"priority": 1.5}, "A priority is a whole number between -1,000,000 and 1,000,000, not 1.5"),
        ({"priority": True}, "A priority is a whole number"),
        ({"priority": 1_000_001}, "A priority is a whole number"),
        ({"priority": "high"}, "A priority is a whole number"),
        ({"run_after": -1}, "run_after must not be negative; -1 was given"),
        ({"run_after": timedelta(seconds=-1)}, "run_after must not be negative"),
        ({"run_after": math.nan}, "run_after must be a number of seconds or a timedelta, not nan"),
        ({"run_after": math.inf}, "run_after must be a number of seconds or a timedelta, not inf"),
        ({"run_after": "5"}, "run_after must be a number of seconds or a timedelta, not '5'"),
        ({"run_after": True}, "run_after must be a number of seconds or a timedelta, not True"),
        ({"run_after": 1e12}, "run_after must be less than a hundred years"),
        ({"run_after": datetime(2026, 1, 1)}, "run_after must be a datetime with a time zone"),  # noqa: DTZ001
        ({"run_at": datetime(2026, 1, 1)}, "run_at must be a datetime with a time zone"),  # noqa: DTZ001
        ({"run_at": "2026-01-01"}, "run_at must be a datetime with a time zone, not '2026-01-01'"),
        ({"run_at": 5}, "run_at must be a datetime with a time zone, not 5"),
        ({"run_at": START, "run_after": 5}, "run_after and run_at both say when the job may run; give one of them"),
        ({"expires_after": -1}, "expires_after must not be negative"),
        ({"expires_after": "soon"}, "expires_after must be a number of seconds or a timedelta"),
        ({"key_ttl": -1}, "key_ttl must not be negative"),
        ({"key_ttl": 60}, "key_ttl= says how long a key is taken; give the key as well"),
        ({"unique": "active"}, "unique= says how long a key is taken; give the key as well"),
        ({"debounce": 0}, "debounce= says how long a key is taken; give the key as well"),
        ({"run_after": 10**400}, "run_after must be less than a hundred years; a whole number of 1329 bits was given"),
        ({"trigger": "cron"}, "A trigger is one of manual, schedule, webhook, file_drop; 'cron' is not"),
        ({"trigger": []}, "A trigger is one of manual, schedule, webhook, file_drop"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_wrong_choice_is_refused_in_one_sentence(
    holdfast: TestHoldfast, add: JobFunction[[int], int], choice: dict[str, Any], said: str
) -> None:
    for call in (lambda: add.using(**choice), lambda: holdfast.enqueue("add", {"a": 1}, **choice)):
        with pytest.raises(BadInput) as caught:
            call()
        assert said in str(caught.value)
        assert str(caught.value).endswith(".")
        assert len(str(caught.value)) < 200
    assert holdfast.counts().total == 0


def test_an_unknown_choice_is_named(holdfast: TestHoldfast, add: JobFunction[[int], int]) -> None:
    with pytest.raises(TypeError, match="'prioritty'"):
        add.using(prioritty=1)  # type: ignore[call-arg]
    for value in (1, None):
        with pytest.raises(BadInput, match="There is no option 'prioritty'"):
            holdfast.enqueue("add", {"a": 1}, prioritty=value)
    with pytest.raises(TypeError, match="'tiemout'"):
        holdfast.job(tiemout=3)  # type: ignore[call-overload]
    assert holdfast.counts().total == 0


def test_what_is_not_chosen_is_the_kinds_own(add: JobFunction[[int], int]) -> None:
    job = add.enqueue(1)
    record = job.record
    assert (job.queue, job.priority, job.tenant, job.key) == ("sums", 3, "", None)
    assert (record.user, record.trace_id, record.trigger, record.expires_at) == (None, None, "manual", None)
    assert job.available_at == job.created_at == START


def test_every_choice_is_stored_as_chosen(holdfast: TestHoldfast, add: JobFunction[[int], int]) -> None:
    choices: dict[str, Any] = {
        "queue": "fast",
        "priority": -5,
        "run_after": timedelta(minutes=10),
        "key": "é" * 255,
        "key_ttl": 3600,
        "tenant": "acme",
        "user": "user-7",
        "trace_id": "trace-1",
        "trigger": "webhook",
        "expires_after": 60,
    }
    jobs = [add.using(**choices).enqueue(1), holdfast.enqueue("add", {"a": 1}, **{**choices, "key": "other"})]
    for job in jobs:
        record = job.record
        assert (job.queue, job.priority, job.tenant) == ("fast", -5, "acme")
        assert (record.user, record.trace_id, record.trigger) == ("user-7", "trace-1", "webhook")
        assert job.available_at == START + timedelta(minutes=10)
        assert record.expires_at == record.available_at + 60_000_000
    assert [job.key for job in jobs] == ["é" * 255, "other"]


def test_choices_add_up_and_the_first_function_stays_as_it_was(add: JobFunction[[int], int]) -> None:
    mail = add.using(queue="mail", priority=1)
    urgent = mail.using(priority=9)
    assert [(f.enqueue(1).queue, f.enqueue(1).priority) for f in (add, mail, urgent)] == [
        ("sums", 3),
        ("mail", 1),
        ("mail", 9),
    ]


def test_a_priority_of_zero_and_a_delay_of_zero_are_choices_too(add: JobFunction[[int], int]) -> None:
    assert add.using(priority=0).enqueue(1).priority == 0
    assert add.using(run_after=5).using(run_after=0).enqueue(1).available_at == START


@pytest.mark.parametrize(
    "when",
    [
        {"run_after": START + timedelta(hours=1)},
        {"run_at": START + timedelta(hours=1)},
        {"run_at": datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2)))},
        {"run_after": 3600},
        {"run_after": 3600.0},
        {"run_after": timedelta(hours=1)},
    ],
    ids=repr,
)
def test_a_time_may_be_an_instant_or_a_delay(
    holdfast: TestHoldfast, add: JobFunction[[int], int], when: dict[str, Any]
) -> None:
    job = add.using(**when).enqueue(1)
    assert job.available_at == START + timedelta(hours=1)
    holdfast.advance(minutes=59, seconds=59)
    assert holdfast.run_until_idle() == 0
    holdfast.advance(seconds=1)
    assert holdfast.run_until_idle() == 1


def test_the_last_time_chosen_counts(add: JobFunction[[int], int]) -> None:
    in_an_hour, tomorrow = add.using(run_after=3600), add.using(run_at=START + timedelta(days=1))
    assert in_an_hour.using(run_at=START + timedelta(days=1)).enqueue(1).available_at == START + timedelta(days=1)
    assert tomorrow.using(run_after=3600).enqueue(1).available_at == START + timedelta(hours=1)


def test_a_time_that_has_passed_is_now(holdfast: TestHoldfast, add: JobFunction[[int], int]) -> None:
    add.using(run_at=START - timedelta(days=1)).enqueue(1)
    assert holdfast.run_until_idle() == 1


def test_a_job_that_has_not_started_in_time_expires(holdfast: TestHoldfast, add: JobFunction[[int], int]) -> None:
    job = add.using(run_after=60, expires_after=30).enqueue(1)
    holdfast.advance(seconds=89)
    assert job.refresh().state == "queued"
    holdfast.advance(seconds=1)
    assert holdfast.run_until_idle() == 0
    assert (job.refresh().state, job.cause, job.attempt) == ("dead", "expired", 0)


def test_a_key_is_one_job_per_tenant(add: JobFunction[[int], int]) -> None:
    first = add.using(key="k").enqueue(1)
    again = add.using(key="k", queue="fast", priority=9).enqueue(1)
    other = add.using(key="k", tenant="acme").enqueue(1)
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.id == first.id != other.id
    assert again == first
    assert (again.queue, again.priority) == ("sums", 3)
    with pytest.raises(KeyConflict, match=f"The key 'k' already belongs to job {first.id} with another payload"):
        add.using(key="k").enqueue(2)


def test_a_key_of_another_kind_is_a_conflict(holdfast: TestHoldfast, add: JobFunction[[int], int]) -> None:
    @holdfast.job
    def subtract(a: int) -> int:
        return -a

    add.using(key="k").enqueue(1)
    with pytest.raises(KeyConflict, match="with the kind 'add'; nothing was enqueued"):
        subtract.using(key="k").enqueue(1)
    assert holdfast.counts().total == 1


def test_a_key_is_free_again_when_its_time_is_over_or_its_job_is_gone(
    holdfast: TestHoldfast, add: JobFunction[[int], int]
) -> None:
    def enqueue(value: int) -> Job[int]:
        return add.using(key="k", key_ttl=60).enqueue(value)

    first = enqueue(1)
    holdfast.advance(seconds=59)
    assert enqueue(1).id == first.id
    holdfast.advance(seconds=1)
    second = enqueue(2)
    assert (second.duplicate, second.id != first.id) == (False, True)

    kept = add.using(key="until purged").enqueue(1)
    holdfast.run_until_idle()
    holdfast.advance(days=7)
    holdfast.run_until_idle()
    anew = add.using(key="until purged").enqueue(2)
    assert (anew.duplicate, anew.id != kept.id) == (False, True)


def test_keyword_arguments_in_another_order_are_the_same_request(holdfast: TestHoldfast) -> None:
    @holdfast.job
    def pair(a: int, b: float) -> None: ...

    first = pair.using(key="k").enqueue(a=1, b=2)
    assert pair.using(key="k").enqueue(b=2.0, a=1).id == first.id
    assert holdfast.enqueue("pair", '{"b": 2, "a": 1}', key="k").id == first.id


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"queue": ""}, "A queue is 1 to 255 printable characters"),
        ({"name": "n" * 256}, "A kind is 1 to 255 printable characters"),
        ({"priority": 0.5}, "A priority is a whole number"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0; leave it out to set no limit"),
        ({"timeout": 1e-9}, "timeout must be more than 0 seconds, not 1e-09"),
        ({"timeout": timedelta(0)}, "timeout must be more than 0 seconds"),
        ({"timeout": math.nan}, "timeout must be a number of seconds or a timedelta, not nan"),
        ({"timeout": False}, "timeout must be a number of seconds or a timedelta, not False"),
        ({"timeout": "long"}, "timeout must be a number of seconds"),
        ({"retry": 3}, "retry= takes Retry.exponential"),
        ({"permanent": ValueError()}, "permanent= takes exception classes"),
        ({"permanent": ("ValueError",)}, "permanent= takes exception classes"),
        ({"run_in": "fiber"}, "run_in is 'loop', 'thread' or 'process', not 'fiber'"),
        ({"crash_cap": 0}, "crash_cap is a whole number of 1 or more, not 0"),
    ],
    ids=repr,
)
def test_a_kinds_defaults_are_checked_when_it_is_registered(
    holdfast: TestHoldfast, defaults: dict[str, Any], said: str
) -> None:
    def work() -> None: ...

    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        holdfast.job(**defaults)(work)
    assert len(holdfast.registry) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lease": -1}, "lease must not be negative"),
        ({"lease": 10, "heartbeat": 6}, "The heartbeat must be more often than twice per lease"),
        ({"heartbeat": 0}, "The heartbeat must be more often than twice per lease"),
        ({"max_payload": 0}, "max_payload is between 1 and 1,048,576 bytes, not 0"),
        ({"max_payload": "1 MB"}, "max_payload is a whole number of bytes, not '1 MB'"),
        ({"max_payload": 1.5}, "max_payload is a whole number of bytes, not 1.5"),
        ({"max_payload": True}, "max_payload is a whole number of bytes, not True"),
        ({"max_payload": 2**21}, "max_payload is between 1 and 1,048,576 bytes"),
        ({"retention": timedelta(days=1)}, r"holdfast.retention\(succeeded=…, cancelled=…, dead=…\) gives"),
        ({"redaction": ["secret"]}, "redaction is a holdfast.Redaction.*, not a list"),
        ({"events": "yes"}, "events is True or False, not .yes."),
        ({"grace": "long"}, "grace must be a number of seconds"),
    ],
    ids=repr,
)
def test_an_applications_settings_are_checked_when_it_is_made(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Holdfast("memory://", **settings)


def test_a_job_in_the_callers_transaction_is_there_if_the_caller_commits(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    def add(a: int) -> int:
        return a

    assert app.counts().total == 0
    mine = apsw.Connection(str(tmp_path / "jobs.db"))
    mine.execute("BEGIN IMMEDIATE")
    lost = add.using(connection=mine).enqueue(1)
    mine.execute("ROLLBACK; BEGIN IMMEDIATE")
    kept = add.using(connection=mine).enqueue(2)
    mine.execute("COMMIT")
    mine.close()
    assert app.find() == [kept]
    assert kept != lost
    app.close()


def test_many_jobs_in_the_callers_transaction_are_there_if_the_caller_commits(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    def add(a: int) -> int:
        return a

    add.using(key="taken").enqueue(1)
    mine = apsw.Connection(str(tmp_path / "jobs.db"))
    with_mine = add.using(connection=mine)
    mine.execute("BEGIN IMMEDIATE")
    assert len(app.enqueue_many([with_mine.prepare(n) for n in range(5)])) == 5
    mine.execute("ROLLBACK; BEGIN IMMEDIATE")
    with pytest.raises(KeyConflict):
        app.enqueue_many([with_mine.prepare(1), with_mine.using(key="taken").prepare(2)])
    kept = asyncio.run(app.aenqueue_many([with_mine.prepare(n) for n in range(3)]))
    mine.execute("COMMIT")
    assert [job.payload for job in kept] == [{"a": n} for n in range(3)]
    assert app.find()[:3] == kept[::-1]
    assert app.counts().total == 4
    with pytest.raises(BadInput, match="prepare all of them with the same connection, or none"):
        app.enqueue_many([with_mine.prepare(1), add.prepare(2)])
    mine.close()
    app.close()


def test_a_store_that_cannot_join_a_transaction_says_so(add: JobFunction[[int], int]) -> None:
    with pytest.raises(BadInput, match="The store memory:// cannot enqueue inside a caller's transaction"):
        add.using(connection=object()).enqueue(1)
