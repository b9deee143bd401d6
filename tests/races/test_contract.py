"""The store of the contract stands in the middle of every race."""

import pytest

from holdfast.testing.races import RACES, Case, lab, sentence
from tests.aws.swept import Swept


@pytest.mark.parametrize("race", RACES, ids=sentence)
def test_dynamodb_with_sqs_lets_one_side_win(race: Case, contract_url: str) -> None:
    with lab(lambda clock: Swept(contract_url, clock)) as bench:
        race(bench)
