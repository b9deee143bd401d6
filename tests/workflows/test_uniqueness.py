"""One job per key for as long as it is active, or waits; when jobs run; and what asked for them."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import BadInput, Context, Holdfast, KeyConflict, Retry
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import ONCE

FAR = timedelta(days=365 * 30)


def summary(app: Holdfast, ran: list[str] | None = None) -> Any:
    @app.job(retry=ONCE)
    def summarise(user: str) -> str:
        if ran is not None:
            ran.append(user)
        if user == "bad":
            raise OSError
        return user

    return summarise


def test_one_active_job_per_key_and_the_next_once_it_has_ended(app: Holdfast) -> None:
    ran: list[str] = []
    job = summary(app, ran).using(key="summary:ada:monday", unique="active")
    first = job.enqueue("ada")
    again = job.enqueue("ada")
    assert (again.id, again.duplicate) == (first.id, True)
    app.run_worker(until_idle=True)
    second = job.enqueue("ada")
    assert (second.id != first.id, second.duplicate) == (True, False)
    second.cancel()
    third = job.enqueue("ada")
    assert third.id not in (first.id, second.id)
    app.run_worker(until_idle=True)
    assert ran == ["ada", "ada"]


@pytest.mark.parametrize("state", ["queued", "running", "retrying"])
def test_a_job_is_active_until_it_has_ended(holdfast: TestHoldfast, state: str) -> None:
    seen: list[Any] = []

    @holdfast.workflow(retry=Retry.fixed(60, retries=1))
    def flow(ctx: Context) -> None:
        if state == "running":
            seen.append(chosen.enqueue())
        elif ctx.attempt == 1:
            raise OSError

    chosen = flow.using(key="k", unique="active")
    job = chosen.enqueue()
    if state != "queued":
        holdfast.run_until_idle()
    if state != "running":
        seen.append(chosen.enqueue())
    assert [(each.id, each.duplicate) for each in seen] == [(job.id, True)]


def test_a_dead_jobs_key_is_free_and_a_redrive_does_not_take_it_back(app: Holdfast) -> None:
    job = summary(app).using(key="k", unique="active")
    dead = job.enqueue("bad")
    app.run_worker(until_idle=True)
    assert dead.refresh().state == "dead"
    fresh = job.enqueue("bad")
    assert fresh.id != dead.id


def test_an_active_key_for_another_payload_is_a_conflict_and_changes_nothing(app: Holdfast) -> None:
    job = summary(app).using(key="k", unique="active")
    first = job.enqueue("ada")
    with pytest.raises(KeyConflict):
        job.enqueue("bob")
    assert [each.id for each in app.find()] == [first.id]
    app.run_worker(until_idle=True)
    assert not job.enqueue("bob").duplicate


def test_many_who_ask_at_once_get_one_active_job(app: Holdfast) -> None:
    job = summary(app).using(key="k", unique="active")
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(job.enqueue("ada").id)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert len(app.find()) == 1


def test_a_plain_key_is_taken_for_as_long_as_its_job_is_there(app: Holdfast) -> None:
    job = summary(app)
    first = job.using(key="k").enqueue("ada")
    app.run_worker(until_idle=True)
    assert job.using(key="k").enqueue("ada").id == first.id
    assert job.using(key="k", unique="active").enqueue("ada").id != first.id, "whoever asks says how long it counts"


def test_a_later_request_puts_the_waiting_one_off(holdfast: TestHoldfast) -> None:
    ran: list[str] = []
    job = summary(holdfast, ran).using(key="k", debounce=60)
    first = job.enqueue("ada")
    assert (first.available_at - holdfast.now) == timedelta(seconds=60)
    for _ in range(3):
        holdfast.advance(seconds=50)
        holdfast.run_until_idle()
        again = job.enqueue("ada")
        assert (again.id, again.duplicate) == (first.id, True)
        assert (again.available_at - holdfast.now) == timedelta(seconds=60)
    assert ran == []
    holdfast.advance(seconds=60)
    holdfast.run_until_idle()
    assert ran == ["ada"]
    assert not job.enqueue("ada").duplicate


def test_a_debounced_job_that_has_begun_makes_way_for_another(holdfast: TestHoldfast) -> None:
    made: list[Any] = []

    @holdfast.job
    def index() -> None:
        if len(made) < 2:
            made.append(chosen.enqueue())

    chosen = index.using(key="k", debounce=10)
    made.append(chosen.enqueue())
    holdfast.advance(seconds=10)
    holdfast.run_until_idle()
    assert made[0].id != made[1].id
    assert (made[0].refresh().state, made[1].refresh().state) == ("succeeded", "queued")


def test_a_debounce_works_on_every_store(app: Holdfast) -> None:
    ran: list[str] = []
    job = summary(app, ran).using(key="k", debounce=0.4)
    ids = {job.enqueue("ada").id for _ in range(20)}
    assert len(ids) == 1
    app.run_worker(until_idle=True)
    assert ran == ["ada"]
    assert job.enqueue("ada").id not in ids


def test_many_who_ask_at_once_debounce_one_job(app: Holdfast) -> None:
    job = summary(app).using(key="k", debounce=30)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(job.enqueue("ada").id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found)), len(app.find())) == (8, 1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "active"},
        {"debounce": 5},
        {"key": "k", "unique": "always"},
        {"key": "k", "unique": "active", "debounce": 5},
        {"key": "k", "debounce": 5, "run_after": 7},
        {"key": "k", "debounce": -1},
        {"trigger": "whim"},
        {"run_after": 5, "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - the mistake under test
        {"run_after": timedelta(days=366 * 101)},
    ],
)
def test_choices_that_cannot_be_are_refused(holdfast: TestHoldfast, options: dict[str, Any]) -> None:
    job = summary(holdfast)
    with pytest.raises(BadInput):
        job.using(**options)
    with pytest.raises(BadInput):
        holdfast.enqueue("summarise", {"user": "ada"}, **options)
    assert holdfast.find() == []


def test_debounced_jobs_are_not_enqueued_in_a_batch(holdfast: TestHoldfast) -> None:
    job = summary(holdfast).using(key="k", debounce=5)
    with pytest.raises(BadInput, match="one by one"):
        holdfast.enqueue_many([job.prepare("ada")])
    assert holdfast.find() == []


@pytest.mark.parametrize("trigger", ["manual", "schedule", "webhook", "file_drop"])
def test_every_job_says_what_asked_for_it(app: Holdfast, trigger: str) -> None:
    job = summary(app).using(trigger=trigger).enqueue("ada")
    assert app.get(job.id).trigger == trigger
    assert summary(Holdfast("memory://")).enqueue("ada").trigger == "manual"


def test_a_job_may_wait_for_years(app: Holdfast) -> None:
    job = summary(app)
    later, then = job.using(run_after=FAR).enqueue("ada"), datetime(2056, 5, 6, 7, 8, 9, tzinfo=UTC)
    at = job.using(run_at=then).enqueue("bob")
    app.run_worker(until_idle=True)
    assert (later.refresh().state, at.refresh().state) == ("queued", "queued")
    assert (later.available_at - later.created_at, at.available_at) == (FAR, then)
