"""Handlers that are stopped at any moment leave nothing taken that others wait for."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast import Holdfast
from holdfast.client.context import AttemptStopped
from holdfast.port.clock import Clock
from holdfast.port.shelter import SHELTER
from holdfast.port.store import Store
from holdfast.stores import open_store
from holdfast.stores.postgres import PostgresStore
from tests.workers import LONG


@contextmanager
def stopped_again_and_again(work: Callable[[], object], threads: int, times: int) -> Iterator[list[int]]:
    """Let threads work for ever, and stop one or another so many times; gives how often each has heard of it."""
    heard, ended = [0] * threads, threading.Event()
    exposed = threading.Barrier(threads + 1)

    def run(me: int) -> None:
        SHELTER.expose()
        exposed.wait(LONG)
        while not ended.is_set():
            try:
                while not ended.is_set():
                    work()
            except AttemptStopped:
                heard[me] += 1

    loud = threading.excepthook

    def quiet(told: threading.ExceptHookArgs) -> None:
        if told.exc_type is not AttemptStopped:  # a second stop may come while the first is heard, wherever that is
            loud(told)

    threading.excepthook = quiet
    crew = [threading.Thread(target=run, args=(me,)) for me in range(threads)]
    for thread in crew:
        thread.start()
    exposed.wait(LONG)
    for _ in range(times):
        SHELTER.stop(random.choice(crew).ident or 0, AttemptStopped)
        threading.Event().wait(random.uniform(0, 0.004))
    ended.set()
    for thread in crew:
        thread.join(LONG)
    threading.excepthook = loud
    assert not any(thread.is_alive() for thread in crew), "somebody waits for what nobody will give back"
    yield heard


def test_a_thread_in_shelter_hears_of_its_stop_when_it_comes_out() -> None:
    inside, told = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        SHELTER.expose()
        try:
            with SHELTER, SHELTER:
                inside.set()
                told.wait(LONG)
                seen.append("done")
            seen.append("went on")
        except AttemptStopped:
            seen.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(LONG)
    SHELTER.stop(thread.ident or 0, AttemptStopped)
    told.set()
    thread.join(LONG)
    assert seen == ["done", "stopped"]


@pytest.fixture
def exposed() -> Iterator[None]:
    """Let the main thread be stopped, for as long as a test takes."""
    SHELTER.expose()
    yield
    SHELTER.exposed.discard(threading.get_ident())


@pytest.mark.usefixtures("exposed")
def test_a_stop_that_is_taken_back_in_time_is_not_heard() -> None:
    with SHELTER:
        SHELTER.stop(threading.get_ident(), AttemptStopped)
        SHELTER.spare(threading.get_ident())


@pytest.mark.usefixtures("exposed")
def test_what_fails_in_shelter_is_the_reason_of_what_is_heard() -> None:
    with pytest.raises(AttemptStopped) as heard, SHELTER:  # noqa: PT012
        SHELTER.stop(threading.get_ident(), AttemptStopped)
        raise OSError
    assert isinstance(heard.value.__cause__, OSError)


def test_those_who_enqueue_can_be_stopped_at_any_moment_and_others_go_on(app: Holdfast) -> None:
    @app.job
    def work() -> None: ...

    with stopped_again_and_again(work.enqueue, threads=8, times=300) as heard:
        assert sum(heard) > 50
    before = app.counts()["queued"]
    assert work.enqueue().state == "queued"
    assert app.counts()["queued"] == before + 1
    assert list(app.store.check()) == []


def test_a_stop_that_comes_while_the_store_is_opened_is_heard_once_it_is_open(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, told = threading.Event(), threading.Event()
    seen: list[str] = []

    def opened_slowly(url: str, clock: Clock | None = None) -> Store:
        opening.set()
        told.wait(LONG)
        return open_store(url, clock)

    def work() -> None:
        try:
            app.counts()
        except AttemptStopped:
            seen.append("stopped")

    monkeypatch.setattr("holdfast.app.open_store", opened_slowly)
    thread = threading.Thread(target=work)
    thread.start()
    assert opening.wait(LONG)
    SHELTER.stop(thread.ident or 0, AttemptStopped)
    told.set()
    thread.join(LONG)
    monkeypatch.undo()
    assert seen == ["stopped"]
    assert app._opened is not None
    assert app.counts().total == 0


def test_no_connection_is_lost_with_those_who_are_stopped_while_they_wait_for_one(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:

        def ask() -> None:
            store.pool.run(lambda db: db.execute("SELECT pg_sleep(0.002)"), writes=False)

        with stopped_again_and_again(ask, threads=20, times=400) as heard:
            assert sum(heard) > 50
        meeting = threading.Barrier(6)
        met = [threading.Thread(target=store.pool.run, args=(lambda _: meeting.wait(LONG),)) for _ in range(6)]
        begun = time.monotonic()
        for thread in met:
            thread.start()
        for thread in met:
            thread.join(LONG)
        assert not meeting.broken
        assert time.monotonic() - begun < LONG / 2
