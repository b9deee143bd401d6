"""The play: jobs are enqueued, workers work, die and are replaced, and all is watched until everything is finished."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.client.job import Job
from holdfast.demo import application as archive
from holdfast.demo import ledger, plan
from holdfast.demo.crew import Crew, Worker
from holdfast.demo.evidence import Accepted, Death, Evidence
from holdfast.demo.ledger import Ledger
from holdfast.demo.screen import Screen
from holdfast.demo.watch import Watch
from holdfast.domain import audit, history
from holdfast.domain.job import AttemptRecord, Cause, JobRecord, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Finding

WORKERS = 3
DEADLINE = 30.0
"""Seconds after which the demo gives up waiting and shows what is missing."""
RETURN_LIMIT: Micros = round((archive.LEASE + 2 * archive.UPKEEP + 1.5) * SECOND)
"""How long a dead worker's jobs may stay away: the lease, two rounds of upkeep, and patience for a busy machine."""
_TICK = 0.1
_KILL_AFTER = 0.2
_KILL_ANYWAY = 7.0
_POISON = f"ocr:{plan.POISON}"


class Demo:
    """One run."""

    def __init__(self, planned: plan.Plan, folder: Path, screen: Screen) -> None:
        self.screen = screen
        self.crew = Crew(f"sqlite:///{folder / 'holdfast.db'}", folder)
        self.seconds = 0.0
        self._plan = planned
        self._fates = planned.fates()
        self._ledger = folder / "ledger"
        self._servers = [self._server(f"server-{n}", folder) for n in (1, 2)]
        self._watch = Watch(self._servers[0].store)
        self._accepted: list[Accepted] = []
        self._deaths: list[tuple[Worker, Micros]] = []
        self._killed = False

    @staticmethod
    def _server(name: str, folder: Path) -> Holdfast:
        return archive.application(f"sqlite:///{folder / 'holdfast.db'}", Ledger(folder / "ledger", name))

    def play(self) -> None:
        """Enqueue everything and watch until everything is finished, or the time is over."""
        with self.screen.open():
            for _ in range(WORKERS):
                self.crew.start()
            self._enqueue()
            while not self._over():
                time.sleep(_TICK)
            self.seconds = self.screen.elapsed
            self.crew.stop()

    def evidence(self) -> Evidence:
        """Gather what is left when all is done."""
        store = self._watch.store
        self._watch.look()
        records = list(self._watch.records.values())
        ended = {job.id: store.attempts(job.id) for job in records}
        won = {job.id: history.last_attempt(job) for job in records}
        written = ledger.read(self._ledger)
        return Evidence(
            fates=self._fates,
            accepted=[*self._accepted, *(Accepted(e.note, e.sent, e.duplicate) for e in written if e.word == "sent")],
            records=records,
            attempts={id_: [*history, *([last] if (last := won[id_]) else [])] for id_, history in ended.items()},
            finals=self._watch.finals,
            ledger=written,
            deaths=[self._death(worker, at, written) for worker, at in self._deaths],
            findings=[*store.check(), *_violations(records, ended, store.now())],
            return_limit=RETURN_LIMIT,
        )

    def close(self) -> None:
        """End every process and let the store go."""
        self.crew.kill_all()
        for server in self._servers:
            server.close()

    def _enqueue(self) -> None:
        stored = archive.enqueue_backlog(self._servers[0], self._plan)
        self._accept(stored)
        documents, calls = len(self._plan.documents), len(self._plan.calls)
        self.screen.event(f"{documents} documents to ingest and {calls} webhooks to deliver: stored")
        with ThreadPoolExecutor(len(self._servers)) as threads:
            asked = list(threads.map(lambda app: archive.enqueue_summaries(app, self._plan.summaries), self._servers))
        for jobs in asked:
            self._accept(jobs)
        known = sum(job.duplicate for jobs in asked for job in jobs)
        planned = len(self._plan.summaries)
        self.screen.event(f"two servers plan the same {planned} daily summaries: {known} duplicates turned away")

    def _accept(self, jobs: list[Job[Any]]) -> None:
        self._accepted += [Accepted(job.key or "", str(job.id), job.duplicate) for job in jobs]

    def _over(self) -> bool:
        """Look at everything once; tell whether the run is over."""
        fallen = self.crew.bury()
        finished = self._watch.look()
        for worker in fallen:
            self._replace(worker)
        for name, jobs in self._watch.recovered():
            self.screen.event(f"the lease of worker {_number(name)} expired: {_jobs(jobs)} taken back", "cyan")
        for job in finished:
            if job.state is State.DEAD:
                self.screen.event(_obituary(job), "red")
        if not self._killed and (victim := self._victim()):
            self.crew.kill(victim)
            self._killed = True
        self.screen.draw(self._watch.counts(), len(self.crew.alive))
        if self._killed and self._watch.finished(len(self._fates)):
            return True
        if self.screen.elapsed > DEADLINE or not self.crew.alive:
            left = len(self._fates) - len(self._watch.finals)
            self.screen.event(f"gave up: {left} jobs are still unfinished", "bold red")
            return True
        return False

    def _victim(self) -> Worker | None:
        """Choose a worker to kill while it is busy, but never one that is about to be killed by the poison document."""
        busiest = max(self.crew.alive, key=lambda worker: len(self._watch.held_by(worker.name)), default=None)
        if busiest is None or self.screen.elapsed > _KILL_ANYWAY:
            return busiest
        poison = self._watch.keyed(_POISON)
        alive = {worker.name for worker in self.crew.alive}
        asleep = poison is not None and poison.state is State.RUNNING and poison.lease_owner not in alive
        busy = len(self._watch.finals) >= _KILL_AFTER * len(self._fates) and self._watch.held_by(busiest.name)
        return busiest if poison and asleep and self._watch.lease_left(poison) > SECOND // 2 and busy else None

    def _replace(self, worker: Worker) -> None:
        held = self._watch.lost(worker.name)
        at = worker.killed_at if worker.killed_at is not None else self._servers[0].store.now()
        self._deaths.append((worker, at))
        if worker.killed_at is not None:
            what = f"worker {worker.number} killed with -9, holding {_jobs(held)}"
        elif worker.process.returncode == -signal.SIGKILL:
            what = f"poison document kills worker {worker.number}, which held {_jobs(held)}"
        else:
            what = f"worker {worker.number} ended by itself: {self.crew.last_words(worker)}"
        successor = self.crew.start()
        self.screen.event(what + (f"; worker {successor.number} steps in" if successor else ""), "yellow")

    @staticmethod
    def _death(worker: Worker, at: Micros, written: list[ledger.Entry]) -> Death:
        """Say when a worker died: to the microsecond, if the poison document wrote it down."""
        if worker.killed_at is not None:
            return Death(worker.name, at, "demo")
        fatal = [entry.at for entry in written if entry.word == "fatal" and entry.worker == worker.name]
        return Death(worker.name, fatal[-1], "poison") if fatal else Death(worker.name, at, "itself")


def _violations(
    records: Sequence[JobRecord], ended: Mapping[str, Sequence[AttemptRecord]], now: Micros
) -> Iterator[Finding]:
    """Look for what the lifecycle never leaves behind, as `holdfast check` does."""
    for job in records:
        for promise, text in audit.violations(job, ended[job.id], now):
            yield Finding(promise, job.id, text)


def _number(name: str) -> str:
    return name.rpartition("-")[2]


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"


def _obituary(job: JobRecord) -> str:
    match job.cause:
        case Cause.REJECTED:
            how = f"rejected ({job.failure_code})"
        case Cause.CRASHED:
            how = f"stopped after {job.crashes} crashes"
        case _:
            how = f"{job.cause} after {job.attempt} attempts"
    return f"dead letter: {job.key}, {how}"
