"""File drop: exactly one job for each new object, whoever watches, dies or looks twice."""

import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from holdfast import BadInput, Dropped, Holdfast, Job
from holdfast.client import inbox
from holdfast.client.drops import Drop
from holdfast.client.inserter import Inserter
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import NewJob
from holdfast.port.store import Inserted
from holdfast.runtime import drop as watching
from holdfast.runtime import upkeep
from holdfast.runtime.drop import Watch
from holdfast.testing.clock import ManualClock
from tests.surfaces.processes import until
from tests.workers import LONG, Working


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "inbox"
    made.mkdir()
    return made


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    """An application on a store whose clock the test moves, where the store has none of its own."""
    match request.param:
        case "postgres":
            opened = Holdfast(str(request.getfixturevalue("postgres_url")))
        case "sqlite":
            opened = Holdfast(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
        case _:
            opened = Holdfast("memory://", clock=clock)
    with closing(opened):
        yield opened


def ingesting(app: Holdfast, watch: str | Path, **options: Any) -> Drop:
    @app.job
    def ingest(file: Dropped) -> str:
        return file.path

    app.drop("invoices", ingest, watch=watch, **options)
    (drop,) = app.drops
    return drop


def watch_of(
    app: Holdfast,
    drop: Drop,
    clock: ManualClock,
    insert: Callable[[Sequence[NewJob]], Sequence[Inserted]] | None = None,
) -> Watch:
    """A further worker's watch."""
    return Watch(app.store, drop, secrets.token_hex(3), clock, insert or Inserter(app.store, clock).insert)


def jobs(app: Holdfast) -> list[Job[Any]]:
    return app.find(kind="ingest", limit=1000)


def paths(app: Holdfast) -> list[str]:
    return sorted(json.loads(job.record.payload)["path"] for job in jobs(app))


def look(watch: Watch, clock: ManualClock) -> int:
    """Look twice, with time to settle between."""
    before = watch.round()
    clock.advance(seconds=3)
    return before + watch.round()


def test_a_new_file_becomes_one_job(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder), clock)
    (folder / "a.pdf").write_bytes(b"12345")
    assert [look(watch, clock), look(watch, clock)] == [1, 0]
    (job,) = jobs(app)
    assert job.trigger == "file_drop"
    assert job.key is not None
    assert job.key.startswith("drop:invoices:")
    file = Dropped.model_validate(job.payload)
    assert (file.path, file.size, file.etag) == (str(folder / "a.pdf"), 5, None)
    assert file.modified is not None
    assert file.modified.timestamp() == pytest.approx((folder / "a.pdf").stat().st_mtime)


def test_a_file_that_still_changes_is_left_alone(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder, settle=2), clock)
    with (folder / "big.pdf").open("wb") as file:
        for _ in range(5):
            file.write(b"more")
            file.flush()
            assert watch.round() == 0
            clock.advance(seconds=1.5)
            assert watch.round() == 0
    clock.advance(seconds=1)
    assert watch.round() == 1


def test_a_file_that_needs_no_time_is_taken_at_first_sight(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder, settle=0), clock)
    (folder / "a.pdf").touch()
    assert watch.round() == 1


def test_a_file_with_new_content_is_a_new_object(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder, settle=0), clock)
    (folder / "a.pdf").write_bytes(b"first")
    assert watch.round() == 1
    (folder / "a.pdf").write_bytes(b"the second")
    assert [watch.round(), watch.round()] == [1, 0]
    assert paths(app) == [str(folder / "a.pdf")] * 2


def test_hidden_and_unfinished_names_folders_and_links_are_left_out(
    app: Holdfast, folder: Path, clock: ManualClock, tmp_path: Path
) -> None:
    watch = watch_of(app, ingesting(app, folder, pattern="*.pdf*", settle=0), clock)
    for name in (".a.pdf", "a.pdf.part", "b.pdf.TMP", "c.pdf.crdownload", "d.pdf~", "e.txt", "wanted.pdf"):
        (folder / name).touch()
    (folder / "folder.pdf").mkdir()
    (folder / "folder.pdf" / "deep.pdf").touch()
    (tmp_path / "elsewhere.pdf").touch()
    (folder / "link.pdf").symlink_to(tmp_path / "elsewhere.pdf")
    os.mkfifo(folder / "pipe.pdf")
    assert watch.round() == 1
    assert paths(app) == [str(folder / "wanted.pdf")]


