"""SQLite keeps the same contract, unchanged."""

from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import CASES, Case, lab, sentence


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_sqlite_keeps_the_contract(case: Case, tmp_path: Path) -> None:
    with lab(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)) as bench:
        case(bench)
