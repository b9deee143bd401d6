"""`holdfast copy` as people run it: real processes, and a kill in the middle."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest

from holdfast import Holdfast
from holdfast.domain import moving
from holdfast.domain.job import JobRecord, State
from holdfast.port.store import Query, Store
from holdfast.stores import open_store
from tests.surfaces.processes import parsed, run, started, until, write_application

JOBS = 3_000


def seeded(url: str, number: int = JOBS) -> set[str]:
    """Store jobs; give their ids."""
    with closing(Holdfast(url)) as app:

        @app.job
        def add(a: int, b: int) -> int:
            raise NotImplementedError

        jobs = app.enqueue_many([add.prepare(a=n, b=1) for n in range(number)])
        return {str(job.id) for job in jobs}


def jobs_of(store: Store) -> Iterator[JobRecord]:
    query = Query(limit=1_000)
    while page := store.find(query):
        yield from page
        query = query._replace(before=page[-1].id)


def states(url: str) -> dict[str, State]:
    with closing(open_store(url)) as store:
        return {job.id: job.state for job in jobs_of(store)}


def count(store: Store, state: State) -> int:
    return sum(number for (_, each), number in store.counts().items() if each is state)


def require_clean(url: str, folder: Path) -> None:
    checked = run("check", "--url", url, cwd=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _come(reached: Callable[[], bool], copier: "Popen[bytes]") -> bool:
    return reached() or copier.poll() is not None


def kills_then_finishes(source: str, target: str, folder: Path) -> None:
    """Kill copies as soon as they have come a bit further, and let one finish; then look whether all came through."""
    ids = seeded(source)
    assert run("migrate", "--url", target, cwd=folder).returncode == 0
    words = ("copy", "--from", source, "--to", target)
    with closing(open_store(source)) as here, closing(open_store(target)) as there:
        goals: list[Callable[[], bool]] = [
            lambda: any(moving.held(job) for job in jobs_of(here)),
            lambda: count(there, State.QUEUED) > 0,
            lambda: count(here, State.CANCELLED) > JOBS // 3,
            lambda: count(there, State.QUEUED) > JOBS // 2,
            lambda: any(not moving.held(job) for job in jobs_of(there)),
        ]
        killed = 0
        for reached in goals:
            with started(*words, cwd=folder) as copier:
                until(partial(_come, reached, copier), within=60)
                killed += copier.poll() is None
                copier.kill()
    assert killed > 1, "copies were too quick to be killed"
    done = run(*words, "--json", cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    assert states(target) == dict.fromkeys(ids, State.QUEUED)
    assert states(source) == dict.fromkeys(ids, State.CANCELLED)
    with closing(open_store(target)) as there:
        assert not any(moving.held(job) for job in jobs_of(there))
    for url in (source, target):
        require_clean(url, folder)


def test_copies_that_are_killed_are_finished_by_the_next_from_sqlite_to_sqlite(tmp_path: Path) -> None:
    kills_then_finishes(f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db", tmp_path)


def test_copies_that_are_killed_are_finished_by_the_next_from_sqlite_to_postgresql(
    tmp_path: Path, postgres_url: str
) -> None:
    kills_then_finishes(f"sqlite:///{tmp_path}/a.db", postgres_url, tmp_path)


def test_copies_that_are_killed_are_finished_by_the_next_from_postgresql_to_sqlite(
    tmp_path: Path, postgres_url: str
) -> None:
    kills_then_finishes(postgres_url, f"sqlite:///{tmp_path}/b.db", tmp_path)


def test_a_moved_job_says_where_it_went_and_runs_there(tmp_path: Path) -> None:
    target = write_application(tmp_path)
    source, there = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/jobs.db"
    [id_] = seeded(source, 1)
    assert run("migrate", "--url", there, cwd=tmp_path).returncode == 0
    done = run("copy", "--from", source, "--to", there, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 waiting job and 0 dead jobs are moved" in done.stdout
    shown = parsed(run("jobs", "show", id_, "--url", source, "--json", cwd=tmp_path).stdout)
    assert (shown["state"], shown["failure"]["code"]) == ("cancelled", "moved")
    assert there in shown["failure"]["message"]
    with started("worker", target, cwd=tmp_path):
        until(lambda: states(there) == {id_: State.SUCCEEDED})


def test_a_second_copy_does_not_take_the_pause_of_the_first_for_the_operators(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    seeded(source, 1)
    assert run("migrate", "--url", target, cwd=tmp_path).returncode == 0
    first, second = (run("copy", "--from", source, "--to", target, cwd=tmp_path) for _ in range(2))
    assert "Paused" not in first.stdout
    assert "Paused in the source before this, by hand or by an earlier copy: default." in second.stdout


def test_a_copy_tells_which_rules_and_pauses_the_target_lacks(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    seeded(source, 1)
    assert run("migrate", "--url", target, cwd=tmp_path).returncode == 0
    with closing(Holdfast(source)) as app, closing(Holdfast(target)) as other:
        app.pause(tenant="acme")
        app.pause(kind="add")
        app.limits.set("mail", concurrency=2)
        done = run("copy", "--from", source, "--to", target, cwd=tmp_path)
        assert "Tenants that are paused in the source and not in the target: acme." in done.stdout
        assert "Kinds that are paused in the source and not in the target: add." in done.stdout
        assert "Queues whose limits or order are others in the target: mail." in done.stdout
        other.pause(tenant="acme")
        other.limits.set("mail", concurrency=2)
    told = parsed(run("copy", "--from", source, "--to", target, "--json", cwd=tmp_path).stdout)
    assert (told["paused_tenants"], told["paused_kinds"], told["limited_queues"]) == ([], ["add"], [])


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (("--from", "sqlite:///a.db"), "Missing option '--to'", 2),
        (("--from", "sqlite:///a.db", "--to", "sqlite:///no.db"), "There is no database at no.db", 1),
        (("--from", "memory://", "--to", "sqlite:///a.db"), "memory:// lives inside one process", 2),
        (("--from", "sqlite:///a.db", "--to", "sqlite:///./a.db"), "one and the same store", 2),
    ],
)
def test_what_cannot_be_copied_is_told_in_a_sentence(
    tmp_path: Path, words: tuple[str, ...], sentence: str, code: int
) -> None:
    assert run("migrate", "--url", "sqlite:///a.db", cwd=tmp_path).returncode == 0
    done = run("copy", *words, cwd=tmp_path)
    assert sentence in done.stderr
    assert done.returncode == code
