"""A chaos run from the first line to the verdict, for people or as JSON. It leaves nothing behind."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import quote

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.bench.place import place
from holdfast.chaos import checker, plan
from holdfast.chaos.history import Counts, History
from holdfast.chaos.plan import Orders
from holdfast.chaos.run import Run, deadline
from holdfast.demo.ending import last_resort
from holdfast.demo.screen import proof_table
from holdfast.demo.verdict import Verdict
from holdfast.runtime.signals import ends_on_signals, stopping_by_signal

Outcome = Literal["holds", "broken", "void"]
_STOPPING = 60.0
"""Seconds on top of the deadline for stopping the workers and checking."""
_TOLD = 20
"""How many wrongs of one promise are told in JSON."""


class Line:
    """How a run goes: one moving line on a terminal, and a line for each fault."""

    def __init__(self, console: Console, orders: Orders, *, events: bool) -> None:
        self._console = console
        self._orders = orders
        self._events = events
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show the moving line, if there is one, for as long as this lasts."""
        if self._live is None:
            yield
            return
        with self._live:
            yield

    def event(self, text: str) -> None:
        """Say that something happened."""
        if self._events:
            self._console.print(Text.assemble((self._elapsed, "dim"), (text, "yellow")), soft_wrap=True)

    def draw(self, finished: int, workers: int, faults: int) -> None:
        """Show how things stand now."""
        if self._live is not None:
            of = self._orders.kills + self._orders.freezes
            shown = f"{finished} of {self._orders.jobs} jobs finished, {workers} workers, {faults} of {of} faults"
            self._live.update(Text(f"{self._elapsed}{shown}", "cyan"), refresh=True)

    @property
    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s  "


def played(url: str | None, orders: Orders, line: Line) -> tuple[History, float]:
    """Play a run beside a store, or in a folder of its own; give its history and how long it took."""
    with ExitStack() as stack:
        stack.enter_context(ends_on_signals())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True)))
        if url is None:
            own = f"sqlite:///{quote(str(folder))}/jobs.db"
        else:
            where = stack.enter_context(place(url, "chaos"))
            own = stack.enter_context(where.fresh())
            # What a worker had just asked of the server when it was killed is to be over before the schema is dropped.
            stack.callback(where.usage)
        run = Run(own, folder, orders, plan.make(orders), line)
        stack.callback(run.close)
        stack.enter_context(last_resort(run.crew, folder, "chaos run", deadline(orders) + _STOPPING))
        with line.open(), stopping_by_signal(run.stop):
            run.play()
        return run.history(), run.seconds


def outcome(verdicts: Sequence[Verdict], history: History) -> Outcome:
    """Judge the run as a whole: a broken promise weighs more than a fault that was not seen."""
    if not all(verdict.holds for verdict in verdicts):
        return "broken"
    return "void" if history.void else "holds"


def report(console: Console, history: History, seconds: float, again: str) -> Outcome:
    """Check a run and print the table, the counts and the verdict."""
    verdicts = checker.prove(history)
    judged = outcome(verdicts, history)
    kept = sum(verdict.holds for verdict in verdicts)
    colour = "green" if kept == len(verdicts) else "red"
    console.print(
        f"\n[bold {colour}]{kept} of {len(verdicts)} promises kept[/] [dim]({seconds:.1f} s)[/]\n",
        proof_table(console, verdicts),
        "",
        *_counted(history.counts()),
        "",
        sep="\n",
        soft_wrap=True,
    )
    match judged:
        case "holds":
            console.print("[bold green]Verdict: every promise held.[/]")
        case "broken":
            console.print(f"[bold red]Verdict: a promise is broken.[/] The same plan again: {again}", soft_wrap=True)
        case "void":
            why = "; ".join(history.void)
            console.print(f"[bold yellow]Verdict: void, for {why}.[/] Try with more jobs.", soft_wrap=True)
    return judged


def as_json(history: History, seconds: float) -> dict[str, Any]:
    """Check a run and give all of it that is printed otherwise."""
    verdicts = checker.prove(history)
    return {
        "verdict": outcome(verdicts, history),
        "void": history.void,
        "asked": history.orders._asdict(),
        "seconds": round(seconds, 1),
        "promises": [
            {
                "promise": verdict.promise,
                "claim": verdict.claim,
                "holds": verdict.holds,
                "seen": verdict.shown,
                "wrong": list(verdict.wrong[:_TOLD]),
            }
            for verdict in verdicts
        ],
        "counts": history.counts()._asdict(),
        "faults": [{"fault": fault.sort, "worker": fault.worker, "jobs": len(fault.held)} for fault in history.faults],
    }


def _counted(counts: Counts) -> list[str]:
    told = {
        "jobs": f"{counts.jobs}: {counts.succeeded} succeeded, {counts.dead} dead",
        "work": f"{counts.attempts} attempts, {counts.bodies} bodies of jobs and steps",
        "faults": f"{counts.kills} kills, {counts.freezes} freezes",
        "after": f"{counts.taken_over} leases taken over, {counts.run_again} bodies run again",
        "late": f"{counts.refused} writes refused, {counts.let_go} bodies stopped by their own worker",
    }
    return [f"{name:8}{text}" for name, text in told.items()]
