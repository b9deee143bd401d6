"""DynamoDB keeps the same contract, unchanged."""

import pytest

from holdfast.stores.dynamodb import DynamoStore
from holdfast.testing.conformance import CASES, Case, lab, sentence


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_dynamodb_keeps_the_contract(case: Case, dynamodb_url: str) -> None:
    with lab(lambda clock: DynamoStore(dynamodb_url, clock)) as bench:
        case(bench)
