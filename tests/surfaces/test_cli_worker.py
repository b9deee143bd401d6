"""`holdfast worker` as a user runs it: real processes on a SQLite file."""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.surfaces.processes import alive, client, kill, ledger, output, run, started, told, until, write_application

GONE_SOON = 8.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with closing(client(tmp_path)) as opened:
        yield opened


def names(app: Holdfast, number: int) -> Callable[[], set[str]]:
    """Look whether this many workers are up, and name them."""

    def look() -> set[str]:
        up = {worker.id for worker in app.store.workers()}
        return up if len(up) == number else set()

    return look


def test_a_worker_drains_what_there_is_and_ends_when_idle(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    jobs = [app.enqueue("add", {"a": n, "b": n}) for n in range(20)]
    done = run("worker", target, "--until-idle", "-c", "3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [job.refresh().state for job in jobs] == ["succeeded"] * 20
    assert jobs[3].result() == 6


def test_a_worker_says_in_one_line_what_it_does(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    words = ("worker", target, "--until-idle", "-q", "mail", "-q", "bulk=3", "-c", "7", "--worker-id", "ada")
    done = run(*words, cwd=tmp_path)
    assert done.stdout == f"worker ada serves mail, bulk (at most 3), 7 jobs at once, on sqlite:///{tmp_path}/jobs.db\n"


ELSEWHERE = """
import os
from holdfast import Holdfast

app = Holdfast()
os.chdir("data")


@app.job
def first() -> str:
    return apart.enqueue().kind


@app.job(run_in="process")
def apart() -> str:
    return last.enqueue().kind


@app.job
def last() -> str:
    return os.getcwd()
"""


@pytest.mark.parametrize("words", [(), ("--processes", "2")])
def test_every_process_of_a_worker_uses_the_file_of_the_folder_that_it_was_started_in(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "moving.py").write_text(ELSEWHERE, encoding="utf-8")
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    with closing(app):
        app.job(name="first")(lambda: None)
        app.enqueue("first", {})
        done = run("worker", "moving.py:app", "--until-idle", *words, cwd=tmp_path, HOLDFAST_URL="sqlite:///jobs.db")
        assert done.returncode == 0, done.stderr
        assert {job.kind: job.state for job in app.find()} == dict.fromkeys(("first", "apart", "last"), "succeeded")
        assert app.find(kind="last")[0].result() == str(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_worker_serves_the_queues_it_was_given_and_no_others(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    mail, other = app.enqueue("reject", {"who": "x"}), app.enqueue("add", {"a": 1, "b": 2})
    assert run("worker", target, "--until-idle", "-q", "mail", cwd=tmp_path).returncode == 0
    assert (mail.refresh().state, other.refresh().state) == ("dead", "queued")


def test_a_module_on_the_path_is_found_like_a_file(tmp_path: Path, app: Holdfast) -> None:
    write_application(tmp_path)
    job = app.enqueue("add", {"a": 1, "b": 2})
    assert run("worker", "shop:app", "--until-idle", cwd=tmp_path).returncode == 0
    assert job.refresh().state == "succeeded"


def test_a_file_inside_a_package_may_import_its_neighbours(tmp_path: Path, app: Holdfast) -> None:
    package = tmp_path / "store_front"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text("QUEUE = 'here'\n")
    (package / "tasks.py").write_text(
        "from holdfast import Holdfast\nfrom .names import QUEUE\n"
        f"app = Holdfast('sqlite:///{tmp_path}/jobs.db')\n"
        "@app.job(queue=QUEUE)\ndef hello() -> str:\n    return 'hello'\n"
    )
    done = run("worker", f"{package}/tasks.py:app", "--until-idle", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_sigterm_lets_a_running_job_finish(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    job = app.enqueue("hold", {"name": "go"})
    with started("worker", target, cwd=tmp_path) as worker:
        until(told(tmp_path))
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.wait(GONE_SOON) == 0
    assert job.refresh().state == "succeeded"


def test_a_signal_that_another_thread_takes_is_heeded_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import signal, threading\nfrom holdfast import Holdfast\n"
        f"app = Holdfast('sqlite:///{tmp_path}/jobs.db')\n"
        "@app.job\ndef stop() -> None:\n    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
    )
    with closing(Holdfast(f"sqlite:///{tmp_path}/jobs.db")) as app:

        @app.job
        def stop() -> None:
            raise NotImplementedError

        stop.enqueue()
    with started("worker", f"{tmp_path}/shop.py:app", cwd=tmp_path) as worker:
        assert worker.wait(GONE_SOON) == 0


@pytest.mark.parametrize("words", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_a_second_signal_gives_a_running_job_back(tmp_path: Path, app: Holdfast, words: tuple[str, ...]) -> None:
    target = write_application(tmp_path, grace=60)
    job = app.enqueue("hold", {"name": "go"})
    with started("worker", target, *words, cwd=tmp_path) as worker:
        until(told(tmp_path))
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)  # counts as the second word; two of a kind may arrive as one
        assert worker.wait(GONE_SOON) == 0
    job.refresh()
    assert (job.state, job.attempt) == ("retrying", 0)


def test_a_killed_child_is_replaced_and_its_job_is_taken_back_at_once(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    job = app.enqueue("hold", {"name": "go"})
    with started("worker", target, "--processes", "2", cwd=tmp_path) as parent:
        [[_, first]] = until(told(tmp_path))
        before = until(names(app, 2))
        kill(int(first))
        [_, [_, second]] = until(told(tmp_path, 2), within=2)
        assert second != first
        until(lambda: len(before & until(names(app, 2))) == 1)
        (tmp_path / "go").touch()
        assert job.result(timeout=5) == "go"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(GONE_SOON) == 0
    attempts = app.attempts(job.id)
    assert [(each.attempt, each.outcome, each.code) for each in attempts] == [
        (1, "reap", "lease_expired"),
        (2, "complete", None),
    ]
    assert "was ended by SIGKILL; its jobs are taken back" in output(tmp_path, "err")
    assert "Traceback" not in output(tmp_path, "err")


def test_what_a_killed_child_left_running_ends_with_it(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    app.enqueue("hold_apart", {"name": "go"})
    with started("worker", target, "--processes", "1", cwd=tmp_path) as parent:
        [[_, worker, handler]] = until(told(tmp_path))
        kill(int(worker))
        until(lambda: not alive(int(handler)), within=2)
        until(told(tmp_path, 2), within=5)
        (tmp_path / "go").touch()
        until(lambda: app.counts()["succeeded"])
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(GONE_SOON) == 0


def test_sigterm_to_the_parent_drains_every_child(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    jobs = [app.enqueue("hold", {"name": "go"}) for _ in range(4)]
    with started("worker", target, "--processes", "2", "-c", "2", cwd=tmp_path) as parent:
        lines = until(told(tmp_path, 4))
        parent.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert parent.wait(GONE_SOON) == 0
    assert not any(alive(int(pid)) for _, pid in lines)
    assert {job.refresh().state for job in jobs} == {"succeeded"}


def test_a_child_that_does_not_end_in_time_is_killed_and_its_job_taken_back(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path, grace=0.2)
    job = app.enqueue("hold", {"name": "never"})
    with started("worker", target, "--processes", "1", cwd=tmp_path) as parent:
        [[_, pid]] = until(told(tmp_path))
        kill(int(pid), signal.SIGSTOP)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(GONE_SOON) == 1
    assert not alive(int(pid))
    assert "did not end in time and is killed" in output(tmp_path, "err")
    assert job.refresh().state == "retrying"


def test_children_end_soon_after_a_parent_that_was_killed(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path, grace=0.5)
    for _ in range(2):
        app.enqueue("hold", {"name": "never"})
    with started("worker", target, "--processes", "2", "-c", "1", cwd=tmp_path) as parent:
        lines = until(told(tmp_path, 2))
        parent.kill()
        parent.wait()
        until(lambda: not any(alive(int(pid)) for _, pid in lines), within=GONE_SOON)
    assert app.counts()["running"] == 0


def test_idle_children_end_and_the_parent_with_them(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    app.enqueue_many([app.prepare("add", {"a": n, "b": n}) for n in range(50)])
    done = run("worker", target, "--processes", "2", "--until-idle", "-q", "default", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert app.counts()["succeeded"] == 50


def test_a_job_that_kills_its_worker_is_bounded_and_the_others_go_on(tmp_path: Path, app: Holdfast) -> None:
    target = write_application(tmp_path)
    poison = app.enqueue("die", {})
    with started("worker", target, "--processes", "1", cwd=tmp_path) as parent:
        until(lambda: poison.refresh().state == "dead", within=15)
        job = app.enqueue("add", {"a": 1, "b": 2})
        assert job.result(timeout=10) == 3
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(GONE_SOON) == 0
    assert poison.cause == "crashed"
    assert run("check", "--url", app.url, cwd=tmp_path).returncode == 0


def test_an_orphaned_file_descriptor_is_not_handed_on(tmp_path: Path, app: Holdfast) -> None:
    """A handler's process must not keep the pipe open by which the worker sees its parent's end."""
    target = write_application(tmp_path, grace=0.5)
    app.enqueue("hold_apart", {"name": "never"})
    with started("worker", target, "--processes", "1", cwd=tmp_path) as parent:
        [[_, worker, handler]] = until(told(tmp_path))
        parent.kill()
        parent.wait()
        until(lambda: not alive(int(worker)) and not alive(int(handler)), within=GONE_SOON)


def test_the_worker_starts_again_when_its_code_changes(tmp_path: Path, app: Holdfast) -> None:
    write_application(tmp_path, grace=1)
    with started("dev", "shop:app", cwd=tmp_path) as parent:
        until(names(app, 1))
        source = (tmp_path / "shop.py").read_text()
        (tmp_path / "shop.py").write_text("raise RuntimeError('half way through an edit')\n")
        until(lambda: "it starts again at the next change" in output(tmp_path, "err"))
        assert "half way through an edit" in output(tmp_path, "err")
        (tmp_path / "shop.py").write_text(source.replace("return a + b", "return 42"))
        assert app.enqueue("add", {"a": 1, "b": 2}).result(timeout=10) == 42
        parent.send_signal(signal.SIGINT)
        assert parent.wait(GONE_SOON) == 0
    assert not app.store.workers()
    assert "Traceback" not in output(tmp_path, "err")
    assert ledger(tmp_path) == []


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_worker_on_an_unusable_store_says_so_and_fails(tmp_path: Path, words: tuple[str, ...]) -> None:
    target = write_application(tmp_path)
    (tmp_path / "jobs.db").write_text("this is no database, whatever its name says, and never was one\n" * 20)
    done = run("worker", target, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "is not a Holdfast database" in done.stderr


def test_processes_cannot_share_a_store_that_lives_in_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from holdfast import Holdfast\napp = Holdfast('memory://')\n")
    done = run("worker", "shop:app", "--processes", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be shared by several processes" in done.stderr
