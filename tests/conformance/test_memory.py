"""The reference store keeps the contract it is the reference for."""

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import CASES, Case, lab, sentence


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_memory_keeps_the_contract(case: Case) -> None:
    with lab(lambda clock: MemoryStore(clock=clock)) as bench:
        case(bench)
