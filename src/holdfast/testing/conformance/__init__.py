"""The suite that every store must pass unchanged: what the port's text promises, as cases.

A case is a function from a `Lab` to nothing; its name is the sentence it proves. A store's author runs them
all with one test:

    @pytest.mark.parametrize("case", CASES, ids=sentence)
    def test_sqlite_keeps_the_contract(case: Case, tmp_path: Path) -> None:
        with lab(lambda clock: SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock)) as bench:
            case(bench)

A case about something an engine does not claim to give skips itself by the store's declared `Capabilities`, never by
its name. `holdfast.testing.races` and `holdfast.testing.machine` complete the proof.
"""

import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.lab",
    *(f"{__name__}.{part}" for part in ("insert", "claim", "settle", "guard", "lease", "operate", "observe", "scale")),
)

from holdfast.testing.conformance import claim, guard, insert, lease, observe, operate, scale, settle  # noqa: E402 - rewritten first
from holdfast.testing.lab import Case, Lab, cases, lab, sentence  # noqa: E402

CASES = cases(insert, claim, settle, guard, lease, operate, observe, scale)

__all__ = ["CASES", "Case", "Lab", "lab", "sentence"]
