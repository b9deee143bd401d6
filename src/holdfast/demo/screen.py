"""What the demo shows: a moving picture on a terminal, plain lines anywhere else; the proof table on both."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.demo.verdict import Verdict
from holdfast.domain.job import State

_BLOCKS = "▁▂▃▄▅▆▇█"
_BIN = 0.5
_BINS = 30
_PLAIN_EVERY = 2.0
_QUEUES = ("documents", "webhooks", "summaries")
_COLUMNS: tuple[tuple[str, State, str], ...] = (
    ("waiting", State.QUEUED, "default"),
    ("running", State.RUNNING, "cyan"),
    ("retrying", State.RETRYING, "yellow"),
    ("succeeded", State.SUCCEEDED, "green"),
    ("dead", State.DEAD, "red"),
)


class Screen:
    """The one place that prints."""

    def __init__(self, console: Console, *, live: bool, total: int) -> None:
        self.console = console
        self._total = total
        self._began = time.monotonic()
        self._finished = 0
        self._bins: Counter[int] = Counter()
        self._live = Live(console=console, auto_refresh=False, transient=True) if live and console.is_terminal else None
        self._last_plain = self._began

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def fastest(self) -> float:
        """The most jobs finished in one second."""
        return max((self._bins[n] + self._bins[n + 1] for n in self._bins), default=0) / (2 * _BIN)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show the moving picture, if there is one, for as long as this lasts."""
        if self._live is None:
            yield
            return
        with self._live:
            yield

    def event(self, text: str, style: str = "") -> None:
        """Say that something happened, for good."""
        self.console.print(Text.assemble((f"{self.elapsed:5.1f} s  ", "dim"), (text, style)), soft_wrap=True)

    def draw(self, counts: Mapping[str, Counter[State]], workers: int) -> None:
        """Show how things stand now."""
        finished = sum(by_state[State.SUCCEEDED] + by_state[State.DEAD] for by_state in counts.values())
        self._bins[int(self.elapsed / _BIN)] += finished - self._finished
        self._finished = finished
        if self._live is not None:
            self._live.update(self._picture(counts, workers), refresh=True)
        elif time.monotonic() - self._last_plain >= _PLAIN_EVERY:
            self._last_plain = time.monotonic()
            states = sum(counts.values(), Counter[State]())
            shown = ", ".join(f"{states[state]} {name}" for name, state, _ in _COLUMNS if states[state])
            self.event(f"… {shown}", "dim")

    def _picture(self, counts: Mapping[str, Counter[State]], workers: int) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("queue", min_width=9)
        for name, _, _ in _COLUMNS:
            table.add_column(name, justify="right", min_width=8)
        for queue in _QUEUES:
            by_state = counts.get(queue, Counter())
            cells = [(str(by_state[state]), style if by_state[state] else "dim") for _, state, style in _COLUMNS]
            table.add_row(queue, *[Text(*cell) for cell in cells])
        progress = Table.grid(padding=(0, 2, 0, 0))
        progress.add_row(
            ProgressBar(self._total, self._finished, width=30, complete_style="green"),
            f"{self._finished} of {self._total}",
            f"{workers} workers",
        )
        pulse = Table.grid(padding=(0, 2, 0, 0))
        pulse.add_row(Text(self._sparkline(), "green"), f"{self._rate():.0f} jobs/s", f"{self.elapsed:.1f} s")
        return Group("", table, "", progress, pulse)

    def _rate(self) -> float:
        now = int(self.elapsed / _BIN)
        return sum(self._bins[n] for n in range(now - 3, now + 1)) / (4 * _BIN)

    def _sparkline(self) -> str:
        now = int(self.elapsed / _BIN)
        heights = [self._bins[n] if n >= 0 else 0 for n in range(now - _BINS + 1, now + 1)]
        top = max(*self._bins.values(), 1)
        return "".join(_BLOCKS[round(height / top * (len(_BLOCKS) - 1))] if height else " " for height in heights)


def proof_table(console: Console, verdicts: Sequence[Verdict]) -> RenderableType:
    """Draw the proof."""
    kept, broken = ("✓", "✗") if console.encoding.startswith("utf") else ("ok", "NO")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", min_width=3)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for verdict in verdicts:
        mark = (kept, "bold green") if verdict.holds else (broken, "bold red")
        table.add_row(
            Text(*mark), verdict.promise, verdict.claim, Text(verdict.text, "default" if verdict.holds else "red")
        )
    return table
