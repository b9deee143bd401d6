"""The run: jobs are enqueued share by share, a fault follows each, and all is watched until everything is finished.

It ends by itself: what is not finished at the deadline is left unfinished, and the checker says so.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from holdfast.app import Holdfast
from holdfast.chaos import ledger
from holdfast.chaos.application import LEASE, UPKEEP, application
from holdfast.chaos.history import Fault, History, Offer
from holdfast.chaos.ledger import Ledger
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.plan import Orders, Plan, Task
from holdfast.demo.crew import Crew, Worker
from holdfast.demo.verdict import name_of
from holdfast.demo.watch import Watch
from holdfast.domain import audit, history
from holdfast.domain.errors import KeyConflict
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Finding
from holdfast.runtime.signals import ending

RETURN_LIMIT: Micros = round((LEASE + 5 * UPKEEP + 10) * SECOND)
"""How long lost work may stay away: the lease, a lost leader's term, upkeep, and patience for a busy machine."""
_TICK = 0.03
_DUE_WITHIN = 60.0


class Screen(Protocol):
    """Where a run tells how it goes."""

    def event(self, text: str) -> None:
        """Say that something happened."""
        ...

    def draw(self, finished: int, workers: int, faults: int) -> None:
        """Show how things stand now."""
        ...


def deadline(orders: Orders) -> float:
    """Say after how many seconds a run gives up."""
    return 45 + orders.jobs / 10 + 8 * orders.kills + 20 * orders.freezes


class Run:
    """One chaos run on an empty store."""

    def __init__(self, url: str, folder: Path, orders: Orders, plan: Plan, screen: Screen) -> None:
        most = 2 * (orders.workers + orders.kills) + 10
        self.crew = Crew(url, folder, "holdfast.chaos.worker", most)
        self.seconds = 0.0
        self._orders = orders
        self._plan = plan
        self._screen = screen
        self._ledger = folder / "ledger"
        self._clients = [application(url, Ledger(self._ledger, f"client-{n}")) for n in (1, 2)]
        self._watch = Watch(self._clients[0].store)
        self._nemesis = Nemesis(self.crew, self._watch, self._until)
        self._offers: list[Offer] = []
        self._faults: list[Fault] = []
        self._strays: list[str] = []
        self._backwards: list[str] = []
        self._missed: list[str] = []
        self._stopped = False
        self._began = time.monotonic()
        self._end = self._began + deadline(orders)

    def stop(self) -> None:
        """End the run at the next look, and not in the middle of anything: a worker that is just being started would
        be left behind.
        """
        self._stopped = True

    def play(self) -> None:
        """Enqueue, strike and watch until everything is finished, or the time is over."""
        self._began = time.monotonic()
        for _ in range(self._orders.workers):
            self.crew.start()
        self._enqueue(self._plan.shares[0])
        for share, strike in zip(self._plan.shares[1:], self._plan.strikes, strict=True):
            if fault := self._nemesis.strike(strike):
                self._faults.append(fault)
                self._tell(fault)
            else:
                self._screen.event(f"no worker could be struck at work ({strike.sort})")
            self._enqueue_when_due(share)
        if not self._until(lambda: self._watch.finished(len(self._plan.tasks)), deadline(self._orders)):
            self._screen.event(f"gave up: {self._unfinished()} jobs are still unfinished")
        self.seconds = time.monotonic() - self._began
        self.crew.stop()

    def history(self) -> History:
        """Gather what is left when all is done."""
        store = self._watch.store
        self._look()
        records = list(self._watch.records.values())
        ended = {job.id: store.attempts(job.id) for job in records}
        now = store.now()
        return History(
            orders=self._orders,
            tasks=self._plan.tasks,
            offers=self._offers,
            records=records,
            attempts={job.id: [*ended[job.id], *filter(None, [history.last_attempt(job)])] for job in records},
            steps={job.id: found for job in records if job.step_cursor and (found := store.steps(job.id))},
            finals=self._watch.finals,
            ledger=ledger.read(self._ledger),
            faults=self._faults,
            strays=self._strays,
            backwards=self._backwards,
            missed=self._missed,
            findings=list(store.check()),
            violations=[
                Finding(promise, job.id, text)
                for job in records
                for promise, text in audit.violations(job, ended[job.id], now)
            ],
            return_limit=RETURN_LIMIT,
        )

    def close(self) -> None:
        """End every process and let the store go."""
        self.crew.kill_all()
        for client in self._clients:
            client.close()

    def _enqueue_when_due(self, share: tuple[Task, ...]) -> None:
        """Ask for a share once what is left of those before it is no more than that."""
        self._until(lambda: self._unfinished() <= len(share), _DUE_WITHIN)
        self._enqueue(share)

    def _enqueue(self, share: tuple[Task, ...]) -> None:
        """Ask for jobs: those without a key in one batch, those with one from two sides at once."""
        plain = [task for task in share if task.key is None]
        keyed = [task for task in share if task.key is not None]
        client = self._clients[0]
        jobs = client.enqueue_many([client.prepare(task.kind, task.payload) for task in plain])
        self._offers += [Offer(task.number, str(job.id)) for task, job in zip(plain, jobs, strict=True)]
        with ThreadPoolExecutor(len(self._clients)) as threads:
            for offers in threads.map(lambda client: [_offer(client, task) for task in keyed], self._clients):
                self._offers += offers
        self._offers += [_offer(client, task._replace(misses=task.misses + 1), other=True) for task in keyed]

    def _unfinished(self) -> int:
        return len({offer.id for offer in self._offers if offer.id}) - len(self._watch.finals)

    def _until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Look at everything until something is so; tell whether it was, in time."""
        end = min(self._end, time.monotonic() + seconds)
        while True:
            self._look()
            if condition():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(_TICK)

    def _look(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        before = self._watch.records
        self._watch.look()
        for job in self._watch.records.values():
            if (seen := before.get(job.id)) and _standing(job) < _standing(seen):
                self._backwards.append(f"{name_of(job)} went back from {_standing(seen)} to {_standing(job)}")
        self._missed += [name_of(job) for id_, job in before.items() if id_ not in self._watch.records]
        for worker in self.crew.bury():
            self._replace(worker)
        self._screen.draw(len(self._watch.finals), len(self.crew.alive), len(self._faults))

    def _replace(self, worker: Worker) -> None:
        if worker.killed_at is None:
            how = ending(worker.process.returncode)
            self._strays.append(f"{worker.name} {how} though nobody had killed it: {self.crew.last_words(worker)}")
        self.crew.start()

    def _tell(self, fault: Fault) -> None:
        jobs = f"{len(fault.held)} job{'s' * (len(fault.held) > 1)}"
        what = {
            "kill": f"{fault.worker} killed with -9, holding {jobs}",
            "freeze": f"{fault.worker} frozen with {jobs} until others had taken over, then let go on",
        }
        self._screen.event(what[fault.sort])


def _offer(client: Holdfast, task: Task, *, other: bool = False) -> Offer:
    """Ask for a job by its key."""
    try:
        job = client.enqueue(task.kind, task.payload, key=task.key)
    except KeyConflict:
        return Offer(task.number, None, other=other)
    return Offer(task.number, str(job.id), job.duplicate, other)


def _standing(job: JobRecord) -> tuple[int, int, int]:
    """What of a job only ever grows, the slowest first."""
    return job.step_cursor, job.token, job.version
