"""How what is over is removed: finished jobs with all that they left, full buckets, and pages."""

from collections import defaultdict

from holdfast.domain import codec
from holdfast.domain.job import State
from holdfast.domain.moments import Micros
from holdfast.port.store import Purged
from holdfast.stores.sqlite import tally
from holdfast.stores.sqlite.guests import Connection, OwnConnection
from holdfast.stores.sqlite.sql import SQL
from holdfast.stores.sqlite.tally import Deltas


def due(db: Connection, now: Micros) -> bool:
    """Tell whether anything is to be removed."""
    return db.execute(SQL["purgeable"], (now, 1)).get != "[]" or db.execute(SQL["page_over"], (now,)).get is not None


def purge(db: OwnConnection, now: Micros, limit: int) -> Purged:
    """Remove so many finished jobs and pages; give the artifacts that they leave."""
    over = db.execute(SQL["purgeable"], (now, limit)).get
    deltas: Deltas = defaultdict(int, {(q, State(s)): -n for q, s, n in db.execute(SQL["purge_tallies"], (over,))})
    artifacts = [text for (text,) in db.execute(SQL["artifacts"], (over, codec.ARTIFACT))]
    db.execute(SQL["permit"], (now,))
    for name in ("purge_keys", "purge_attempts", "purge_steps", "purge_signals", "purge"):
        db.execute(SQL[name], (over,))
    gone = int(db.changes())
    db.execute(SQL["permit"], (None,))
    tally.change(db, deltas)
    db.execute(SQL["full_buckets"], (now,))
    db.execute(SQL["purge_pages"], (now, limit))
    return Purged(gone, artifacts, int(db.changes()))
