"""Every seeded bug still has its place in the product, so that `make mutants` never runs out of bugs to plant."""

from pathlib import Path

import pytest

from tests.mutants.run import planted
from tests.mutants.seeded import MUTANTS, Mutant

PRODUCT = Path(__file__).parents[2] / "src" / "holdfast"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_the_text_a_bug_replaces_is_there_once(mutant: Mutant) -> None:
    assert planted((PRODUCT / mutant.file).read_text(encoding="utf-8"), mutant) is not None
