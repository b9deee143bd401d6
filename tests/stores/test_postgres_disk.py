"""A disk that is full: a real one of a few megabytes, which only root can mount."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from holdfast import Holdfast, JobFunction, StoreUnavailable
from tests.servers import Server, own, until, working

LARGE = "x" * 50_000
REFUSAL = "is out of disk space, memory or connections"


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-disk-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        mount = ("mount", "-t", "tmpfs", "-o", "size=48m", "holdfast", folder)
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("no disk can be mounted here")
        try:
            yield place
        finally:
            subprocess.run(("umount", "--lazy", folder), check=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with own() as server:
        yield server


@pytest.fixture
def url(server: Server, disk: Path) -> str:
    """A database on that disk; the write-ahead log is on another."""
    tables = disk / "tables"
    tables.mkdir()
    if server.runs_as is not None:
        shutil.chown(tables, server.runs_as)
    with psycopg.connect(server.address, autocommit=True) as db:
        db.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(tables)))
        db.execute("CREATE DATABASE small TABLESPACE small")
    return f"{server.address.rpartition('/')[0]}/small"


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on it for a while."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    try:
        yield
    finally:
        ballast.unlink()


def _until_refused(job: "JobFunction[[str], str]") -> list[UUID]:
    """Enqueue until there is no room; give what was accepted."""
    accepted = list[UUID]()
    try:
        while True:
            accepted.append(job.enqueue(LARGE).id)
    except StoreUnavailable as refused:
        assert str(refused).endswith(f"{REFUSAL}.")  # noqa: PT017 - the ones before it were accepted
    return accepted


def test_s1_what_a_full_disk_refuses_is_not_there_and_what_was_accepted_is_done(
    url: str, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Holdfast(url, upkeep=0.2)) as app, ExitStack() as leaving:

        @app.job
        def measure(text: str) -> str:
            return text

        accepted = [measure.enqueue("small").id for _ in range(100)]
        with filled(disk):
            accepted += _until_refused(measure)
            with pytest.raises(StoreUnavailable, match=REFUSAL):
                app.enqueue_many([measure.prepare(LARGE) for _ in range(1_000)])
            leaving.enter_context(working(app))
            until(lambda: REFUSAL in caplog.text, "the worker's complaint")
        until(lambda: app.counts().unfinished == 0, "the end")
        accepted.append(measure.enqueue(LARGE).id)
        until(lambda: app.counts().unfinished == 0, "the last")
        assert app.counts().total == app.counts()["succeeded"] == len(accepted)
        assert {job.id for job in app.find(state="succeeded", limit=1000)} == set(accepted)
        assert list(app.store.check()) == []
