"""What the documentation says is true: names, commands, settings, links and examples are checked against the code."""

import runpy
from pathlib import Path


def test_the_documentation_is_true() -> None:
    check = Path(__file__).parents[2] / "docs" / "check.py"
    assert runpy.run_path(str(check))["problems"]() == []
