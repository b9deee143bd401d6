"""The whole of `holdfast bench`: every measure in rounds, ours and the floors in turn, and what came of it."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.bench import measures
from holdfast.bench.lines import Line, typical
from holdfast.bench.measures import Drained, Latency
from holdfast.bench.place import Place, place
from holdfast.runtime.signals import ends_on_signals

BATCHES = (100, 500, 1_000)
_SLICES = 10
"""Enqueues and their floor take turns this often in a round: a disk's speed drifts within seconds."""
_BULKS = 3
"""The same for those of many jobs at once."""
_AGAINST = {"bulk": "bare bulk", "single": "bare single", "threads": "single", "tasks": "single"}
"""What a rate is compared with, in the same turn."""
_GOALS = {
    "postgresql": {
        "floor": 0.4, "own_floor": 0.7, "cpu": 35.0, "commits": 0.02, "bulk": 0.3, "single": 0.8, "at_once": 4.0,
    },
    "sqlite": {"cpu": 50.0, "at_once": 4.0, "p99": 20.0},
}  # fmt: skip
"""What we have set ourselves, by engine."""


class Sizes(NamedTuple):
    """How much is done."""

    jobs: int = 50_000
    few: int = 2_000
    """Jobs that are enqueued one at a time."""
    timed: int = 300
    """Jobs whose latency is measured."""
    rounds: int = 3
    settle: float = 2.0
    """Seconds that a worker is given to become idle."""

    @classmethod
    def chosen(cls, jobs: int | None, *, short: bool) -> "Sizes":
        """Read what was asked for."""
        sizes = cls(10_000, 400, 60, 1, 0.5) if short else cls()
        if jobs is None:
            return sizes
        few, timed = max(min(sizes.few, jobs), 2 * _SLICES), max(min(sizes.timed, jobs // 5), 20)
        return sizes._replace(jobs=jobs, few=few, timed=timed)

    @property
    def batches(self) -> list[int]:
        """Batch sizes at which the floors are tried: none larger than what there is."""
        return [batch for batch in BATCHES if batch <= max(self.jobs, BATCHES[0])]


@dataclass
class Samples:
    """What each round gave; a figure is the median."""

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    drains: dict[int, list[Drained]] = field(default_factory=lambda: defaultdict(list))
    floors: dict[int, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    own_floors: dict[int, dict[int, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Rates by processes and batch size."""
    latency: Latency | None = None

    def rate(self, name: str) -> float | None:
        """Give the median of a rate, if it was measured."""
        return statistics.median(self.rates[name]) if self.rates.get(name) else None

    def pair(self, name: str) -> tuple[float, float] | None:
        """Give a rate and what it is compared with, if both were measured, from the turn whose ratio is the median."""
        pairs = zip(self.rates.get(name, ()), self.rates.get(_AGAINST[name], ()), strict=False)
        return typical(found) if (found := list(pairs)) else None

    def drained(self, processes: int, name: str) -> float | None:
        """Give the median of a figure of the drains."""
        found = [getattr(one, name) for one in self.drains[processes]]
        return None if not found or None in found else statistics.median(found)

    def best(self, floors: dict[int, dict[int, list[float]]], processes: int) -> tuple[float, int] | None:
        """Give the best median of a floor, and its batch size."""
        return max(((statistics.median(rates), batch) for batch, rates in floors[processes].items()), default=None)

    def drain_pair(self, floors: dict[int, dict[int, list[float]]], processes: int) -> tuple[float, float] | None:
        """Give the rate of a drain and that of a floor at its best batch size, from the round whose ratio is the
        median.
        """
        best = self.best(floors, processes)
        ours = [one.rate for one in self.drains[processes]]
        return None if best is None else typical(list(zip(ours, floors[processes][best[1]], strict=True)))


@dataclass(frozen=True)
class Report:
    """What came of it."""

    engine: str
    settings: dict[str, Any]
    sizes: Sizes
    processes: Sequence[int]
    samples: Samples

    def as_json(self) -> dict[str, Any]:
        """Give everything for a program; figures of a drain by the number of processes."""
        samples = self.samples
        return {
            "engine": self.engine,
            "settings": self.settings,
            "sizes": self.sizes._asdict(),
            "rates": {
                "enqueue": {how: samples.rate(how) for how in ("bulk", "single", "threads", "tasks")},
                "enqueue_floor": {how: samples.rate(f"bare {how}") for how in ("bulk", "single")},
                "drain": self._by_processes("rate"),
                "drain_from_start": self._by_processes("from_start"),
                "own_floor": self._floors(samples.own_floors),
                "floor": self._floors(samples.floors),
            },
            "ratios": self._ratios(),
            "latency_ms": None if samples.latency is None else samples.latency.after,
            "latency_with_call_ms": None if samples.latency is None else samples.latency.whole,
            "wal_per_job": self._by_processes("wal_per_job"),
            "commits_per_job": self._by_processes("commits_per_job"),
            "cpu_us_per_job": self._by_processes("cpu_us"),
            "goals": [
                {"what": line.what, "value": line.score, "goal": line.goal, "holds": line.holds}
                for line in self.lines()
                if line.goal is not None
            ],
        }

    def _ratios(self) -> dict[str, Any]:
        samples = self.samples
        return {
            "drain_to_floor": {str(n): _share(samples.drain_pair(samples.floors, n)) for n in self.processes},
            "drain_to_own_floor": {str(n): _share(samples.drain_pair(samples.own_floors, n)) for n in self.processes},
            "bulk_to_copy": _share(samples.pair("bulk")),
            "single_to_insert": _share(samples.pair("single")),
            "threads_to_single": _share(samples.pair("threads")),
            "tasks_to_single": _share(samples.pair("tasks")),
        }

    def _by_processes(self, name: str) -> dict[str, float | None]:
        return {str(processes): self.samples.drained(processes, name) for processes in self.processes}

    def _floors(self, floors: dict[int, dict[int, list[float]]]) -> dict[str, Any]:
        found = {processes: self.samples.best(floors, processes) for processes in self.processes}
        return {str(n): None if best is None else {"rate": best[0], "batch": best[1]} for n, best in found.items()}

    def lines(self) -> Iterator[Line]:
        """Give everything for a person, with the goals."""
        goals = _GOALS.get(self.engine, {})
        for processes in self.processes:
            yield from self._drain(processes, goals)
        yield from self._enqueue(goals)
        if self.samples.latency is not None:
            for name, value in self.samples.latency.after.items():
                yield Line(f"enqueue to start, {name}", value, None, "ms", goals.get(name), larger_is_better=False)
            for name, value in self.samples.latency.whole.items():
                yield Line(f"enqueue to start with the call, {name}", value, None, "ms", None, larger_is_better=False)

    def _drain(self, processes: int, goals: dict[str, float]) -> Iterator[Line]:
        samples, unit = self.samples, "jobs/s"
        many = "1 worker process" if processes == 1 else f"{processes} worker processes"
        if floor := samples.drain_pair(samples.floors, processes):
            yield Line(f"drain, {many}, against the floor", *floor, unit, goals.get("floor"))
        if own := samples.drain_pair(samples.own_floors, processes):
            yield Line(f"drain, {many}, against the own floor", *own, unit, goals.get("own_floor"))
        yield Line(f"drain, {many}, from the start", samples.drained(processes, "from_start") or 0, None, unit)
        for name, what, measure, goal in (
            ("cpu_us", "worker CPU per job", "µs", goals.get("cpu")),
            ("commits_per_job", "commits per job", "", goals.get("commits")),
            ("wal_per_job", "WAL per job", "bytes", None),
        ):
            if (value := samples.drained(processes, name)) is not None:
                yield Line(f"{what}, {many}", value, None, measure, goal, larger_is_better=False)

    def _enqueue(self, goals: dict[str, float]) -> Iterator[Line]:
        for how, what, goal in (
            ("bulk", "bulk enqueue, against COPY", goals.get("bulk")),
            ("single", "one-at-a-time enqueue, against INSERT and COMMIT", goals.get("single")),
            ("threads", "16 threads enqueue at once, against one", goals.get("at_once")),
            ("tasks", "16 tasks enqueue at once, against one", goals.get("at_once")),
        ):
            ours, floor = self.samples.pair(how) or (self.samples.rate(how) or 0, None)
            yield Line(what if floor else what.partition(",")[0], ours, floor, "jobs/s", goal)


def _share(pair: tuple[float, float] | None) -> float | None:
    return None if pair is None else pair[0] / pair[1]


class Suite:
    """The measures of one place."""

    def __init__(self, where: Place, sizes: Sizes, processes: Sequence[int], tell: Callable[[str], None]) -> None:
        self._place = where
        self._sizes = sizes
        self._processes = processes if where.shared else [1]
        self._tell = tell
        self._samples = Samples()

    def run(self) -> Report:
        """Measure everything."""
        for number in range(1, self._sizes.rounds + 1):
            self._round(f"round {number} of {self._sizes.rounds}")
        if self._place.shared:
            self._tell(f"latency: {self._sizes.timed} jobs, one every 20 ms")
            self._samples.latency = measures.latency(self._place, self._sizes.timed, self._sizes.settle)
        return Report(self._place.engine, self._place.settings(), self._sizes, self._processes, self._samples)

    def _round(self, number: str) -> None:
        self._tell(f"{number}: enqueue")
        self._enqueue()
        for processes in self._processes:
            many = "1 process" if processes == 1 else f"{processes} processes"
            self._tell(f"{number}: drain of {self._sizes.jobs:,} jobs with {many}")
            self._drain(processes)

    def _enqueue(self) -> None:
        where, sizes, rates = self._place, self._sizes, self._samples.rates
        for _ in range(_BULKS):
            if where.conninfo is not None:
                from holdfast.bench import floor

                rates["bare bulk"].append(floor.bulk(where.conninfo, sizes.jobs))
            rates["bulk"].append(measures.bulk(where, sizes.jobs))
        with ExitStack() as stack:
            enqueue = stack.enter_context(measures.enqueuing(where))
            bare = self._bare(stack)
            for _ in range(_SLICES):
                if bare is not None:
                    rates["bare single"].append(bare(sizes.few // _SLICES))
                rates["single"].append(enqueue("single", sizes.few // _SLICES))
                for how in ("threads", "tasks"):
                    rates[how].append(enqueue(how, measures.AT_ONCE * max(sizes.few // _SLICES // 2, 1)))

    def _bare(self, stack: ExitStack) -> Callable[[int], float] | None:
        if self._place.conninfo is None:
            return None
        from holdfast.bench import floor

        return stack.enter_context(floor.singles(self._place.conninfo))

    def _drain(self, processes: int) -> None:
        where, jobs, samples = self._place, self._sizes.jobs, self._samples
        for batch in self._sizes.batches:
            if where.conninfo is not None:
                from holdfast.bench import floor

                rate = floor.drain(where.conninfo, jobs, procs=processes, batch=batch, folded=True)
                samples.floors[processes][batch].append(rate)
            samples.own_floors[processes][batch].append(measures.loop(where, jobs, processes, batch))
        samples.drains[processes].append(measures.drain(where, jobs, processes))


def run(url: str, sizes: Sizes, processes: Sequence[int], tell: Callable[[str], None]) -> Report:
    """Measure a store, in a place beside it that is gone afterwards, also after Ctrl-C."""
    with ends_on_signals(), place(url) as where:
        return Suite(where, sizes, processes, tell).run()
