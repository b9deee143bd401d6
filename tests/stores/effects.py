"""What handlers write to a table of their own, and how they lose their lease meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from holdfast import Context, Holdfast
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention


class Effects:
    """The table, seen from a session of somebody else's."""

    def __init__(self, db: psycopg.Connection[Any], table: str) -> None:
        self.db = db
        self._table = table
        self.write = f"INSERT INTO {table} VALUES (%(n)s)"

    def all(self) -> list[int]:
        """Read what has been committed."""
        return [n for (n,) in self.db.execute(f"SELECT n FROM {self._table} ORDER BY n")]


@contextmanager
def effects_beside(url: str, server: str) -> Iterator[Effects]:
    """Make a table in the database of a store."""
    table = url.rpartition("schema=")[2] + "_effects"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE TABLE {table} (n integer)")
        yield Effects(db, table)
        db.execute(f"DROP TABLE {table}")


def lose_lease(app: Holdfast, ctx: Context) -> None:
    """Have the lease of a handler that runs taken back."""
    (held,) = app.store.read([str(ctx.job_id)])
    assert held is not None
    app.store.abandon(str(held.lease_owner))
    (late,) = app.store.expired(10)
    app.store.commit([lifecycle.reap(late, app.store.now() + 1, Retention())])
