"""The whole demo, from the first line to the proof. It ends by itself, and leaves nothing behind."""

import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from holdfast.demo import plan, proof
from holdfast.demo.ending import last_resort
from holdfast.demo.play import WORKERS, Demo
from holdfast.demo.screen import Screen, proof_table
from holdfast.demo.verdict import Verdict
from holdfast.demo.window import window
from holdfast.runtime.signals import ends_on_signals


def show(jobs: int, seed: int, *, live: bool) -> int:
    """Run the demo and print it; give 0 if every promise held, 1 if not, 130 if it was stopped."""
    if not (sys.stdout.encoding or "").lower().startswith("utf") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    planned = plan.make(jobs, seed, f"{datetime.now(UTC):%Y-%m-%d}")
    console.print(f"[bold]Holdfast[/]: {jobs} jobs, {WORKERS} workers, one SQLite file [dim](seed {seed})[/]\n")
    with (
        TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder,
        ends_on_signals(),
        window(f"sqlite:///{Path(folder) / 'holdfast.db'}") as address,
    ):
        if address is not None:
            console.print(f"Watch it in a browser while it runs: [bold]{address}[/]\n")
        demo = Demo(planned, Path(folder), Screen(console, live=live, total=jobs))
        with last_resort(demo.crew, Path(folder)):
            try:
                demo.play()
                verdicts = proof.prove(demo.evidence())
            except KeyboardInterrupt:
                console.print("Stopped.")
                return 130
            finally:
                demo.close()
    speed = f"{jobs} jobs in {demo.seconds:.1f} s, up to {demo.screen.fastest:.0f} a second"
    return report(console, verdicts, speed, f"HOLDFAST_DEMO_SEED={seed} HOLDFAST_DEMO_JOBS={jobs}")


def report(console: Console, verdicts: Sequence[Verdict], speed: str, again: str) -> int:
    """Print the proof; give 0 if every promise held, 1 if not."""
    kept = sum(verdict.holds for verdict in verdicts)
    all_kept = kept == len(verdicts)
    console.print(
        f"\n[bold {'green' if all_kept else 'red'}]{kept} of {len(verdicts)} promises kept[/] [dim]({speed})[/]\n",
        proof_table(console, verdicts),
        "",
        _next_steps() if all_kept else f"A promise is broken. The same run again: {again} make demo",
        sep="\n",
        soft_wrap=True,
    )
    return 0 if all_kept else 1


def _next_steps() -> str:
    folder = "" if shutil.which("holdfast") else f"{os.path.relpath(Path(sys.executable).parent)}/"
    steps = {
        f"{folder}python examples/quickstart.py": "add jobs",
        f"{folder}holdfast worker examples/quickstart.py:app --until-idle": "run them",
        f"{folder}holdfast jobs list": "see them",
    }
    width = max(map(len, steps))
    lines = [f"  {command:{width}}  [dim]{what}[/]" for command, what in steps.items()]
    return "\n".join(["[dim]No process and no file is left behind. Next:[/]", *lines])
