"""A large number of jobs in PostgreSQL, written by SQL straight into the tables as the store would have left them.

One job is stored, and finished, by the store itself; every row that it has is then copied under new ids. So nothing
here knows the tables' columns, except those that name a job and those of the counters.
"""

import secrets

import psycopg
from psycopg import sql

from holdfast.bench import server
from holdfast.bench.measures import opened
from holdfast.domain import lifecycle
from holdfast.domain.job import Retention
from holdfast.domain.moments import MINUTE
from holdfast.port.store import Claim
from holdfast.stores.postgres import address

TABLES = """
SELECT relname, array_agg(attname::text ORDER BY attnum) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
  AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
GROUP BY relname
"""
COPY = """
INSERT INTO {table} ({columns})
SELECT {values} FROM {table} AS model, generate_series(1, {jobs}) AS i WHERE model.{id} = {model}
"""
NEW_ID = sql.SQL("('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid")
"""Older than any id of today, and in order."""
TALLY = "INSERT INTO {} (queue, state, jobs) VALUES ('default', %s, %s)"


def generate(url: str, state: str, jobs: int) -> None:
    """Write so many waiting (`queued`) or finished (`succeeded`) jobs into an empty store, and their model."""
    where = address.parse(url)
    model = _model(url, finished=state == "succeeded")
    with psycopg.connect(where.conninfo) as db:
        for table, columns in db.execute(TABLES, (where.schema,)).fetchall():
            named = "id" if table == "job" else "job_id"
            if named in columns:
                db.execute(_copy(sql.Identifier(where.schema, table), columns, named, model, jobs))
        db.execute(sql.SQL(TALLY).format(sql.Identifier(where.schema, "tally")), (state, jobs))
    server.settle(where.conninfo, where.schema)
    with opened(url) as made:
        assert made.app.counts()[state] == jobs + 1
        (first,) = made.app.store.read(["018f0000-0000-7000-8000-000000000001"])
        assert first is not None
        assert first.state == state


def _model(url: str, *, finished: bool) -> str:
    with opened(url) as made:
        id_ = str(made.add.enqueue(1, 1).id)
        if finished:
            (job,) = made.app.store.claim(Claim("bench", secrets.token_hex(8), MINUTE, 1, id=id_))
            made.app.store.commit([lifecycle.complete(job, "2", Retention())])
        return id_


def _copy(table: sql.Identifier, columns: list[str], named: str, model: str, jobs: int) -> sql.Composed:
    values = [NEW_ID if column == named else sql.SQL("model.{}").format(sql.Identifier(column)) for column in columns]
    return sql.SQL(COPY).format(
        table=table,
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(values),
        jobs=jobs,
        id=sql.Identifier(named),
        model=sql.Literal(model),
    )
