"""Callers that enqueue at the same time share commits, and nobody suffers for anybody else."""

import asyncio
import threading
import uuid
from collections import deque
from typing import Any

import pytest

from holdfast import Holdfast, Job, JobFunction, KeyConflict


@pytest.fixture
def add(app: Holdfast) -> JobFunction[[int], int]:
    @app.job
    def add(a: int) -> int:
        return a

    return add


class Line(deque[Any]):
    """The line of those who wait for the next commit, telling when somebody joins it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = threading.Semaphore(0)

    def append(self, ticket: Any) -> None:
        super().append(ticket)
        self.arrivals.release()


class Gate:
    """Holds up a store's first insert, and counts them."""

    def __init__(self, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        insert = app.store.insert

        def gated(groups: Any) -> Any:
            self.sizes.append(len(groups))
            self.entered.set()
            assert self.open.wait(10)
            return insert(groups)

        monkeypatch.setattr(app.store, "insert", gated)


def test_concurrent_enqueues_of_one_loop_share_commits(
    app: Holdfast, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app, monkeypatch)

    async def enqueue() -> list[Job[int]]:
        tasks = [asyncio.create_task(add.aenqueue(n)) for n in range(50)]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(*tasks)

    jobs = asyncio.run(enqueue())
    assert [job.payload for job in jobs] == [{"a": n} for n in range(50)]
    assert len({job.id for job in jobs}) == app.counts()["queued"] == 50
    assert len(gate.sizes) <= 2
    assert sum(gate.sizes) == 50


def test_concurrent_enqueues_of_many_threads_share_commits(
    app: Holdfast, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app, monkeypatch)
    ids: list[uuid.UUID] = []
    conflicts: list[KeyConflict] = []

    def enqueue(n: int) -> None:
        try:
            ids.append(add.using(key=f"pair-{n // 2}").enqueue(n).id)
        except KeyConflict as error:
            conflicts.append(error)

    line = Line()
    monkeypatch.setattr(app._inserting(), "_pending", line)
    first = threading.Thread(target=enqueue, args=(0,))
    first.start()
    assert gate.entered.wait(10)
    others = [threading.Thread(target=enqueue, args=(n,)) for n in range(1, 16)]
    for thread in others:
        thread.start()
    for _ in others:
        assert line.arrivals.acquire(timeout=10)
    gate.open.set()
    for thread in (first, *others):
        thread.join(10)
    assert gate.sizes == [1, 15]
    assert (len(set(ids)), len(conflicts), app.counts()["queued"]) == (8, 8, 8)


def test_a_store_that_fails_tells_everyone_who_shared_the_commit(
    app: Holdfast, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(groups: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(app.store, "insert", broken)

    async def enqueue() -> list[Job[int] | BaseException]:
        return await asyncio.gather(*(add.aenqueue(n) for n in range(5)), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(enqueue())] == [OSError] * 5
    monkeypatch.undo()
    assert add.enqueue(1).state == "queued"


def test_a_loop_that_is_gone_does_not_hold_up_the_others(
    app: Holdfast, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app, monkeypatch)
    jobs: list[Job[int]] = []
    leader = threading.Thread(target=lambda: jobs.append(add.enqueue(1)))
    leader.start()
    assert gate.entered.wait(10)

    async def abandon() -> None:
        waiting = asyncio.create_task(add.aenqueue(2))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(abandon())
    gate.open.set()
    leader.join(10)
    jobs.append(add.enqueue(3))
    assert [job.state for job in jobs] == ["queued", "queued"]
    assert app.counts()["queued"] == 3


class Latch(dict[Any, Any]):
    """A turn that lets one thread ask for it the second time only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.late: threading.Thread | None = None
        self.asked, self.go = threading.Event(), threading.Event()
        self._times = 0

    def setdefault(self, key: Any, value: Any = None) -> Any:
        if threading.current_thread() is self.late:
            self._times += 1
            if self._times == 2:
                self.asked.set()
                assert self.go.wait(10)
        return super().setdefault(key, value)


def test_a_caller_that_was_written_for_before_it_took_the_turn_gives_it_up(
    app: Holdfast, add: JobFunction[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, turn, line = Gate(app, monkeypatch), Latch(), Line()
    monkeypatch.setattr(app._inserting(), "_pending", line)
    monkeypatch.setattr(app._inserting(), "_turn", turn)
    threads = [threading.Thread(target=add.enqueue, args=(n,), daemon=True) for n in range(3)]
    turn.late = threads[2]
    for n, thread in enumerate(threads):  # the first writes, the second waits, the third is held up before it waits
        thread.start()
        assert gate.entered.wait(10) if n == 0 else line.arrivals.acquire(timeout=10)
    assert turn.asked.wait(10)
    gate.open.set()
    for thread in threads[:2]:
        thread.join(10)
    assert gate.sizes == [1, 2]
    turn.go.set()
    threads[2].join(10)
    again = threading.Thread(target=add.enqueue, args=(3,), daemon=True)
    again.start()
    again.join(10)
    assert not again.is_alive()
    assert app.counts()["queued"] == 4
