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
    *(
        f"{__name__}.{part}"
        for part in (
            *(
                "insert",
                "unique",
                "claim",
                "tenants",
                "settle",
                "flow",
                "signals",
                "family",
                "books",
                "outbox",
                "timetable",
                "pages",
            ),
            *("guard", "lease", "operate", "observe", "moving", "scale"),
        )
    ),
)

from holdfast.testing.conformance import (  # noqa: E402 - rewritten first
    books,
    claim,
    family,
    flow,
    flow_control,
    guard,
    insert,
    keyed,
    lease,
    moving,
    observe,
    operate,
    outbox,
    pages,
    scale,
    settle,
    signals,
    tenants,
    timetable,
    unique,
)
from holdfast.testing.lab import Case, Lab, cases, lab, sentence  # noqa: E402

CASES = cases(
    insert,
    unique,
    claim,
    tenants,
    settle,
    flow,
    flow_control,
    keyed,
    signals,
    family,
    books,
    outbox,
    timetable,
    pages,
    guard,
    lease,
    operate,
    observe,
    moving,
    scale,
)

__all__ = ["CASES", "Case", "Lab", "lab", "sentence"]
