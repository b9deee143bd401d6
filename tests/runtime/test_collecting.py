"""While a worker runs, Python looks for garbage less often; unless somebody has chosen how often already. And a large
batch is not looked through for it.
"""

import gc
from collections.abc import Iterator

import pytest

from holdfast import Holdfast

Threshold = tuple[int, int, int]


@pytest.fixture
def usual() -> Iterator[Threshold]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def while_working(app: Holdfast, choice: int | None = None) -> Threshold:
    @app.job
    def look() -> list[int]:
        seen = list(gc.get_threshold())
        if choice is not None:
            gc.set_threshold(choice)
        return seen

    job = look.enqueue()
    app.run_worker(until_idle=True)
    young, *older = job.result(0)
    return young, older[0], older[1]


def test_a_worker_lets_the_collector_begin_later_for_as_long_as_it_runs(app: Holdfast, usual: Threshold) -> None:
    assert while_working(app) == (50_000, *usual[1:])
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("chosen", [0, 80_000])
def test_a_choice_of_the_users_own_is_left_alone(app: Holdfast, usual: Threshold, chosen: int) -> None:
    gc.set_threshold(chosen, *usual[1:])
    assert while_working(app) == (chosen, *usual[1:])
    assert gc.get_threshold() == (chosen, *usual[1:])


def test_what_a_handler_chooses_outlives_the_worker(app: Holdfast, usual: Threshold) -> None:
    assert while_working(app, 5_000) != usual
    assert gc.get_threshold()[0] == 5_000


@pytest.fixture
def looked(usual: Threshold) -> Iterator[list[int]]:
    """Tell of every look of the collector: into which generation."""
    looks = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(info["generation"])

    gc.callbacks.append(note)
    yield looks
    gc.callbacks.remove(note)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_large_batch_counts_as_old_unless_something_is_to_stay_frozen(
    app: Holdfast, looked: list[int], frozen: bool
) -> None:
    @app.job
    def add(n: int) -> int:
        return n

    prepared = [add.prepare(n) for n in range(2_000)]
    gc.collect()
    if frozen:
        gc.freeze()
    try:
        before, count = gc.get_freeze_count(), len(looked)
        jobs = app.enqueue_many(prepared)
        assert gc.isenabled()
        assert gc.get_freeze_count() == before
        assert (len(looked) > count) is frozen, "all that was made would be walked at once"
        assert len(jobs) == 2_000
    finally:
        gc.unfreeze()
