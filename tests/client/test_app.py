"""What an application can be asked and told, on each store."""

import asyncio
import math
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import (
    BadInput,
    Context,
    Holdfast,
    Job,
    JobCancelled,
    JobDead,
    JobFunction,
    JobNotFound,
    KeyConflict,
    Permanent,
    Prepared,
    ResultTimeout,
    Retry,
)
from holdfast.domain.job import JobRecord, NewJob, State
from holdfast.port.store import Claim, WorkerRecord
from holdfast.runtime import upkeep
from holdfast.testing.clock import ManualClock

NOBODY = uuid.UUID(int=7)
NONE = {state.value: 0 for state in State}


class Point(BaseModel):
    x: int
    y: int


@pytest.fixture
def add(app: Holdfast) -> JobFunction[..., int]:
    @app.job
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


@pytest.fixture
def doomed(app: Holdfast) -> JobFunction[..., None]:
    @app.job
    def doomed(code: str = "hopeless") -> None:
        raise Permanent("no such document", code=code)

    return doomed


def run(app: Holdfast, job: Job[Any]) -> Job[Any]:
    """Deliver a job once; give it as it is then."""
    assert app.process(app.envelope(job.id)) == "claimed"
    return job.refresh()


def claim(app: Holdfast, job: Job[Any]) -> JobRecord:
    """Take a job as a worker would, and keep it."""
    (claimed,) = app.store.claim(Claim("ada", "lease", app.settings.lease, 1, id=str(job.id)))
    return claimed


def test_many_jobs_are_stored_in_the_order_given(app: Holdfast, add: JobFunction[..., int]) -> None:
    jobs = app.enqueue_many(add.prepare(n) for n in range(500))
    assert [job.payload for job in jobs] == [{"a": n} for n in range(500)]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert app.counts() == {**NONE, "queued": 500}
    assert app.enqueue_many([]) == []


def test_many_jobs_are_stored_all_or_none(app: Holdfast, add: JobFunction[..., int]) -> None:
    add.using(key="taken").enqueue(1)
    batch = [add.prepare(1), add.using(key="free").prepare(2), add.using(key="taken").prepare(2), add.prepare(3)]
    with pytest.raises(KeyConflict, match="The key 'taken' already belongs to job"):
        app.enqueue_many(batch)
    with pytest.raises(KeyConflict, match="The key 'twice' already belongs to job"):
        app.enqueue_many([add.using(key="twice").prepare(1), add.using(key="twice").prepare(2)])
    assert app.counts().total == 1
    assert not add.using(key="free").enqueue(3).duplicate
    assert not add.using(key="twice").enqueue(3).duplicate


def test_a_duplicate_among_many_stands_for_the_first(app: Holdfast, add: JobFunction[..., int]) -> None:
    first = add.using(key="a").enqueue(1)
    keyed = [add.using(key=key).prepare(1) for key in ("b", "a", "b")]
    jobs = app.enqueue_many([*keyed, add.prepare(1)])
    assert [job.duplicate for job in jobs] == [False, True, True, False]
    assert jobs[1].id == first.id
    assert jobs[2].id == jobs[0].id
    assert app.counts()["queued"] == 3


def test_only_prepared_jobs_can_be_stored_in_one_batch(app: Holdfast, add: JobFunction[..., int]) -> None:
    with pytest.raises(BadInput, match="enqueue_many takes prepared jobs"):
        app.enqueue_many([add.prepare(1), add.enqueue(1)])  # type: ignore[list-item]
    with pytest.raises(BadInput, match="enqueue_many takes prepared jobs"):
        app.enqueue_many(None)  # type: ignore[arg-type]
    assert app.counts().total == 1


def test_a_prepared_job_may_be_stored_more_than_once(app: Holdfast, add: JobFunction[..., int]) -> None:
    prepared = add.prepare(1)
    first, second = app.enqueue_many([prepared, prepared])
    assert first.id != second.id


def test_a_job_is_found_by_its_id(app: Holdfast, add: JobFunction[..., int]) -> None:
    job = add.using(tenant="acme").enqueue(1)
    for id_ in (job.id, str(job.id), str(job.id).upper(), job.id.hex):
        assert app.get(id_) == job
        assert app.get(id_).record == job.record
    for ask in (app.get, app.cancel, app.redrive, app.explain, app.attempts, app.envelope):
        with pytest.raises(JobNotFound, match=f"There is no job {NOBODY}; it may have been purged"):
            ask(NOBODY)
        for wrong in ("7", "", 7, b""):
            with pytest.raises(BadInput, match="is not a job id; job ids are UUIDs"):
                ask(wrong)  # type: ignore[arg-type]


