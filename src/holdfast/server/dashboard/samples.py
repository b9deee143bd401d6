"""How the counters moved: samples that this process takes once a second and keeps for five minutes, in memory only.

They are taken while somebody looks, and for a while after; a server that nobody looks at asks the store for nothing.
How fast jobs end is told from the counters. How long they wait and run is told from some of the jobs that were seen
running: each is looked up again once it runs no more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles

from holdfast.app import Holdfast
from holdfast.client.counts import Counts
from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import TERMINAL, JobRecord, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Query
from holdfast.server.dashboard.charts import Chart, Values, chart

WINDOW = 300
"""Seconds that are kept."""
_EVERY = 1.0
_IDLE = 300.0
"""Seconds after the last visitor until no more samples are taken."""
_FOLLOWED = 100
"""The most running jobs that are followed at once."""
_MOST_QUEUES = 200
_BUCKET = 5
_RATE_OVER = 60 * SECOND

_log = logging.getLogger("holdfast.server")


@dataclass(frozen=True, slots=True)
class Tide:
    """One queue at one moment: jobs that wait, that run, and that have ended."""

    waiting: int
    running: int
    ended: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment."""

    at: Micros
    counts: Counts
    queues: Mapping[str, Tide]
    waits: Sequence[Micros] = ()
    """How long jobs that have begun since had been due."""
    runs: Sequence[Micros] = ()
    """How long jobs that have succeeded since had run."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second, in the long run of a minute."""

    enqueued: float
    ended: float


@dataclass(slots=True)
class Followed:
    """The running jobs that are being followed, by id, and those whose wait is known already, by claim."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)

    def look(self, app: Holdfast) -> tuple[list[Micros], list[Micros]]:
        """See which jobs run now, and what became of those that ran before; give their waits and their runs."""
        running = {job.id: job for job in app.store.find(Query(State.RUNNING, limit=_FOLLOWED))}
        begun = [job for job in running.values() if not self._known(job)]
        gone = [id_ for id_, job in self.jobs.items() if not _same(running.get(id_), job)]
        ended = [job for job in app.store.read(gone) if job is not None and job.state is State.SUCCEEDED]
        self.jobs = running
        waits = [job.claimed_at - job.available_at for job in begun if job.claimed_at is not None]
        runs = [job.finished_at - job.claimed_at for job in ended if job.finished_at and job.claimed_at]
        return [max(wait, 0) for wait in waits], runs

    def _known(self, job: JobRecord) -> bool:
        return _same(self.jobs.get(job.id), job)


def _same(one: JobRecord | None, other: JobRecord) -> bool:
    return one is not None and one.token == other.token


def take(app: Holdfast, followed: Followed) -> Sample:
    """Look at the store once."""
    counts = app.counts()
    waits, runs = followed.look(app)
    shown = list(counts.queues.items())[:_MOST_QUEUES]
    return Sample(app.store.now(), counts, {queue: tide(states) for queue, states in shown}, waits, runs)


def tide(states: Mapping[str, int]) -> Tide:
    """Sum up the states of a queue."""
    ended = sum(states[state] for state in TERMINAL)
    running = states[State.RUNNING]
    return Tide(sum(states.values()) - ended - running, running, ended)


class Sampler:
    """Takes the samples. Whoever shows them says so with `visit`, on the event loop of the server."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._samples: deque[Sample] = deque(maxlen=WINDOW + 1)
        self._followed = Followed()
        self._task: asyncio.Task[None] | None = None
        self._visited = 0.0
        self._news = asyncio.Event()
        self.trouble: str | None = None
        """Why the last sample could not be taken."""

    def visit(self) -> None:
        """Say that somebody looks."""
        loop = asyncio.get_running_loop()
        self._visited = loop.time()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._news = asyncio.Event()
            self._task = loop.create_task(self._run(loop.time), name="holdfast-samples")

    async def wait(self) -> None:
        """Wait until a sample has been taken, or could not be."""
        await self._news.wait()

    @property
    def samples(self) -> list[Sample]:
        """The samples of the last minutes, oldest first."""
        kept = list(self._samples)
        return [sample for sample in kept if sample.at >= kept[-1].at - WINDOW * SECOND]

    async def _run(self, time: Callable[[], float]) -> None:
        while time() - self._visited < _IDLE:
            begun = time()
            try:
                self._samples.append(await asyncio.to_thread(take, self._app, self._followed))
                self.trouble = None
            except HoldfastError as error:
                self.trouble = str(error)
            except Exception:  # noqa: BLE001 - whoever looks is told, and the next sample may be well
                _log.exception("the dashboard could not look at the store")
                self.trouble = "The store could not be looked at; the server's log says why."
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(max(_EVERY - (time() - begun), 0.1))


