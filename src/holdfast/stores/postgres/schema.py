"""The schema's versions: forward only, all that is missing in one transaction, one process at a time.

Migrations make what is new and never rewrite a table, so workers go on meanwhile; a lock that they hold is waited for
only so long.
"""

from collections.abc import Iterator, Sequence
from typing import LiteralString

from holdfast.domain.errors import BadInput, StoreUnusable
from holdfast.stores import statements
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.pool import Connection, Pool
from holdfast.stores.postgres.trouble import missing

MIGRATIONS = (
    "0001_jobs.sql",
    "0002_enqueue.sql",
    "0003_view.sql",
    "0004_workflows.sql",
    "0005_pages.sql",
    "0006_flow.sql",
    "0007_names.sql",
    "0008_running.sql",
)
VERSION = len(MIGRATIONS)
OLDEST = 14
_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""What can keep every text: as it is, or as the bytes that it is sent as."""
_LOCK = 0x484F4C44


def script(schema: str, file: str) -> LiteralString:
    """Give a migration's SQL for one schema."""
    text = statements.script("holdfast.stores.postgres.migrations", file)
    return text.replace("{schema}", schema)


def plan(pool: Pool) -> tuple[int | None, Sequence[str]]:
    """Tell the version that is there (none, if there is no schema) and the migrations to come; refuse a newer one."""
    have = pool.run(lambda db: _version(db, pool.address.schema), writes=False)
    if have is not None and have > VERSION:
        newer = f"is of a newer Holdfast (version {have}, and this one knows {VERSION}); upgrade Holdfast."
        raise StoreUnusable(f"{_named(pool.address)} {newer}")
    return have, MIGRATIONS[have or 0 :]


def migrate(pool: Pool) -> list[str]:
    """Apply the migrations that are missing, whichever process comes first; give their names."""
    return pool.run(lambda db: _migrate(db, pool.address.schema))


def printed(schema: str, have: int | None) -> str:
    """Give what `migrate` would do to a schema of this version, for somebody else to run."""
    return "\n\n".join(_printed(schema, have or 0)) + "\n"


def ready(pool: Pool) -> None:
    """See that the schema is one we know: made, if there is none and we may; refused, if it is newer or older.

    Whoever is refused has no use for the pool, so it is closed.
    """
    try:
        _make_or_refuse(pool)
    except BaseException:
        pool.close()
        raise


def _make_or_refuse(pool: Pool) -> None:
    have, pending = plan(pool)
    if have is None:
        try:
            migrate(pool)
        except StoreUnusable as error:
            raise missing(pool.address) from error
    elif pending:
        older = f"is of an older Holdfast (version {have} of {VERSION}); bring it up to date with: holdfast migrate."
        raise StoreUnusable(f"{_named(pool.address)} {older}")


def _named(address: Address) -> str:
    return f"The schema {address.schema!r} in {address.shown}"


def _version(db: Connection, schema: str) -> int | None:
    if db.info.server_version // 10_000 < OLDEST:
        msg = f"Holdfast needs PostgreSQL {OLDEST} or later; this server is {db.info.server_version // 10_000}."
        raise StoreUnusable(msg)
    if (encoding := db.info.parameter_status("server_encoding")) not in _ENCODINGS:
        msg = f"The database {db.info.dbname!r} cannot keep every text: its encoding is {encoding}; use one with UTF8."
        raise StoreUnusable(msg)
    if not _is_there(db, "to_regclass", f"{schema}.migration"):
        return None
    (version,) = db.execute(sql.statement(schema, "schema_version")).fetchone() or (0,)
    return int(version)


def _migrate(db: Connection, schema: str) -> list[str]:
    done: list[str] = []
    with db.transaction():
        db.execute("SET LOCAL statement_timeout = 0")
        db.execute("SET LOCAL lock_timeout = '60s'")
        db.execute("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _LOCK})
        db.execute("SET LOCAL lock_timeout = '10s'")
        if db.execute("SELECT quote_ident(%(name)s)", {"name": schema}).fetchone() != (schema,):
            msg = f"The schema {schema!r} is named by a word that SQL keeps for itself; name another with ?schema=."
            raise BadInput(msg)
        # Asked first, because `IF NOT EXISTS` wants the right to create even where there is nothing to be created.
        if not _is_there(db, "to_regnamespace", schema):
            db.execute(sql.statement(schema, "make_schema"))
        if not _is_there(db, "to_regclass", f"{schema}.migration"):
            db.execute(sql.statement(schema, "make_migration_table"))
        have = _version(db, schema) or 0
        for number, file in enumerate(MIGRATIONS[have:], have + 1):
            db.execute(script(schema, file), prepare=False)
            db.execute(sql.statement(schema, "record_migration"), {"number": number, "file": file})
            done.append(file)
    return done


def _is_there(db: Connection, look: LiteralString, name: str) -> bool:
    return db.execute(f"SELECT {look}(%(name)s) IS NOT NULL", {"name": name}).fetchone() == (True,)


def _printed(schema: str, have: int) -> Iterator[str]:
    if have >= VERSION:
        yield f"-- The schema {schema} is at version {have}; nothing is to be done."
        return
    yield f"-- Takes the schema {schema} from version {have} to version {VERSION} of Holdfast's, whole or not at all."
    yield f"BEGIN;\nSET LOCAL lock_timeout = '10s';\nSELECT pg_advisory_xact_lock({_LOCK});"
    if have == 0:
        yield f"{sql.statement(schema, 'make_schema')};\n{sql.statement(schema, 'make_migration_table')};"
    for number, file in enumerate(MIGRATIONS[have:], have + 1):
        yield f"-- {file}\n{script(schema, file).strip()}"
        yield f"INSERT INTO {schema}.migration (version, name) VALUES ({number}, '{file}');"  # noqa: S608 - our own names
    yield "COMMIT;"
