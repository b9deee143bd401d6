"""The store of the contract keeps the contract of stores, unchanged."""

import pytest

from holdfast.testing.conformance import CASES, Case, lab, sentence
from tests.aws.swept import Swept


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_dynamodb_with_sqs_keeps_the_contract(case: Case, contract_url: str) -> None:
    with lab(lambda clock: Swept(contract_url, clock)) as bench:
        case(bench)
