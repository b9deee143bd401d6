"""DynamoDB stands in the middle of every race."""

import pytest

from holdfast.stores.dynamodb import DynamoStore
from holdfast.testing.races import RACES, Case, lab, sentence


@pytest.mark.parametrize("race", RACES, ids=sentence)
def test_dynamodb_lets_one_side_win(race: Case, dynamodb_url: str) -> None:
    with lab(lambda clock: DynamoStore(dynamodb_url, clock)) as bench:
        race(bench)
