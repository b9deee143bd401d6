"""The schema's versions: forward only, one migration per transaction, one process at a time."""

from collections.abc import Sequence
from typing import LiteralString

from holdfast.domain.errors import StoreUnusable
from holdfast.stores import statements
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.trouble import missing

MIGRATIONS = ("0001_jobs.sql", "0002_enqueue.sql")
VERSION = len(MIGRATIONS)
OLDEST = 14
_LOCK = 0x484F4C44


def script(schema: str, file: str) -> LiteralString:
    """Give a migration's SQL for one schema."""
    text = statements.script("holdfast.stores.postgres.migrations", file)
    return text.replace("{schema}", schema)


def plan(pool: Pool) -> tuple[int | None, Sequence[str]]:
    """Tell the version that is there (none, if there is no schema) and the migrations to come."""
    have = pool.run(lambda db: _version(db, pool.address.schema), writes=False)
    return have, MIGRATIONS[have or 0 :]


def migrate(pool: Pool) -> list[str]:
    """Apply the migrations that are missing, whichever process comes first; give their names."""
    return pool.run(lambda db: _migrate(db, pool.address.schema))


def ready(pool: Pool) -> None:
    """See that the schema is one we know: made, if there is none and we may; refused, if it is newer or older."""
    have, _ = plan(pool)
    if have is None:
        try:
            migrate(pool)
        except StoreUnusable as error:
            raise missing(pool.address) from error
    elif have > VERSION:
        msg = (
            f"The schema {pool.address.schema!r} in {pool.address.shown} is of a newer Holdfast (version {have}, and "
            f"this one knows {VERSION}); upgrade Holdfast."
        )
        raise StoreUnusable(msg)
    elif have < VERSION:
        msg = (
            f"The schema {pool.address.schema!r} in {pool.address.shown} is of an older Holdfast (version {have} of "
            f"{VERSION}); bring it up to date with: holdfast migrate --url URL"
        )
        raise StoreUnusable(msg)


def _version(db: Connection, schema: str) -> int | None:
    if db.info.server_version // 10_000 < OLDEST:
        msg = f"Holdfast needs PostgreSQL {OLDEST} or later; this server is {db.info.server_version // 10_000}."
        raise StoreUnusable(msg)
    (table,) = db.execute("SELECT to_regclass(%(name)s)", {"name": f"{schema}.migration"}).fetchone() or (None,)
    if table is None:
        return None
    (version,) = db.execute(sql.statement(schema, "schema_version")).fetchone() or (0,)
    return int(version)


def _migrate(db: Connection, schema: str) -> list[str]:
    done: list[str] = []
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _LOCK})
        db.execute(sql.statement(schema, "make_schema"))
        db.execute(sql.statement(schema, "make_migration_table"))
        have = _version(db, schema) or 0
        for number, file in enumerate(MIGRATIONS[have:], have + 1):
            db.execute(script(schema, file), prepare=False)
            db.execute(sql.statement(schema, "record_migration"), {"number": number, "file": file})
            done.append(file)
    return done