def rates(samples: Sequence[Sample]) -> dict[str, Rate]:
    """Give the rates of each queue over the last minute; none before there are two samples."""
    recent = [sample for sample in samples if samples[-1].at - sample.at <= _RATE_OVER]
    if len(recent) < 2:  # noqa: PLR2004 - a rate takes two
        return {}
    found: dict[str, Rate] = {}
    seconds = max((recent[-1].at - recent[0].at) / SECOND, 0.001)
    for queue in recent[-1].queues:
        tides = [sample.queues.get(queue, Tide(0, 0, 0)) for sample in recent]
        ended = _risen([tide.ended for tide in tides])
        came = _risen([tide.waiting + tide.running + tide.ended for tide in tides])
        found[queue] = Rate(came / seconds, ended / seconds)
    return found


def _risen(values: Sequence[int]) -> int:
    """Add up the steps upward; a step downward is a purge."""
    return sum(max(after - before, 0) for before, after in pairwise(values))


def throughput(samples: Sequence[Sample]) -> Chart:
    """Draw how many jobs ended per second."""
    series: dict[str, Values] = {}
    for state in (State.SUCCEEDED, State.DEAD):
        series[state.value] = _speeds(samples, state)
    return chart("Throughput", "jobs per second", series, seconds=WINDOW)


def latency(samples: Sequence[Sample]) -> Chart:
    """Draw how long jobs waited and ran: the middle one, and the one that 95 of 100 were faster than."""
    measures: dict[str, Callable[[Sample], Sequence[Micros]]] = {
        "waited": lambda sample: sample.waits,
        "ran": lambda sample: sample.runs,
    }
    series: dict[str, Values] = {}
    for name, measure in measures.items():
        for percent in (50, 95):
            series[f"{name} p{percent}"] = _percentiles(samples, measure, percent)
    return chart("Latency", "seconds", series, seconds=WINDOW)


def _places(samples: Sequence[Sample]) -> list[list[int]]:
    """Sort the samples, by their numbers, into the steps of a chart; the last step is the present."""
    buckets: list[list[int]] = [[] for _ in range(WINDOW // _BUCKET)]
    for number, sample in enumerate(samples):
        back = (samples[-1].at - sample.at) // (_BUCKET * SECOND)
        if back < len(buckets):
            buckets[len(buckets) - 1 - back].append(number)
    return buckets


def _speeds(samples: Sequence[Sample], state: State) -> Values:
    values: list[float | None] = []
    for bucket in _places(samples):
        steps = [_speed(samples[number - 1], samples[number], state) for number in bucket if number]
        seconds = sum(span for _, span in steps) / SECOND
        values.append(sum(jobs for jobs, _ in steps) / seconds if seconds else None)
    return values


def _speed(before: Sample, after: Sample, state: State) -> tuple[int, Micros]:
    span = after.at - before.at
    return (max(after.counts[state] - before.counts[state], 0), span) if span < 2 * _BUCKET * SECOND else (0, 0)


def _percentiles(samples: Sequence[Sample], measure: Callable[[Sample], Sequence[Micros]], percent: int) -> Values:
    values: list[float | None] = []
    for bucket in _places(samples):
        seen = [span / SECOND for number in bucket for span in measure(samples[number])]
        values.append(_percentile(seen, percent))
    return values


def _percentile(seen: list[float], percent: int) -> float | None:
    if len(seen) < 2:  # noqa: PLR2004 - quantiles takes two
        return seen[0] if seen else None
    return quantiles(seen, n=100, method="inclusive")[percent - 1]
