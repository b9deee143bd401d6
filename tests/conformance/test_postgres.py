"""PostgreSQL keeps the same contract, unchanged."""

import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.testing.conformance import CASES, Case, lab, sentence


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_postgres_keeps_the_contract(case: Case, postgres_url: str) -> None:
    with lab(lambda clock: PostgresStore(postgres_url, clock)) as bench:
        case(bench)
