"""`holdfast chaos`: worker processes are killed and frozen while they work on a store, and what is left is proved.

`plan` says what is asked for and what is to go wrong, `application` holds the jobs, `run` plays it with `nemesis`,
`history` is all that is known afterwards, `checker` and `steps` hold it against the promises, and `show` prints it.
"""

from holdfast.chaos.plan import Orders
from holdfast.domain.errors import BadInput

JOBS, WORKERS, KILLS, FREEZES = 300, 3, 6, 2
MOST_JOBS, MOST_WORKERS, MOST_FAULTS = 20_000, 16, 200
FEWEST_JOBS = 20
JOBS_PER_FAULT = 10
"""Fewer than these would be done before the worker that is to suffer has begun."""
_ENGINES = ("sqlite", "postgresql", "postgres")


def orders(jobs: int, workers: int, kills: int, freezes: int, seed: int) -> Orders:
    """Check what is asked for as a whole."""
    faults = kills + freezes
    least = max(FEWEST_JOBS, JOBS_PER_FAULT * faults)
    if jobs < least:
        msg = f"{faults} faults at work need at least {least} jobs, not {jobs}; ask for more jobs or fewer faults."
        raise BadInput(msg)
    return Orders(jobs, workers, kills, freezes, seed)


def refuse_unable(url: str) -> None:
    """Refuse a store that several processes cannot share, or beside which no other can be made."""
    scheme, separator, _ = url.partition("://")
    if scheme == "memory":
        msg = "memory:// lives inside one process, so there are no workers to kill; name a SQLite file or PostgreSQL."
        raise BadInput(msg)
    if scheme not in _ENGINES or not separator:
        from holdfast.domain.redaction import without_person
        from holdfast.stores import KNOWN

        known = separator and any(each.startswith(f"{scheme}://") for each in KNOWN)
        able = "is a store that a chaos run cannot" if known else "is no store that a chaos run can"
        what = f"{scheme}:// {able}" if known else f"{without_person(url)!r} {able}"
        msg = f"{what} be made on; use sqlite:///path/to/file.db or postgresql://host/database."
        raise BadInput(msg)
