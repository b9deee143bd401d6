"""Ours against each peer on PostgreSQL: the same server, the same run, taking turns in rounds."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator

import psycopg

from bench import peers
from bench.peers.database import fresh
from bench.peers.environments import PEERS
from holdfast.bench import measures
from holdfast.bench.lines import Line
from holdfast.bench.place import place

OURS = "holdfast"
GRAPHILE = "graphile-worker"
_NAME = "holdfast_bench_ours"
_WARM_UPS = 2
"""So often who comes first goes before it counts: a machine that has idled is slow for a while, a new server too."""


class Comparison:
    """The measures of all, on one server."""

    def __init__(self, conninfo: str, tell: Callable[[str], None], *, short: bool) -> None:
        self._conninfo = conninfo
        self._tell = tell
        self._share = 5 if short else 1
        self._rounds = 1 if short else 3
        self._found: dict[tuple[str, str], list[float]] = defaultdict(list)
        """What was measured, by work and by whom."""
        self._peers = list(PEERS)

    def lines(self) -> Iterator[Line]:
        """Measure everything, then compare."""
        for number in range(1, self._rounds + 1):
            self._ours(f"round {number} of {self._rounds}")
            for peer in list(self._peers):
                self._peer(peer, f"round {number} of {self._rounds}")
            self._tell(f"round {number} of {self._rounds}: latency of all, one after the other")
            self._latencies()
        yield from self._compared()

    def latency(self) -> Iterator[Line]:
        """Measure only how soon a job starts."""
        for number in range(1, self._rounds + 1):
            self._tell(f"round {number} of {self._rounds}")
            self._latencies()
        yield from self._sooner_or_later()
        yield from self._theirs()

    def _ours(self, number: str) -> None:
        self._tell(f"{number}: {OURS}")
        jobs = 50_000 // self._share
        with fresh(self._conninfo, _NAME) as url, place(url) as where:
            for _ in range(_WARM_UPS):
                measures.bulk(where, jobs)
                measures.drain(where, jobs, 1)
            self._add("bulk", OURS, measures.bulk(where, jobs))
            for procs in (1, 2):
                self._add(f"drain {procs}", OURS, measures.drain(where, jobs, procs).rate)

    def _peer(self, peer: str, number: str) -> None:
        self._tell(f"{number}: {peer}")
        known, at = PEERS[peer], self._conninfo
        try:
            self._add("bulk", peer, peers.bulk(at, peer, jobs=50_000 // self._share).rate)
            for procs in (1, 2):
                done = peers.drain(at, peer, jobs=known.tuned_jobs // self._share, procs=procs)
                self._add(f"drain {procs}", peer, done.rate)
            done = peers.drain(at, peer, jobs=known.untuned_jobs // self._share, tuned=False)
            self._add("untuned", peer, done.rate)
        except peers.Unavailable as reason:
            self._tell(f"left out: {reason}")
            self._peers.remove(peer)

    def _latencies(self) -> None:
        """Measure ours before the peers and behind them; each when the server has written what came before."""
        self._own_latency()
        for peer in self._peers:
            for tuned in (True, False):
                _settled(self._conninfo)
                waits = peers.latency(self._conninfo, peer, jobs=300 // self._share, tuned=tuned)
                way = f"{peer}, {'tuned' if tuned else 'defaults'}"
                for name in ("p50", "p99"):
                    self._add(name, way, getattr(waits, name))
                    self._add(f"call {name}", way, getattr(waits, f"call_{name}"))
        self._own_latency()

    def _own_latency(self) -> None:
        _settled(self._conninfo)
        with fresh(self._conninfo, _NAME) as url, place(url) as where:
            waits = measures.latency(where, 300 // self._share, 2.0)
        for name in ("p50", "p99"):
            self._add(name, OURS, waits.after[name])
            self._add(f"call {name}", OURS, waits.whole[name])

    def _add(self, work: str, who: str, figure: float | None) -> None:
        assert figure is not None
        self._found[work, who].append(figure)

    def _compared(self) -> Iterator[Line]:
        python = [peer for peer in self._peers if not PEERS[peer].node]
        for procs in (1, 2):
            work, many = f"drain {procs}", "1 process" if procs == 1 else f"{procs} processes"
            yield from self._faster(f"drain, {many}, against the fastest Python peer", work, work, python, 2)
            if GRAPHILE in self._peers:
                yield from self._faster(f"drain, {many}, against the fastest on Node", work, work, [GRAPHILE], 1.2)
        yield from self._faster(
            "drain, default options, against the fastest peer with its own", "drain 1", "untuned", self._peers, 5
        )
        yield from self._faster("bulk enqueue, against the fastest peer", "bulk", "bulk", self._peers, 2)
        yield from self._sooner_or_later()
        yield from self._theirs()

    def _sooner_or_later(self) -> Iterator[Line]:
        for name in ("p50", "p99"):
            for work, what in ((name, "enqueue to start"), (f"call {name}", "enqueue to start with the call")):
                yield from self._sooner(f"{what}, {name}, against the best peer", work)

    def _theirs(self) -> Iterator[Line]:
        for work, who in sorted(self._found):
            if who != OURS:
                unit = "ms" if work.endswith(("p50", "p99")) else "jobs/s"
                yield Line(f"{who}: {work}", self._median(work, who), None, unit)

    def _faster(self, what: str, work: str, theirs: str, rivals: list[str], goal: float) -> Iterator[Line]:
        rates = {peer: self._median(theirs, peer) for peer in rivals}
        if rates:
            best = max(rates, key=lambda peer: rates[peer])
            yield Line(f"{what} ({best})", self._median(work, OURS), rates[best], "jobs/s", goal)

    def _sooner(self, what: str, work: str) -> Iterator[Line]:
        waits = {who: self._median(work, who) for found, who in self._found if found == work and who != OURS}
        if waits:
            best = min(waits, key=lambda who: waits[who])
            yield Line(f"{what} ({best})", self._median(work, OURS), waits[best], "ms", 1, larger_is_better=False)

    def _median(self, work: str, who: str) -> float:
        return statistics.median(self._found[work, who])


def _settled(conninfo: str) -> None:
    """Let the server write to disk what it still has to."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute("CHECKPOINT")
