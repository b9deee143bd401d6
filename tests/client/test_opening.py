"""Where an application keeps its jobs: the URL, the file behind it, and what a fork makes of it."""

import json
import socket
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast import BadInput, Holdfast, HoldfastError, StoreError, StoreUnavailable, StoreUnusable
from holdfast.stores.sqlite.connection import SCHEMA_VERSION


def test_an_application_is_made_without_touching_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    app = Holdfast()
    assert app.url == "sqlite:///holdfast.db"

    @app.job
    def add(a: int) -> int:
        return a

    add.prepare(1)
    assert list(tmp_path.iterdir()) == []
    add.enqueue(1)
    assert (tmp_path / "holdfast.db").exists()
    app.close()


def test_the_environment_names_the_store_unless_the_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/from-env.db")
    assert Holdfast().url == f"sqlite:///{tmp_path}/from-env.db"
    assert Holdfast("memory://").url == "memory://"
    monkeypatch.setenv("HOLDFAST_URL", "")
    assert Holdfast().url == "sqlite:///holdfast.db"


@pytest.mark.parametrize("named", ["in the code", "in the environment"])
def test_a_relative_path_is_that_of_the_folder_the_application_was_made_in(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "100%25 ours?", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///jobs.db")
    app = Holdfast("sqlite:///jobs.db" if named == "in the code" else None)

    @app.job
    def add(a: int) -> int:
        return a

    monkeypatch.chdir(second)
    before = add.enqueue(1)
    monkeypatch.chdir(tmp_path)
    app.run_worker(until_idle=True)
    app.close()
    after = add.enqueue(2)
    app.run_worker(until_idle=True)
    assert [job.refresh().state for job in (before, after)] == ["succeeded"] * 2
    assert (first / "jobs.db").exists()
    assert not (tmp_path / "jobs.db").exists()
    assert list(second.iterdir()) == []
    assert app.url == "sqlite:///jobs.db", "as it was written"
    app.close()


def test_a_folder_that_is_gone_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StoreUnavailable, match=r"jobs\.db cannot be made: No such file or directory"):
        Holdfast("sqlite:///jobs.db").counts()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", "'redis://localhost' is not a store URL that Holdfast knows; use one of: sqlite:///"),
        ("jobs.db", "'jobs.db' is not a store URL that Holdfast knows"),
        ("://", "'://' is not a store URL that Holdfast knows"),
        ("sqlite://", "'sqlite://' names no file; write sqlite:///jobs.db, or memory://"),
        ("sqlite:///", "'sqlite:///' names no file"),
        ("sqlite:///:memory:", "names no file; write sqlite:///jobs.db, or memory://"),
        ("sqlite:///jobs.db?mode=ro", "A SQLite URL takes no options; 'mode=ro' was given"),
        ("sqlite:///missing/jobs.db", "The folder .*/missing does not exist; make it first, or name a file elsewhere"),
        ("sqlite:///folder", "folder is a folder; a store URL names a file in it"),
        ("sqlite:///notes.txt", "notes.txt is not a Holdfast database, or it is damaged; name another file"),
        ("sqlite:///other.db", "other.db is a SQLite database, but not a Holdfast one; name another file"),
        ("sqlite:///a%00b.db", "is not a name that a file can have; name another one"),
        ("sqlite:///a\ud800.db", "is not a name that a file can have"),
        ("sqlite:///~nobody-of-this-name/jobs.db", "is not a name that a file can have"),
        (f"sqlite:///{'n' * 300}.db", "nnn.db cannot be made: File name too long"),
        ("sqlite:///newer.db", "newer.db was written by a newer Holdfast .* upgrade Holdfast to use it"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_in_one_sentence_and_left_alone(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("not a database at all\n" * 100, encoding="utf-8")
    _somebody_elses(tmp_path / "other.db")
    _newer(tmp_path / "newer.db")
    before = _contents(tmp_path)
    app = Holdfast(url)

    @app.job
    def add(a: int) -> int:
        return a

    for call in (lambda: add.enqueue(1), app.counts):
        with pytest.raises(HoldfastError, match=said) as caught:
            call()
        assert isinstance(caught.value, BadInput | StoreUnavailable | StoreUnusable)
        assert "\n" not in str(caught.value)
    assert _contents(tmp_path) == before


def test_a_url_is_text() -> None:
    for url in (Path("jobs.db"), 7, b"memory://"):
        with pytest.raises(BadInput, match=r"A store URL is text, like 'sqlite:///holdfast\.db', not"):
            Holdfast(url)  # type: ignore[arg-type]


def test_a_password_in_a_url_is_not_repeated() -> None:
    app = Holdfast("mysql://ada:s3cret@host/jobs")
    with pytest.raises(BadInput, match=r"'mysql://\*\*\*@host/jobs' is not a store URL") as caught:
        app.counts()
    assert "s3cret" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        place = f"127.0.0.1:{taken.getsockname()[1]}/jobs"
        app = Holdfast(f"postgresql://ada:s3cret@{place}")
        with pytest.raises(
            StoreError, match=f"PostgreSQL at postgresql://{place} cannot be reached: .* refused"
        ) as caught:
            app.counts()
    assert isinstance(caught.value, StoreUnavailable)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "rest",
    ["ada:s3/cret@host/jobs", "ada:s3@cret@host/jobs", "ada:s3#cret@host/jobs", "ada:s3%cret@host/jobs", "a:s3[cret@h"],
)
def test_a_password_that_makes_a_url_unreadable_is_not_repeated(rest: str) -> None:
    app = Holdfast(f"postgresql://{rest}")
    with pytest.raises(BadInput, match=r"The PostgreSQL URL cannot be read; write .* by its code") as caught:
        app.counts()
    assert "cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("schema=Jobs", "The schema 'Jobs' is not a name of lower-case letters"),
        ("schema=", "The schema '' is not a name"),
        ("schema=pg_jobs", "The schema 'pg_jobs' is not a name"),
        ("schema=a%3B", "The schema 'a;' is not a name"),
        ("colour=red", "A PostgreSQL URL has no option 'colour'"),
    ],
)
def test_an_option_that_a_url_cannot_have_is_told(query: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Holdfast(f"postgresql://host/jobs?{query}").counts()


def test_a_closed_application_opens_again_when_it_is_used(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    def add(a: int) -> int:
        return a

    first = add.enqueue(1)
    app.close()
    app.close()
    assert app.find() == [first]
    assert add.enqueue(2) != first
    app.close()


def test_two_applications_share_one_file(tmp_path: Path) -> None:
    web, worker = (Holdfast(f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))

    @web.job
    def add(a: int) -> int:
        return a

    worker.job(add.function)
    job = add.enqueue(7)
    assert worker.process(worker.envelope(job.id)) == "claimed"
    assert job.result() == 7
    web.close()
    worker.close()


FORK = """
import json, os, sys, threading
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.job
def add(a: int) -> int:
    return a

def enqueue(numbers):
    threads = [threading.Thread(target=add.enqueue, args=(n,)) for n in numbers]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

enqueue(range(4))
children = []
for child in (1, 2):
    pid = os.fork()
    if pid == 0:
        try:
            enqueue(range(10 * child, 10 * child + 4))
            mine = add.enqueue(50 + child)
            assert app.process(app.envelope(mine.id)) == "claimed"
            assert mine.result(timeout=10) == 50 + child
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
enqueue(range(100, 104))
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
enqueue(range(200, 204))
jobs = app.find(limit=1000)
found = sorted(job.payload["a"] for job in jobs)
print(json.dumps([codes, found, len({job.id for job in jobs}), app.counts(), [str(f) for f in app.store.check()]]))
"""


def test_a_forked_child_enqueues_and_the_parent_goes_on(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK, f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    codes, found, ids, counts, findings = json.loads(run.stdout)
    assert codes == [0, 0], run.stderr
    assert found == [*range(4), *range(10, 14), *range(20, 24), 51, 52, *range(100, 104), *range(200, 204)]
    assert (ids, counts["queued"], counts["succeeded"], findings) == (22, 20, 2, [])


def _somebody_elses(file: Path) -> None:
    other = apsw.Connection(str(file))
    other.execute("CREATE TABLE notes (text)")
    other.close()


def _newer(file: Path) -> None:
    app = Holdfast(f"sqlite:///{file}")
    app.counts()
    app.close()
    newer = apsw.Connection(str(file))
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.execute("PRAGMA journal_mode = delete")
    newer.close()


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