def test_a_file_moved_into_place_is_taken_under_its_new_name_only(
    app: Holdfast, folder: Path, clock: ManualClock
) -> None:
    watch = watch_of(app, ingesting(app, folder), clock)
    (folder / "a.pdf.part").write_bytes(b"whole")
    assert look(watch, clock) == 0
    (folder / "a.pdf.part").rename(folder / "a.pdf")
    assert look(watch, clock) == 1
    assert paths(app) == [str(folder / "a.pdf")]


def test_whoever_watches_next_takes_nothing_again(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    drop = ingesting(app, folder, settle=0)
    for n in range(1_200):
        (folder / f"{n}.pdf").touch()
    first = watch_of(app, drop, clock)
    assert first.round() == 1_200
    first._lead.give_up()
    (folder / "new.pdf").touch()
    assert watch_of(app, drop, clock).round() == 1
    assert app.counts().total == 1_201
    assert len(app.store.pages("drop:invoices")) == 3  # 500 to a page, and the last one is filled up


@pytest.mark.parametrize("app", ["memory", "sqlite"], indirect=True)
def test_while_one_watches_another_does_not(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    drop = ingesting(app, folder, settle=0)
    first, second = watch_of(app, drop, clock), watch_of(app, drop, clock)
    assert first.round() == 0
    (folder / "a.pdf").touch()
    assert second.round() == 0
    assert first.round() == 1


def test_two_that_both_believe_they_watch_store_one_job(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    drop = ingesting(app, folder, settle=0)
    first, second = watch_of(app, drop, clock), watch_of(app, drop, clock)
    first._taken.load()
    second._taken.load()
    for n in range(10):
        (folder / f"{n}.pdf").touch()
    for watch in (first, second):
        watch._lead.take()
        watch._lead._taken = True  # its clock stood still while the other took over
        watch._lead._until = float("inf")
    assert [first._look(), second._look()] == [10, 0]
    assert app.counts().total == 10


def test_a_watcher_that_dies_after_storing_the_jobs_leaves_one_of_each(
    app: Holdfast, folder: Path, clock: ManualClock
) -> None:
    drop = ingesting(app, folder, settle=0)
    insert = Inserter(app.store, clock).insert

    def dying(new: Sequence[NewJob]) -> Sequence[Inserted]:
        insert(new)
        msg = "The answer was lost."
        raise StoreUnavailable(msg)

    for n in range(10):
        (folder / f"{n}.pdf").touch()
    first = watch_of(app, drop, clock, dying)
    with pytest.raises(StoreUnavailable):
        first.round()
    first._lead.give_up()
    second = watch_of(app, drop, clock)
    assert [second.round(), second.round()] == [0, 0]
    assert app.counts().total == 10


@pytest.mark.parametrize("app", ["memory", "sqlite"], indirect=True)
def test_a_file_that_outlives_its_job_is_not_taken_again(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder, settle=0), clock)
    (folder / "a.pdf").touch()
    assert watch.round() == 1
    app.cancel(jobs(app)[0].id)
    for _ in range(8):
        clock.advance(days=40)
        upkeep.purge(app.store, app.settings)
        assert watch.round() == 0
        watch = watch_of(app, watch._drop, clock)  # another worker each time: nothing is kept but what is stored
    assert app.counts().total == 0


@pytest.mark.parametrize("app", ["memory"], indirect=True)
def test_what_has_long_been_gone_is_forgotten(app: Holdfast, folder: Path, clock: ManualClock) -> None:
    watch = watch_of(app, ingesting(app, folder, settle=0), clock)
    (folder / "a.pdf").touch()
    watch.round()
    (folder / "a.pdf").unlink()
    clock.advance(days=91)
    watch.round()
    assert app.store.pages("drop:invoices") == []


def test_a_folder_that_is_not_there_is_complained_of_and_waited_for(
    folder: Path, tmp_path: Path, working: Working, caplog: pytest.LogCaptureFixture
) -> None:
    folder.rmdir()
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db", upkeep=0.05)
    ingesting(app, folder, every=0.05, settle=0)
    with closing(app), caplog.at_level(logging.WARNING, "holdfast.drop"), working(app):
        until(lambda: caplog.messages, within=LONG)
        folder.mkdir()
        (folder / "a.pdf").touch()
        until(lambda: app.counts()["succeeded"] == 1, within=LONG)
    sentence = (
        f"The folder {folder} cannot be looked at (No such file or directory); make it, or let this user read it."
    )
    assert caplog.messages == [f"drop invoices: {sentence}"]


def test_a_job_that_costs_more_than_there_is_waits_for_credits(
    app: Holdfast, folder: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def ingest(file: Dropped) -> None: ...

    app.grant("acme", 5)
    app.drop("paid", ingest.using(tenant="acme", credits=5), watch=folder, settle=0)
    watch = watch_of(app, next(iter(app.drops)), clock)
    (folder / "a.pdf").touch()
    (folder / "b.pdf").touch()
    with caplog.at_level(logging.WARNING, "holdfast.drop"):
        assert [watch.round(), watch.round()] == [1, 0]
        app.grant("acme", 5)
        assert [watch.round(), watch.round()] == [1, 0]
    assert len(caplog.messages) == 1
    assert "credits" in caplog.messages[0]


def test_what_the_job_does_not_accept_is_passed_over_and_not_named(
    app: Holdfast, folder: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Small(Dropped):
        size: int = Field(lt=3)

    @app.job
    def ingest(file: Small) -> None: ...

    app.drop("small", ingest, watch=folder, settle=0)
    watch = watch_of(app, next(iter(app.drops)), clock)
    (folder / "canary.pdf").write_bytes(b"too large")
    (folder / os.fsdecode(b"\xff.pdf")).touch()
    (folder / "fits.pdf").touch()
    with caplog.at_level(logging.WARNING, "holdfast.drop"):
        assert [watch.round(), watch.round()] == [1, 0]
    assert paths(app) == [str(folder / "fits.pdf")]
    assert "passed over" in caplog.text
    assert "canary" not in caplog.text


def test_of_too_many_objects_some_wait_and_that_is_said(
    app: Holdfast, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "MOST", 5)
    watch = watch_of(app, ingesting(app, folder, settle=0), clock)
    for n in range(8):
        (folder / f"{n}.pdf").touch()
    with caplog.at_level(logging.WARNING, "holdfast.drop"):
        assert watch.round() <= 6
    assert "More than 5 objects" in caplog.text


def test_objects_of_a_url_are_taken_like_files(app: Holdfast, clock: ManualClock) -> None:
    import fsspec  # type: ignore[import-untyped]

    system, root = fsspec.filesystem("memory"), f"/drops-{secrets.token_hex(4)}"
    system.pipe_file(f"{root}/a.pdf", b"first")
    system.pipe_file(f"{root}/a.pdf.part", b"unfinished")
    system.pipe_file(f"{root}/below/b.pdf", b"deep")
    watch = watch_of(app, ingesting(app, f"memory:/{root}", pattern="*.pdf"), clock)
    assert [look(watch, clock), look(watch, clock)] == [1, 0]
    system.pipe_file(f"{root}/a.pdf", b"second")
    assert look(watch, clock) == 1
    assert paths(app) == [f"memory://{root}/a.pdf"] * 2
    system.rm(root, recursive=True)
    with pytest.raises(inbox.InboxTrouble, match="cannot be looked at"):
        watch.round()


def test_the_tag_of_an_object_tells_its_content() -> None:
    seen = {"name": "b/a.pdf", "type": "file", "size": 3, "ETag": '"abc"', "LastModified": "2026-01-01T00:00:00+00:00"}
    found = inbox._object("s3://b/a.pdf", seen)
    assert (found.etag, found.content, found.modified) == ('"abc"', '"abc"', 1767225600000000)
    assert inbox._object("s3://b/a.pdf", {**seen, "ETag": None}).content == "1767225600000000.3"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "x" * 201}, "A drop's name is at most 200 characters"),
        ({"name": ""}, "A drop's name is 1 to 255 printable characters"),
        ({"watch": ""}, "A drop watches a folder or a URL"),
        ({"watch": 5}, "A drop watches a folder or a URL"),
        ({"watch": "nowhere://inbox"}, "nowhere://inbox cannot be watched"),
        ({"watch": "file://host/inbox"}, "names no folder of this machine"),
        ({"pattern": ""}, "pattern is that of a file's name"),
        ({"pattern": "in/*.pdf"}, "pattern is that of a file's name"),
        ({"every": 0}, "every is 0.05 seconds or more"),
        ({"settle": -1}, "settle must not be negative"),
        ({"job": "ingest"}, "takes a job, as in job=ingest"),
    ],
)
def test_a_drop_that_cannot_be_kept_is_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    app = Holdfast("memory://")

    @app.job
    def ingest(file: Dropped) -> None: ...

    asked: dict[str, Any] = {"name": "invoices", "job": ingest, "watch": "/srv/inbox"} | options
    with pytest.raises(BadInput, match=sentence):
        app.drop(**asked)
    assert len(app.drops) == 0


