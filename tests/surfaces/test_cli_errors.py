"""Whatever goes wrong, the user gets one sentence, an exit code, and no traceback; and nothing was changed."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import apsw
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import jobs
from holdfast.cli.main import program
from holdfast.cli.store import masked
from tests.surfaces.processes import write_application

ABSENT = "01234567-89ab-7def-8123-456789abcdef"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and no store chosen by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    return tmp_path


def ask(*words: str) -> Result:
    return CliRunner().invoke(program, words)


def refused(code: int, *words: str) -> str:
    """Ask for something that cannot be done; give the one sentence that says so."""
    told = ask(*words)
    assert (told.exit_code, told.stdout) == (code, ""), told.output
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1, told.stderr
    assert told.stderr.rstrip().endswith((".", "?")), told.stderr
    assert "Traceback" not in told.stderr
    return told.stderr


def make(path: Path) -> str:
    url = f"sqlite:///{path}"
    assert ask("migrate", "--url", url).exit_code == 0
    return url


READERS = [
    ("jobs", "list"),
    ("jobs", "show", ABSENT),
    ("jobs", "why", ABSENT),
    ("jobs", "cancel", ABSENT),
    ("jobs", "redrive", ABSENT),
    ("queues", "list"),
    ("queues", "pause", "mail"),
    ("queues", "resume", "mail"),
    ("dead", "list"),
    ("dead", "redrive", "--all", "--yes"),
    ("check",),
    ("backup", "copy.db"),
]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_looking_at_a_store_that_is_not_there_does_not_make_it(here: Path, words: tuple[str, ...]) -> None:
    assert "There is no database at holdfast.db" in refused(1, *words)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("words", [*READERS, ("migrate",), ("migrate", "--plan")], ids=" ".join)
def test_an_unknown_scheme_is_wrong_use(here: Path, words: tuple[str, ...]) -> None:
    sentence = refused(2, *words, "--url", "kafka://me:hunter2@broker")
    assert "is not a store URL that Holdfast knows" in sentence
    assert "hunter2" not in sentence


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_store_in_another_process_cannot_be_looked_at(words: tuple[str, ...]) -> None:
    assert "lives inside one process" in refused(2, *words, "--url", "memory://")


def text(path: Path) -> None:
    path.write_text("This is no database, whatever its name says, and it never was one.\n" * 30)


def foreign(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE recipe (name TEXT)")


def newer(path: Path) -> None:
    make(path)
    with closing(apsw.Connection(str(path))) as db:
        db.pragma("user_version", 99)


SPOILT = {"is not a Holdfast database": text, "but not a Holdfast one": foreign, "written by a newer Holdfast": newer}


@pytest.mark.parametrize("words", [*READERS, ("migrate",), ("migrate", "--plan")], ids=" ".join)
@pytest.mark.parametrize(("sentence", "spoil"), SPOILT.items(), ids=["text", "foreign", "newer"])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(
    here: Path, words: tuple[str, ...], sentence: str, spoil: Callable[[Path], None]
) -> None:
    path = here / "jobs.db"
    spoil(path)
    before = path.read_bytes()
    assert sentence in refused(1, *words, "--url", "sqlite:///jobs.db")
    assert path.read_bytes() == before
    assert not (here / "copy.db").exists()


@pytest.mark.parametrize(
    "words", [("migrate",), ("worker", "shop.py:app"), ("worker", "shop.py:app", "--processes", "2")]
)
def test_a_folder_that_cannot_be_written_is_told(here: Path, words: tuple[str, ...]) -> None:
    locked = here / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    folder = Path("/proc") if os.geteuid() == 0 else locked  # root may write to any folder but that one
    (here / "shop.py").write_text(f"from holdfast import Holdfast\napp = Holdfast('sqlite:///{folder}/jobs.db')\n")
    url = ("--url", f"sqlite:///{folder}/jobs.db") if words == ("migrate",) else ()
    assert "jobs.db cannot be made" in refused(1, *words, *url)


def test_a_folder_that_is_not_there_is_told(here: Path) -> None:
    assert "does not exist" in refused(1, "migrate", "--url", "sqlite:///nowhere/jobs.db")
    url = make(here / "jobs.db")
    assert "does not exist" in refused(1, "backup", "nowhere/copy.db", "--url", url)
    for words in (("migrate",), ("migrate", "--plan"), ("check",)):
        assert "is a folder" in refused(1, *words, "--url", f"sqlite:///{here}")


def test_a_backup_never_overwrites(here: Path) -> None:
    url = make(here / "jobs.db")
    (here / "copy.db").write_text("precious")
    assert "is there already" in refused(1, "backup", "copy.db", "--url", url)
    assert (here / "copy.db").read_text() == "precious"


@pytest.mark.parametrize("verb", ["show", "why", "cancel", "redrive"])
def test_an_unknown_job_is_a_failure_and_a_bad_id_is_wrong_use(here: Path, verb: str) -> None:
    url = make(here / "jobs.db")
    assert f"There is no job {ABSENT}" in refused(1, "jobs", verb, ABSENT, "--url", url)
    assert "'seven' is not a job id" in refused(2, "jobs", verb, "seven", "--url", url)


def test_one_bad_id_among_good_ones_stops_all_of_them(here: Path) -> None:
    url = make(here / "jobs.db")
    assert "'seven' is not a job id" in refused(2, "jobs", "cancel", ABSENT, "seven", "--url", url)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("jobs", "list", "--state", "pending"), "'pending' is not one of 'created', 'queued'"),
        (("jobs", "list", "--limit", "0"), "0 is not in the range"),
        (("jobs", "list", "--before", "seven"), "'seven' is not a job id"),
        (("jobs", "list", "--colour"), "No such option"),
        (("jobs",), "Missing command"),
        (("init",), "Missing command"),
        (("jobs", "show"), "Missing argument 'ID'"),
        (("jobs", "shwo"), "No such command 'shwo'"),
        (("queues", "pause", ""), "A queue is 1 to 255 printable characters"),
        (("queues", "pause", "*"), "'*' stands for all queues, and is the name of none; pause each by its name"),
        (("queues", "resume", "*"), "resume each by its name (paused: none)"),
        (("worker", "shop:app", "-q", "*"), "leave --queue out to serve every queue"),
        (("dead", "redrive"), "all with --all"),
        (("dead", "redrive", "--all", "--kind", "add"), "not both"),
        (("check", "--patience", "-1"), "-1.0 is not in the range"),
        (("demo", "--jobs", "0"), "0 is not in the range"),
        (("migrate", "--url", "sqlite://"), "names no file"),
        (("migrate", "--url", "sqlite:///jobs.db?mode=ro"), "takes no options"),
    ],
)
def test_wrong_use_is_told_apart_from_failure(here: Path, words: tuple[str, ...], sentence: str) -> None:
    url = make(here / "jobs.db")
    given = ("--url", url) if words[0] in ("jobs", "queues", "dead", "check") and len(words) > 1 else ()
    assert sentence in refused(2, *words, *given)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("shop.py:app", "-q", "mail=abc"), "'mail=abc' is not NAME or NAME=MAX"),
        (("shop.py:app", "-q", "mail=0"), "'mail=0' is not NAME or NAME=MAX"),
        (("shop.py:app", "-q", "=3"), "'=3' is not NAME or NAME=MAX"),
        (("shop.py:app", "-q", ""), "A queue is 1 to 255 printable characters"),
        (("shop.py:app", "-c", "0"), "0 is not in the range"),
        (("shop.py:app", "--processes", "none"), "'none' is not a valid integer"),
        (("shop.py:app", "--log-level", "loud"), "'loud' is not one of"),
        (("shop",), "'shop' does not name an application"),
        (("shop.py",), "'shop.py' does not name an application"),
        (("shop.py:1",), "does not name an application"),
        (("shop/tasks:app",), "neither the name of a module nor a .py file"),
        (("nowhere:app",), "There is no module 'nowhere'"),
        (("shop.tasks:app",), "There is no module 'shop.tasks'"),
        (("nowhere.py:app",), "There is no file nowhere.py"),
        (("shop.py:application",), "shop.py has no 'application'; did you mean shop.py:app?"),
        (("shop.py:add",), "shop.py:add is a JobFunction, not a Holdfast application"),
    ],
)
def test_a_worker_that_cannot_be_meant_is_wrong_use(here: Path, words: tuple[str, ...], sentence: str) -> None:
    write_application(here)
    assert sentence in refused(2, "worker", *words)
    assert not (here / "jobs.db").exists() or "-q" in words


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found', line 1 of broken.py"),
        ("\nx = (", "SyntaxError: '(' was never closed, line 2 of broken.py"),
        ("raise SystemExit(3)", "SystemExit: 3, line 1 of broken.py"),
        ("def f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero, line 2 of broken.py"),
        ("from holdfast import Holdfast\napp = Holdfast(lease=-1)", "lease must not be negative"),
    ],
)
@pytest.mark.parametrize("target", ["broken.py:app", "broken:app"])
def test_an_application_that_cannot_be_imported_is_a_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch, target: str, source: str, sentence: str
) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    (here / "broken.py").write_text(source)
    told = refused(1, "worker", target)
    assert "could not be imported" in told
    assert sentence in told


@contextmanager
def trouble(error: BaseException) -> NoReturn:  # type: ignore[misc]
    raise error
    yield


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 1, ""),
        (
            RuntimeError("the\nmoon"),
            1,
            "Something unexpected went wrong (RuntimeError: the moon); run with HOLDFAST_DEBUG=1",
        ),
    ],
)
def test_even_the_unexpected_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    monkeypatch.setattr(jobs, "opened", lambda _: trouble(error))
    told = ask("jobs", "list")
    assert told.exit_code == code
    assert sentence in told.stderr
    assert "Error" in told.stderr or not sentence
    assert "Traceback" not in told.stderr


def test_the_traceback_is_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "opened", lambda _: trouble(RuntimeError("moon")))
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in ask("jobs", "list").stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:hun@ter2@host/db?password=hunter2&x=1", "postgresql://me:***@host/db?password=***&x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////data/a@b:c.db", "sqlite:////data/a@b:c.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_that_was_started_without_its_streams_does_its_work(here: Path, closed: str) -> None:
    url = make(here / "jobs.db")
    command = [sys.executable, "-m", "holdfast", "queues", "pause", "mail", "--url", url]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "mail" in ask("queues", "list", "--json", "--url", url).stdout