def test_jobs_are_found_by_a_filter_newest_first(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    plain = add.enqueue(1)
    mail = add.using(queue="mail", key="k").enqueue(2)
    acme = add.using(tenant="acme").enqueue(3)
    dead = run(app, doomed.enqueue("gone"))
    done = run(app, add.enqueue(4))
    assert app.find() == [done, dead, acme, mail, plain]
    assert app.find(state="queued") == [acme, mail, plain]
    assert app.find(state="dead") == app.find(kind="doomed") == app.find(error_code="gone") == [dead]
    assert app.find(queue="mail") == app.find(key="k") == [mail]
    assert app.find(tenant="acme") == [acme]
    assert app.find(tenant="", state="queued", kind="add", queue="default") == [plain]
    assert app.find(state="cancelled") == app.find(kind="other") == []
    assert app.find(limit=2) == [done, dead]
    assert app.find(limit=2, before=dead.id) == [acme, mail]
    assert app.find(before=str(plain.id)) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"state": "failed"}, "'failed' is not a state; the states are created, queued, running"),
        ({"limit": 0}, "limit is a whole number from 1 to 1000, not 0"),
        ({"limit": 1001}, "limit is a whole number from 1 to 1000, not 1001"),
        ({"limit": True}, "limit is a whole number from 1 to 1000, not True"),
        ({"before": "last"}, "'last' is not a job id"),
        *(({name: 5}, f"{name}= takes text, not 5") for name in ("kind", "queue", "tenant", "error_code", "key")),
        ({"key": "a\0b"}, r"key= takes text, not 'a\\x00b'"),
        ({"kind": "\udcff"}, r"kind= takes text, not '\\udcff'"),
    ],
    ids=repr,
)
def test_a_filter_that_makes_no_sense_is_refused(app: Holdfast, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        app.find(**wrong)


def test_jobs_are_counted_by_state_and_queue(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    assert (app.counts(), app.counts().queues) == (NONE, {})
    run(app, doomed.enqueue())
    run(app, add.enqueue(1))
    app.cancel(add.enqueue(1).id)
    claim(app, add.enqueue(1))
    add.using(queue="mail").enqueue(1)
    counts = app.counts()
    assert counts == {
        "created": 0,
        "queued": 1,
        "running": 1,
        "retrying": 0,
        "succeeded": 1,
        "dead": 1,
        "cancelled": 1,
    }
    assert counts.queues["mail"] == {**NONE, "queued": 1}
    assert (counts.total, counts.unfinished) == (5, 2)


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_by_request(
    app: Holdfast, add: JobFunction[..., int]
) -> None:
    waiting, running = add.enqueue(1), add.enqueue(2)
    claim(app, running)
    assert (waiting.cancel().state, app.cancel(running.id).state) == ("cancelled", "running")
    assert app.get(running.id).record.cancel_requested
    assert app.process(app.envelope(waiting.id)) == "no-op-terminal"
    version = app.get(running.id).version
    assert app.cancel(running.id).version == version


@pytest.mark.parametrize("kind", ["add", "doomed"])
def test_what_is_finished_stays_as_it_is_when_it_is_cancelled(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None], kind: str
) -> None:
    job = run(app, add.enqueue(1) if kind == "add" else doomed.enqueue())
    assert app.cancel(job.id).record == job.record


def test_a_handler_that_is_cancelled_while_it_runs_and_then_fails_is_cancelled(app: Holdfast) -> None:
    @app.job
    def cancelled(ctx: Context) -> None:
        app.cancel(ctx.job_id)
        raise TimeoutError

    assert run(app, cancelled.enqueue()).state == "cancelled"


def test_a_dead_job_runs_again_as_a_new_generation(app: Holdfast, doomed: JobFunction[..., None]) -> None:
    job = run(app, doomed.enqueue())
    again = app.redrive(job.id)
    assert (again.state, again.generation, again.attempt, again.failure, again.cause) == ("queued", 2, 0, None, None)
    assert app.redrive(job.id).record == again.record
    assert run(app, again).state == "dead"
    assert job.redrive().generation == 3
    assert [attempt.generation for attempt in app.attempts(job.id)] == [1, 2]


@pytest.mark.parametrize(
    "wrong", [{"kind": 5}, {"queue": b"x"}, {"limit": -1}, {"limit": "all"}, {"limit": True}], ids=repr
)
def test_a_filter_of_dead_jobs_that_makes_no_sense_is_refused(app: Holdfast, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))}.* (takes text|is a whole number of 0 or more), not"):
        app.redrive(**wrong)


