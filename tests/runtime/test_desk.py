"""Pipelines that wait for their steps to be recorded: how many share a commit, and how many begin meanwhile."""

from collections.abc import Sequence

from holdfast.domain import lifecycle
from holdfast.domain.job import NewJob
from holdfast.domain.moments import MINUTE
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Claim
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.desk import Desk
from holdfast.stores.memory import MemoryStore

MOST = 4
"""How many may run at once."""


class WatchedStore(MemoryStore):
    """A store that looks, in the middle of each commit, whether another pipeline may begin."""

    desk: Desk

    def __init__(self) -> None:
        super().__init__()
        self.room: list[bool] = []

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        self.room.append(self.desk.room(MOST))
        return super().commit(moves)


def waiting(pipelines: int, others: int = 0) -> tuple[Desk, WatchedStore]:
    """Give a desk at which so many pipelines wait, beside others that run."""
    store = WatchedStore()
    store.desk = desk = Desk(store)
    store.insert([[(f"job-{number}", NewJob("echo", "1")) for number in range(pipelines + others)]])
    for number, job in enumerate(store.claim(Claim("me", "lease", MINUTE, pipelines + others))):
        attempt = Attempt(job, None, 0.0)
        desk.begin(attempt)
        if number < pipelines:
            desk.leave(attempt, lifecycle.checkpoint(job, "a", "1"))
    return desk, store


def test_few_pipelines_share_one_commit() -> None:
    desk, store = waiting(MOST)
    assert desk.flush(MOST)
    assert [attempt.answer for attempt in desk.answered] == [Answer.OK] * MOST
    assert not desk.flush(MOST)
    assert len(store.room) == 1


def test_a_commit_takes_half_of_many_pipelines_so_that_the_others_can_run_meanwhile() -> None:
    desk, _ = waiting(12)
    assert desk.flush(MOST)
    assert len(desk.answered) == 6
    assert desk.calls
    assert desk.flush(MOST)
    assert len(desk.answered) == 12
    assert not desk.calls


def test_others_begin_while_many_wait_for_the_disk_and_only_then() -> None:
    desk, store = waiting(MOST)
    assert not desk.room(MOST)
    desk.flush(MOST)
    assert store.room == [True]
    assert not desk.room(MOST)


def test_no_others_begin_while_most_pipelines_run() -> None:
    desk, store = waiting(1, others=MOST - 1)
    desk.flush(MOST)
    assert store.room == [False]


def test_there_is_an_end_to_how_many_begin_while_the_disk_is_slow() -> None:
    desk, store = waiting(3 * MOST)
    desk.flush(MOST)
    assert store.room == [False]
