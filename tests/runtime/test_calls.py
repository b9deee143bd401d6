"""A worker that rests is called by its store: whoever hears the call fetches the job, and it is not lost on the way."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from holdfast import Holdfast, Retry
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.runtime.service import Service
from holdfast.stores.postgres import PostgresStore
from tests.servers import until
from tests.workers import LONG, Working

LISTENER = "holdfast-listen"
Exchanged = tuple[list[Answer], list[JobRecord]]


@pytest.fixture
def app(postgres_url: str) -> Iterator[Holdfast]:
    with closing(Holdfast(postgres_url, heartbeat=0.2)) as app:
        yield app


def rests(service: Service) -> bool:
    return service.worker._resting


def test_whoever_hears_the_call_fetches_the_job(
    app: Holdfast, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: dict[str, str] = {}
    exchange = PostgresStore.exchange

    def noted(store: PostgresStore, moves: Sequence[Move], want: Claim) -> Exchanged:
        answers, claimed = exchange(store, moves, want)
        fetched.update({job.id: threading.current_thread().name for job in claimed})
        return answers, claimed

    @app.job
    def work(n: int) -> int:
        return n

    monkeypatch.setattr(PostgresStore, "exchange", noted)
    with working(app) as service:
        until(lambda: rests(service), "the worker rests")
        job = work.enqueue(7)
        assert job.result(LONG) == 7
        assert fetched[str(job.id)] == LISTENER
        until(lambda: rests(service), "the worker rests")
        many = app.enqueue_many([work.prepare(n) for n in range(200)])
        assert [each.result(LONG) for each in many] == list(range(200))


def test_what_a_call_is_bringing_while_the_worker_leaves_goes_back(
    app: Holdfast, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, go_on = threading.Event(), threading.Event()
    exchange = PostgresStore.exchange

    def held_up(store: PostgresStore, moves: Sequence[Move], want: Claim) -> Exchanged:
        done = exchange(store, moves, want)
        if threading.current_thread().name == LISTENER and done[1]:
            under_way.set()
            assert go_on.wait(LONG)
        return done

    @app.job
    def work() -> None: ...

    with working(app) as service:
        until(lambda: rests(service), "the worker rests")
        monkeypatch.setattr(PostgresStore, "exchange", held_up)
        job = work.enqueue()
        assert under_way.wait(LONG)
        service.stop()
        until(lambda: service.worker.crew.closing, "the worker leaves")
        go_on.set()
    assert (job.refresh().state, job.attempt) == ("retrying", 0)


def test_what_goes_wrong_with_a_call_ends_the_worker(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = PostgresStore.exchange

    def broken(store: PostgresStore, moves: Sequence[Move], want: Claim) -> Exchanged:
        if threading.current_thread().name == LISTENER:
            raise ZeroDivisionError
        return exchange(store, moves, want)

    @app.job
    def work() -> None: ...

    monkeypatch.setattr(PostgresStore, "exchange", broken)
    service, ended = app.service(), list[BaseException]()

    def run() -> None:
        try:
            service.run()
        except ZeroDivisionError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: rests(service), "the worker rests")
    work.enqueue()
    thread.join(LONG)
    assert len(ended) == 1


def test_whoever_heard_the_call_begins_with_the_job_while_another_listens(app: Holdfast, working: Working) -> None:
    ran_in, go_on, held = dict[str, str](), threading.Event(), threading.Event()

    @app.job
    def note(name: str, wait: bool) -> None:
        ran_in[name] = threading.current_thread().name
        if wait:
            held.set()
            assert go_on.wait(LONG)

    with working(app) as service:
        until(lambda: rests(service), "the worker rests")
        slow = note.enqueue("slow", wait=True)
        assert held.wait(LONG)
        for n in range(3):
            note.enqueue(str(n), wait=False).result(LONG)
        assert slow.refresh().state == "running"
        go_on.set()
        slow.result(LONG)
        until(lambda: rests(service), "the worker rests")
        note.enqueue("last", wait=False).result(LONG)
    assert ran_in["slow"] == ran_in["last"] == LISTENER
    assert not {ran_in[str(n)] for n in range(3)} & {LISTENER}, "or nobody would have listened"


def test_a_job_that_is_begun_by_whoever_heard_of_it_takes_a_place(app: Holdfast, working: Working) -> None:
    at_once, most, lock, go_on = 0, 0, threading.Lock(), threading.Event()

    @app.job
    def note() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        assert go_on.wait(LONG)
        with lock:
            at_once -= 1

    with working(app, concurrency=1) as service:
        until(lambda: rests(service), "the worker rests")
        jobs = [note.enqueue()]
        until(lambda: at_once == 1, "the first has begun")
        jobs += [note.enqueue() for _ in range(3)]
        go_on.set()
        for job in jobs:
            job.result(LONG)
    assert most == 1


@pytest.mark.parametrize("stopped", ["cancelled", "timeout"])
def test_whoever_heard_the_call_can_be_stopped_and_goes_on_listening(
    app: Holdfast, working: Working, stopped: str
) -> None:
    begun, ran_in = threading.Event(), list[str]()

    @app.job(timeout=0.2 if stopped == "timeout" else 60, retry=Retry.fixed(60, retries=1))
    def turn() -> None:
        ran_in.append(threading.current_thread().name)
        begun.set()
        while True:
            time.sleep(0.01)

    @app.job
    def note() -> None:
        ran_in.append(threading.current_thread().name)

    with working(app) as service:
        until(lambda: rests(service), "the worker rests")
        job = turn.enqueue()
        assert begun.wait(LONG)
        if stopped == "cancelled":
            job.cancel()
        until(lambda: job.refresh().state in ("cancelled", "retrying"), "it was stopped")
        for _ in range(4):
            until(lambda: rests(service), "the worker rests")
            note.enqueue().result(LONG)
    assert ran_in == [LISTENER] * 5


def test_a_handler_that_never_stops_keeps_nobody_from_listening(app: Holdfast, working: Working) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.job(timeout=0.1, retry=Retry.fixed(60, retries=1))
    def stuck() -> None:
        begun.set()
        go_on.wait(LONG)  # in C, where no exception of Python's reaches it

    @app.job
    def note(n: int) -> int:
        return n

    with working(app, concurrency=1) as service:
        until(lambda: rests(service), "the worker rests")
        job = stuck.enqueue()
        assert begun.wait(LONG)
        until(lambda: job.refresh().state == "retrying", "it was given up")
        assert [note.enqueue(n).result(LONG) for n in range(3)] == [0, 1, 2]
        go_on.set()