def test_an_id_that_is_none_by_mistake_does_not_stand_for_every_dead_job(
    app: Holdfast, doomed: JobFunction[..., None]
) -> None:
    job = run(app, doomed.enqueue())
    with pytest.raises(BadInput, match="None is not a job id"):
        app.redrive(None)  # type: ignore[call-overload]
    assert job.refresh().state == "dead"


def test_dead_jobs_run_again_by_a_filter(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    for code in ("timeout", "timeout", "gone"):
        run(app, doomed.enqueue(code))
    acme = run(app, doomed.using(tenant="acme", queue="mail").enqueue("gone"))
    alive = add.enqueue(1)
    assert app.redrive(kind="add") == 0
    assert app.redrive(error_code="timeout", limit=1) == 1
    assert app.redrive(kind="doomed", error_code="timeout") == 1
    assert app.redrive(tenant="acme", queue="mail") == 1
    assert app.get(acme.id).generation == 2
    assert app.redrive() == 1
    assert app.redrive() == 0
    assert (app.counts()["dead"], app.get(alive.id).generation) == (0, 1)


def test_a_paused_queue_gives_nothing_until_it_is_resumed(app: Holdfast, add: JobFunction[..., int]) -> None:
    job = add.using(queue="mail").enqueue(1)
    app.pause("mail")
    app.pause("mail")
    assert app.paused() == {"mail"}
    assert app.process(app.envelope(job.id)) == "already-claimed"
    app.resume("mail")
    app.resume("mail")
    assert app.paused() == frozenset()
    assert run(app, job).state == "succeeded"
    for call in (app.pause, app.resume):
        for wrong in ("", "q" * 256):
            with pytest.raises(BadInput, match="A queue is 1 to 255 printable characters"):
                call(wrong)
        with pytest.raises(BadInput, match="Name one queue, tenant= or kind= at a time"):
            call()


def test_the_attempts_tell_a_jobs_whole_story(app: Holdfast, clock: ManualClock) -> None:
    @app.job(retry=Retry.fixed(1, retries=3))
    def story(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TimeoutError("secret")

    job = story.enqueue()
    assert app.attempts(job.id) == []
    run(app, job)
    clock.advance(seconds=1)
    claim(app, job)
    assert [(a.attempt, a.outcome, a.code) for a in app.attempts(job.id)] == [
        (1, "fail", "timeout_error"),
        (2, "running", None),
    ]
    clock.advance(seconds=15)
    assert upkeep.reap(app.store, app.settings) == 1
    run(app, job)
    failed, lost, done = app.attempts(job.id)
    assert [(a.token, a.attempt, a.outcome, a.code) for a in (failed, lost, done)] == [
        (1, 1, "fail", "timeout_error"),
        (2, 2, "reap", "lease_expired"),
        (3, 3, "complete", None),
    ]
    assert lost.owner == "ada"
    assert "secret" in (failed.traceback or "")
    assert "secret" not in (failed.message or "")
    assert done.ended_at == job.record.finished_at


def test_an_explanation_names_each_reason(
    app: Holdfast, clock: ManualClock, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    @app.job(retry=Retry.fixed(60))
    def flaky() -> None:
        raise TimeoutError

    def why(job: Job[Any]) -> str:
        told = app.explain(job.id)
        assert str(told) == told.text == job.explain().text
        assert told.text.endswith(".")
        return told.reason

    def worker(kinds: tuple[str, ...]) -> None:
        now = app.store.now()
        app.store.enlist(WorkerRecord("w", "host", 1, ("default",), kinds, 20, now, now, now + 15_000_000, 3))

    waiting = add.enqueue(1)
    assert why(waiting) == "no-worker"
    worker(("other",))
    assert why(waiting) == "unknown-kind"
    worker(("add",))
    assert why(waiting) == "waiting"
    assert app.explain(waiting.id).details == {"queued": 1, "running": 3, "workers": 1}
    assert why(add.using(queue="mail").enqueue(1)) == "no-worker"
    assert why(add.using(run_after=timedelta(hours=3)).enqueue(1)) == "not-due"
    assert "3.0 hours" in add.using(run_after=timedelta(hours=3)).enqueue(1).explain().text
    retrying = run(app, flaky.enqueue())
    assert why(retrying) == "backoff"
    assert "last: timeout_error); it runs again in 60.0 seconds" in retrying.explain().text
    app.pause("default")
    assert why(waiting) == "paused"
    app.resume("default")
    (created,) = app.enqueue_many([Prepared(NewJob("add", "{}", state=State.CREATED))])
    assert why(created) == "not-submitted"
    claim(app, waiting)
    assert why(waiting) == "running"
    waiting.cancel()
    assert why(waiting) == "cancelling"
    clock.advance(seconds=15)
    assert why(waiting) == "lease-expired"
    assert why(run(app, add.enqueue(1))) == "succeeded"
    assert why(add.enqueue(1).cancel()) == "cancelled"
    dead = run(app, doomed.enqueue())
    assert why(dead) == "dead"
    assert app.explain(dead.id).details == {"cause": "rejected", "code": "hopeless"}


@pytest.mark.parametrize(
    "value",
    [None, 0, -1.5, True, "", "naïve", [1, [2]], {"a": {"b": None}}, Point(x=1, y=2), [Point(x=1, y=2)]],
    ids=repr,
)
def test_a_result_comes_back_as_its_type(app: Holdfast, value: Any) -> None:
    expected: Any = list[Point] if value == [Point(x=1, y=2)] else type(value)

    def give() -> Any:
        return value

    give.__annotations__["return"] = expected
    job = run(app, app.job(give).enqueue())
    assert job.result() == value
    assert type(job.result()) is type(value)


def test_a_result_of_an_unknown_kind_is_plain(app: Holdfast, clock: ManualClock, add: JobFunction[..., int]) -> None:
    job = run(app, add.enqueue(1, 2))
    app.registry = type(app.registry)()
    assert app.get(job.id).result() == 3


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Permanent, "permanent"),
        (Permanent("No such page."), "permanent, No such page"),
        (Permanent("no", code="c"), "c, no"),
    ],
)
def test_why_a_job_is_dead_is_one_sentence(app: Holdfast, raised: Any, said: str) -> None:
    def doom() -> None:
        raise raised

    with pytest.raises(JobDead) as caught:
        run(app, app.job(doom).enqueue()).result()
    assert str(caught.value).endswith(f"is dead (rejected): {said}.")


