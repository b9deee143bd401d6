"""`holdfast sinks`: how far events have got, and forgetting where they need not go."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.main import program


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store in which one sink has had one event of three, and another all."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(Holdfast(url)) as app:
        app.sink("all", lambda _: None)

        @app.job
        def add(a: int, b: int) -> int:
            return a + b

        app.store.reach("stuck", 0)
        add.enqueue(1, 2)
        app.run_worker(until_idle=True)
    return url


def test_sinks_are_listed_with_what_they_have_yet_to_be_given(url: str) -> None:
    told = CliRunner().invoke(program, ("sinks", "list", "--url", url, "--json"))
    found = {one["name"]: one["behind"] for one in json.loads(told.stdout)}
    assert (told.exit_code, found) == (0, {"all": 0, "stuck": 2})
    assert "stuck" in CliRunner().invoke(program, ("sinks", "list", "--url", url)).stdout


def test_a_sink_that_is_forgotten_keeps_no_events(url: str) -> None:
    told = CliRunner().invoke(program, ("sinks", "remove", "stuck", "--url", url))
    assert (told.exit_code, told.stderr) == (0, "")
    with closing(Holdfast(url)) as app:
        assert "stuck" not in app.store.sinks()


def test_what_holdfast_itself_listens_with_is_neither_shown_nor_forgotten(url: str) -> None:
    told = CliRunner().invoke(program, ("sinks", "remove", "holdfast.family", "--url", url))
    assert told.exit_code == 2
    with closing(Holdfast(url)) as app:
        assert "holdfast.family" in app.store.sinks()


def test_forgetting_a_sink_that_is_not_there_is_refused(url: str) -> None:
    told = CliRunner().invoke(program, ("sinks", "remove", "nobody", "--url", url))
    assert (told.exit_code, told.stderr) == (2, "Error: There is no sink 'nobody'; see: holdfast sinks list.\n")
