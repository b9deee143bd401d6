"""The counters, changed in the same transaction as the jobs they count.

That is so for all but few new jobs at a time: these are counted by whoever comes next, and by whoever reads.
"""

from collections import defaultdict

from holdfast.domain.job import State
from holdfast.stores.sqlite.guests import Connection
from holdfast.stores.sqlite.sql import SQL

UNCOUNTED = 256
"""About so many new jobs are left uncounted when nobody claims them."""

Deltas = defaultdict[tuple[str, State], int]
"""How many jobs a (queue, state) has gained."""


def change(db: Connection, deltas: Deltas) -> None:
    """Change the counters."""
    for (queue, state), jobs in deltas.items():
        if jobs:
            db.execute(SQL["tally"], (queue, state.value, jobs))


def fold(db: Connection) -> None:
    """Count the jobs that are new."""
    db.execute(SQL["fold"])
