"""A worker that rests is called by its store: whoever hears the call fetches the job, and it is not lost on the way."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from holdfast import Holdfast
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
    with closing(Holdfast(postgres_url)) as app:
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
