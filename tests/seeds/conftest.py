"""Each seed's guarantees hold on every store."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.clock import ManualClock
from tests.aws import emulator
from tests.seeds.scene import Scene

STRICT = {"page": 1_000}
"""Workers in the seeds take the best first, so a claim looks at every job."""


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("dynamodb", marks=pytest.mark.aws),
        pytest.param("dynamodb+sqs", marks=pytest.mark.aws),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an empty store."""
    match request.param:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{tmp_path}/jobs.db"
        case kind:
            endpoint = request.getfixturevalue("aws_endpoint")
            open_at = emulator.table_of if kind == "dynamodb" else emulator.contract_of
            url = open_at(endpoint, **STRICT)
            yield url
            emulator.drop(url)


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    clock = ManualClock()
    with ExitStack() as opened:

        def open_app() -> Holdfast:
            return opened.enter_context(closing(Holdfast(url, clock=clock)))

        app = open_app()

        def another() -> Holdfast:
            return open_app() if app.store.capabilities.shared else app

        yield Scene(app, clock, another)