def test_a_job_that_did_not_succeed_has_no_result(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    dead = run(app, doomed.enqueue())
    with pytest.raises(JobDead, match=rf"Job {dead.id} is dead \(rejected\): hopeless, no such document\."):
        dead.result()
    cancelled = add.enqueue(1).cancel()
    with pytest.raises(JobCancelled, match=f"Job {cancelled.id} was cancelled"):
        cancelled.result(timeout=1)
    waiting = add.enqueue(1)
    for timeout in (0, 0.01):
        with pytest.raises(ResultTimeout, match=rf"Job {waiting.id} is still queued after {timeout} s\.") as caught:
            waiting.result(timeout=timeout)
        assert isinstance(caught.value, TimeoutError)


def test_a_result_is_waited_for(app: Holdfast, add: JobFunction[..., int]) -> None:
    job = add.enqueue(1, 2)
    worker = threading.Thread(target=app.process, args=(app.envelope(job.id),))
    worker.start()
    assert job.result(timeout=10) == 3
    worker.join()


def test_a_wait_for_a_result_may_be_a_timedelta_and_nothing_but_a_time(
    app: Holdfast, add: JobFunction[..., int]
) -> None:
    waiting = add.enqueue(1)
    for timeout in (timedelta(milliseconds=10), timedelta(days=-1), -1):
        with pytest.raises(ResultTimeout, match="is still queued after"):
            waiting.result(timeout)
    for wrong in (math.nan, True, "5"):
        with pytest.raises(BadInput, match=r"timeout must be a number of seconds or a timedelta, not"):
            waiting.result(wrong)  # type: ignore[arg-type]


def test_many_tasks_that_wait_for_results_hold_up_no_other_call(app: Holdfast, add: JobFunction[..., int]) -> None:
    async def calls() -> None:
        jobs = await app.aenqueue_many([add.prepare(n) for n in range(60)])
        waits = [asyncio.create_task(job.aresult()) for job in jobs]
        await asyncio.sleep(0)
        assert (await app.acancel(jobs[0].id)).state == "cancelled"
        await app.aprocess(await app.aenvelope(jobs[1].id))
        assert await waits[1] == 1
        with pytest.raises(JobCancelled):
            await waits[0]
        for wait in waits:
            wait.cancel()

    asyncio.run(asyncio.wait_for(calls(), 30))  # ends only if no wait that was given up keeps its thread


def test_a_handle_shows_what_was_known_until_it_is_refreshed(app: Holdfast, add: JobFunction[..., int]) -> None:
    job, same = add.enqueue(1), None
    assert (job.started_at, job.finished_at, job.purge_at, job.lease, job.failure) == (None,) * 5
    same = app.get(job.id)
    app.process(app.envelope(job.id))
    assert (job.state, same.state) == ("queued", "queued")
    assert job.refresh() is job
    assert (job.state, job.attempt, job.version) == ("succeeded", 1, 3)
    assert (job == same, hash(job) == hash(same), job == job.id) == (True, True, False)
    assert repr(job) == f"<Job {job.id} add succeeded attempt 1>"
    assert None not in {job.started_at, job.finished_at, job.purge_at}


def test_every_call_has_an_asynchronous_twin(
    app: Holdfast, add: JobFunction[..., int], doomed: JobFunction[..., None]
) -> None:
    async def calls() -> None:
        job = await add.aenqueue(1, 2)
        by_name = await app.aenqueue("add", {"a": 5}, key="k")
        keyed = await add.using(key="k").aenqueue(5)
        assert (keyed.duplicate, keyed.id) == (True, by_name.id)
        many = await app.aenqueue_many([add.prepare(n) for n in range(3)])
        assert await app.aget(job.id) == job
        assert await app.afind(state="queued") == [*reversed(many), by_name, job]
        assert (await app.acounts())["queued"] == 5
        assert (await app.aexplain(job.id)).reason == (await job.aexplain()).reason == "no-worker"
        assert await app.aprocess(await app.aenvelope(job.id)) == "claimed"
        assert await job.aresult(timeout=5) == 3
        assert (await job.arefresh()).state == "succeeded"
        assert len(await app.aattempts(job.id)) == 1
        assert (await app.acancel(many[0].id)).state == (await many[1].acancel()).state == "cancelled"
        dead = await doomed.aenqueue()
        await app.aprocess(await app.aenvelope(dead.id))
        assert (await dead.aredrive()).generation == 2
        await app.aprocess(await app.aenvelope(dead.id))
        assert await app.aredrive(kind="doomed") == 1
        await app.apause("mail")
        assert await app.apaused() == {"mail"}
        await app.aresume("mail")
        with pytest.raises(KeyConflict):
            await add.using(key="k").aenqueue(6)
        with pytest.raises(JobNotFound):
            await app.aget(NOBODY)

    asyncio.run(calls())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queues": "mail"}, r"queues takes a list of names, not the text 'mail'; write queues=\['mail'\]"),
        ({"queues": []}, "queues is empty; leave it out to serve every queue"),
        ({"queues": [""]}, "A queue is 1 to 255 printable characters"),
        (
            {"queues": ["*"]},
            r"'\*' stands for all queues, and is the name of none; leave queues out to serve every queue",
        ),
        ({"queues": {"mail": 0}}, "The queue 'mail' may run a whole number of 1 or more jobs at once, not 0"),
        ({"concurrency": 0}, "concurrency is a whole number of 1 or more, and at most 100,000, not 0"),
        ({"concurrency": 10**9}, "and at most 100,000, not 1000000000"),
        ({"concurrency": 1.5}, "concurrency is a whole number of 1 or more, and at most 100,000, not 1.5"),
    ],
    ids=repr,
)
def test_a_worker_is_asked_for_in_a_way_that_makes_sense(app: Holdfast, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        app.service(**wrong)
