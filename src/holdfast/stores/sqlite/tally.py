"""The counters, changed in the same transaction as the jobs they count."""

from collections import defaultdict

from holdfast.domain.job import State
from holdfast.stores.sqlite.guests import Connection
from holdfast.stores.sqlite.sql import SQL

Deltas = defaultdict[tuple[str, State], int]
"""How many jobs a (queue, state) has gained."""


def change(db: Connection, deltas: Deltas) -> None:
    """Change the counters."""
    for (queue, state), jobs in deltas.items():
        if jobs:
            db.execute(SQL["tally"], (queue, state.value, jobs))
