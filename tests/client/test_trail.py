"""The trail: what was done is told as it was, newest first, and for 90 days."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import BadInput, Holdfast
from holdfast.client.trail import KEPT, Deed, Trail
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def trail(store: MemoryStore) -> Trail:
    return Trail(lambda: store)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as opened:
        yield opened


def test_what_was_done_is_listed_newest_first(trail: Trail, clock: ManualClock) -> None:
    first = trail.record("ada", "queue.pause", "mail")
    second = trail.record("bob (t1)", "job.cancel", "42", "acme", {"state": "running", "n": [1, None, "ü\n"]})
    assert trail.list() == [second, first]
    assert first == Deed(first.id, clock.now(), "ada", "queue.pause", "mail", None, {})
    assert (second.tenant, second.detail) == ("acme", {"state": "running", "n": [1, None, "ü\n"]})


def test_a_list_goes_on_where_the_page_before_ended(trail: Trail) -> None:
    deeds = [trail.record("ada", "did", str(number)) for number in range(7)][::-1]
    seen: list[Deed] = []
    while page := trail.list(3, seen[-1].id if seen else None):
        seen += page
    assert seen == deeds


@pytest.mark.parametrize("limit", [0, -1, 1_001, True, "5"])
def test_a_page_has_its_limits(trail: Trail, limit: int) -> None:
    with pytest.raises(BadInput, match="limit is a whole number from 1 to 1000"):
        trail.list(limit)


def test_it_is_kept_for_ninety_days(trail: Trail, store: MemoryStore, clock: ManualClock) -> None:
    trail.record("ada", "did", "it")
    clock.advance(microseconds=KEPT - 1)
    late = trail.record("ada", "did", "it again")
    assert len(trail.list()) == 2
    clock.advance(microseconds=1)
    assert trail.list() == [late]
    assert store.purge(10).pages == 1


def test_what_is_too_long_is_cut_and_nothing_is_refused_for_it(trail: Trail) -> None:
    trail.record("w" * 2_000, "did\x00\n", "\ud800" * 3, None, {"ids": ["x" * 40] * 10_000})
    (deed,) = trail.list()
    assert (len(deed.who), deed.what, deed.target) == (500, "did\x00\n", "\ud800" * 3)
    assert list(deed.detail) == ["left_out"]


def test_deeds_of_many_threads_and_two_processes_are_all_kept(app: Holdfast, tmp_path: Path) -> None:
    other = Holdfast(app.url)
    gate = threading.Barrier(4)

    def act(trail: Trail) -> list[str]:
        gate.wait(30)
        return [trail.record("ada", "did", str(number)).id for number in range(25)]

    with closing(other), ThreadPoolExecutor(4) as pool:
        ids = [id_ for made in pool.map(act, [app.trail, other.trail, app.trail, other.trail]) for id_ in made]
    assert len(set(ids)) == 100
    assert [deed.id for deed in app.trail.list(1_000)] == sorted(ids, reverse=True)


def test_it_has_asynchronous_twins(app: Holdfast) -> None:
    async def use() -> tuple[Deed, list[Deed]]:
        return await app.trail.arecord("ada", "did", "it"), await app.trail.alist()

    deed, listed = asyncio.run(use())
    assert listed == [deed]
