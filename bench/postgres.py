"""PostgreSQL: everything that `holdfast bench` measures, on a server of our own."""

from collections.abc import Callable, Iterator

from bench.peers.database import fresh
from holdfast.bench.lines import Line
from holdfast.bench.place import place
from holdfast.bench.suite import Sizes, Suite


def lines(conninfo: str, tell: Callable[[str], None], *, short: bool) -> Iterator[Line]:
    """Measure in a database of its own, with one and with two worker processes."""
    with fresh(conninfo, "holdfast_bench_ours") as url, place(url) as where:
        yield from Suite(where, Sizes.chosen(None, short=short), (1, 2), tell).run().lines()