def test_a_job_of_another_shape_or_with_a_key_is_refused_at_once() -> None:
    app = Holdfast("memory://")

    @app.job
    def resize(path: str) -> None: ...

    @app.job
    def ingest(path: str, size: int, modified: str | None, etag: str | None) -> None: ...

    with pytest.raises(BadInput, match=r"given path, size, modified, etag; write resize\(file: Dropped\)"):
        app.drop("a", resize, watch="/srv/inbox")
    with pytest.raises(BadInput, match="a key of its own"):
        app.drop("a", ingest.using(key="one"), watch="/srv/inbox")
    app.drop("a", ingest, watch="/srv/inbox")
    with pytest.raises(BadInput, match="declared already"):
        app.drop("a", ingest, watch="/srv/inbox")


APPLICATION = """
import os
from pathlib import Path

from holdfast import Dropped, Holdfast

HERE = Path(__file__).parent
app = Holdfast(os.environ["DROP_URL"], lease=3, upkeep=0.05)


@app.job
def ingest(file: Dropped) -> None:
    ledger = os.open(HERE / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(ledger, file.path.encode() + b"\\n")
    os.close(ledger)
    Path(file.path).unlink(missing_ok=True)


app.drop("invoices", ingest, watch=HERE / "inbox", every=0.05, settle=0.2)
"""


