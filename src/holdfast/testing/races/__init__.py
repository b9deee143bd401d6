"""Named races: for every guard, the two actors it stands between, let loose at the same moment, round after round.

Run like the conformance suite, and where a store is `shared` the two actors use two store objects on the same data:

    @pytest.mark.parametrize("race", RACES, ids=sentence)
    def test_sqlite_wins_every_race(race: Case, tmp_path: Path) -> None:
        with lab(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)) as bench:
            race(bench)

Each race asserts what must hold whoever comes first: one winner, and a record that tells the winner's story alone.
"""

import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.lab",
    *(f"{__name__}.{part}" for part in ("workers", "operators", "workflows", "spenders", "turns")),
)

from holdfast.testing.lab import Case, Lab, cases, lab, sentence  # noqa: E402 - rewritten first
from holdfast.testing.races import operators, spenders, turns, workers, workflows  # noqa: E402

RACES = cases(workers, operators, workflows, spenders, turns)

__all__ = ["RACES", "Case", "Lab", "lab", "sentence"]
