"""PostgreSQL stands in the middle of every race."""

import pytest

from holdfast.stores.postgres import PostgresStore
from holdfast.testing.races import RACES, Case, lab, sentence


@pytest.mark.parametrize("race", RACES, ids=sentence)
def test_postgres_lets_one_side_win(race: Case, postgres_url: str) -> None:
    with lab(lambda clock: PostgresStore(postgres_url, clock)) as bench:
        race(bench)
