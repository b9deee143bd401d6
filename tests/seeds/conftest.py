"""Each seed's guarantees hold on every store that is here already."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.clock import ManualClock
from tests.seeds.scene import Scene


@pytest.fixture(params=["memory", "sqlite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    clock = ManualClock()
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with ExitStack() as opened:

        def open_app() -> Holdfast:
            return opened.enter_context(closing(Holdfast(url, clock=clock)))

        app = open_app()

        def another() -> Holdfast:
            return open_app() if app.store.capabilities.shared else app

        yield Scene(app, clock, another)
