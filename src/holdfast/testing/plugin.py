"""The pytest plugin: one fixture, `holdfast`, the real engine under a clock that the test moves.

pytest loads this module in every project that has Holdfast installed, so the engine is imported when first asked for.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing.engine import TestHoldfast


@pytest.fixture
def holdfast() -> Iterator["TestHoldfast"]:
    """A Holdfast application on the memory store: jobs run when told to, under a clock the test moves.

    `run_until_idle()` runs what is due, `advance(hours=1)` moves the clock, `crash_after("charge")` lets a worker die,
    `attach(app)` brings in the application under test.
    """
    from holdfast.testing.engine import TestHoldfast

    app = TestHoldfast()
    yield app
    app.end()
