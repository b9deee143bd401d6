"""SQLite stands in the middle of every race."""

from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.races import RACES, Case, lab, sentence


@pytest.mark.parametrize("race", RACES, ids=sentence)
def test_sqlite_lets_one_side_win(race: Case, tmp_path: Path) -> None:
    with lab(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)) as bench:
        race(bench)
