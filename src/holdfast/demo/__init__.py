"""`make demo`: several hundred jobs, workers killed with -9, and a table that proves that nothing was lost."""

import os

from holdfast.domain.errors import BadInput

DEFAULT_JOBS = 400
FEWEST_JOBS, MOST_JOBS = 60, 2_000


def run(jobs: int | None = None, live: bool = True) -> int:  # noqa: FBT001, FBT002 - `run(120, False)` is how the command line calls it
    """Run the demo; give 0 if every promise held, 1 if not.

    `jobs` is how many jobs to run; if not given, `HOLDFAST_DEMO_JOBS` or 400. `live` draws a moving picture where there
    is a terminal to draw on. `HOLDFAST_DEMO_SEED` decides which jobs go wrong; if not given, it is drawn and printed.
    """
    from holdfast.demo.show import show

    number = _number("HOLDFAST_DEMO_JOBS", DEFAULT_JOBS) if jobs is None else jobs
    if not FEWEST_JOBS <= number <= MOST_JOBS:
        msg = f"The demo takes {FEWEST_JOBS} to {MOST_JOBS:,} jobs, not {number}."
        raise BadInput(msg)
    return show(number, _number("HOLDFAST_DEMO_SEED", None), live=live)


def _number(name: str, default: int | None) -> int:
    """Read a whole number from the environment; without a default, draw one."""
    text = os.environ.get(name)
    if not text:
        return int.from_bytes(os.urandom(2)) if default is None else default
    if not text.isdecimal():
        msg = f"{name} is a whole number, not {text!r}."
        raise BadInput(msg)
    return int(text)
