"""Memory stands in the middle of every race."""

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing.races import RACES, Case, lab, sentence


@pytest.mark.parametrize("race", RACES, ids=sentence)
def test_memory_lets_one_side_win(race: Case) -> None:
    with lab(lambda clock: MemoryStore(clock=clock)) as bench:
        race(bench)
