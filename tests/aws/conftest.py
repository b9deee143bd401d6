"""A contract's store on the emulator, and another program that looks at it."""

from collections.abc import Iterator

import pytest

from holdfast.stores.dynamodb import ContractStore
from holdfast.testing.conformance import Lab, lab
from tests.aws import emulator
from tests.aws.outside import Outside


@pytest.fixture
def bench(aws_endpoint: str) -> Iterator[Lab]:
    url = emulator.contract_of(aws_endpoint)
    with lab(lambda clock: ContractStore(url, clock)) as bench:
        bench.counts()
        yield bench
    emulator.drop(url)


@pytest.fixture
def outside(bench: Lab) -> Outside:
    return Outside(bench.store.url)