class Yard:
    """Worker processes on one store and one folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        (folder / "shop.py").write_text(APPLICATION)
        self.app = Holdfast(url)
        self.workers: list[subprocess.Popen[bytes]] = []

    def hire(self) -> "subprocess.Popen[bytes]":
        """Start a worker process."""
        command = [sys.executable, "-m", "holdfast", "worker", f"{self._folder}/shop.py:app", "-c", "4"]
        worker = subprocess.Popen(command, env={**os.environ, "DROP_URL": self._url}, stdout=subprocess.DEVNULL)
        self.workers.append(worker)
        return worker

    def ledger(self) -> Counter[str]:
        """Count how often each file was ingested."""
        path = self._folder / "ledger"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def close(self) -> None:
        """End every worker."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.app.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_thousand_files_two_workers_and_a_kill_make_a_thousand_jobs(
    request: pytest.FixtureRequest, tmp_path: Path, folder: Path, store: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else str(request.getfixturevalue("postgres_url"))
    names = [f"{n:04}.pdf" for n in range(1_000)]
    with closing(Yard(tmp_path, url)) as yard:
        first = yard.hire()
        until(yard.app.store.workers, within=LONG)
        yard.hire()
        dropping = threading.Thread(target=_drop, args=([folder / name for name in names],))
        dropping.start()
        until(lambda: sum(yard.ledger().values()) > 50, within=LONG)
        first.kill()  # the one that watches, in the middle
        first.wait()
        yard.hire()
        dropping.join(LONG)
        until(lambda: len(yard.ledger()) == 1_000 and yard.app.counts().unfinished == 0, within=3 * LONG)
        assert set(yard.ledger()) == {str(folder / name) for name in names}
        assert yard.app.counts()["succeeded"] == 1_000


def _drop(paths: Sequence[Path]) -> None:
    """Write files under other names first, as whoever is careful does."""
    for path in paths:
        draft = path.with_suffix(".part")
        draft.write_bytes(b"content")
        draft.rename(path)
