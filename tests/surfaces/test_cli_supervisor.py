"""The supervisor's own rules, with children that are as simple as can be."""

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from holdfast.client.settings import settings
from holdfast.domain import lifecycle
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import NewJob, State
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim
from holdfast.runtime.supervisor import Supervisor, Undertaker
from holdfast.stores.memory import MemoryStore
from tests.surfaces.processes import until

WAITS = "import sys; sys.stdin.read(); import signal; signal.pause()"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def supervisor(
    command: Callable[[str, int], Sequence[str]], *, processes: int = 1, until_idle: bool = False
) -> Supervisor:
    return Supervisor(
        command=command, processes=processes, store=MemoryStore(), settings=settings(grace=1), until_idle=until_idle
    )


def test_a_child_that_was_asked_for_the_impossible_ends_everything() -> None:
    started: list[str] = []

    def command(worker_id: str, pipe: int) -> list[str]:
        started.append(worker_id)
        return python("raise SystemExit(2)" if len(started) == 2 else WAITS)

    assert supervisor(command, processes=2).run() == 2
    assert len(set(started)) == 2


def test_a_child_that_keeps_dying_at_once_is_replaced_ever_more_slowly() -> None:
    starts: list[float] = []

    def command(worker_id: str, pipe: int) -> list[str]:
        starts.append(time.monotonic())
        if len(starts) == 4:
            subject.stop()
        return python("raise SystemExit(1)")

    subject = supervisor(command)
    subject.run()
    first, second, third = (after - before for before, after in pairwise(starts))
    assert first < 0.5 <= second < 1.0 <= third


def test_an_idle_child_is_not_replaced_but_a_crashed_one_is() -> None:
    started: list[str] = []

    def command(worker_id: str, pipe: int) -> list[str]:
        started.append(worker_id)
        return python("import os; os.kill(os.getpid(), 9)" if len(started) == 1 else "raise SystemExit(0)")

    assert supervisor(command, until_idle=True).run() == 0
    assert len(set(started)) == 2


def test_a_child_that_was_told_to_stop_by_somebody_else_is_replaced() -> None:
    started: list[str] = []

    def command(worker_id: str, pipe: int) -> list[str]:
        started.append(worker_id)
        if len(started) == 2:
            subject.stop()
            return python(WAITS)
        return python("raise SystemExit(0)")

    subject = supervisor(command)
    assert subject.run() == 0
    assert len(started) == 2


def test_jobs_are_taken_back_once_a_store_that_was_away_is_there_again() -> None:
    class Moody(MemoryStore):
        complaints = 0

        def abandon(self, owner: str) -> int:
            if self.complaints == 0:
                self.complaints += 1
                msg = "The store is away."
                raise StoreUnavailable(msg)
            return super().abandon(owner)

    store = Moody()
    store.insert([[("job", NewJob("echo", "{}"))]])
    [job] = store.claim(Claim("ada", "lease", MINUTE, 1))
    assert job.state is State.RUNNING
    undertaker = Undertaker(store, settings())
    undertaker.settle("ada")
    until(lambda: [each for each in store.read(["job"]) if each and each.state is State.RETRYING])
    undertaker.close()
    [attempt] = store.attempts("job")
    assert attempt.code == lifecycle.LEASE_EXPIRED


def test_a_child_starts_in_the_folder_it_is_to_start_in_as_long_as_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    code = f"import os; open({str(tmp_path / 'told')!r}, 'a').write(os.getcwd() + chr(10)); raise SystemExit(2)"
    for _ in range(2):
        Supervisor(
            command=lambda worker_id, pipe: python(code),  # noqa: ARG005
            processes=1,
            store=MemoryStore(),
            settings=settings(grace=1),
            folder=str(folder),
        ).run()
        if folder.exists():
            folder.rmdir()
    assert (tmp_path / "told").read_text().splitlines() == [str(folder), str(Path.cwd())]
