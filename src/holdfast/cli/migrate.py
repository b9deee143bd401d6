"""`holdfast migrate`: make a store's schema, or bring it to this version's; or print the SQL for somebody who may."""

from pathlib import Path
from typing import NamedTuple

import click

from holdfast.app import Holdfast
from holdfast.cli.output import show_json
from holdfast.cli.store import is_postgresql, json_option, masked, reached, url_option
from holdfast.domain.errors import BadInput, StoreUnusable


class Standing(NamedTuple):
    """How far a store's schema has come."""

    have: int | None
    """Its version; None if there is none."""
    pending: list[str]
    """The migrations that are missing."""
    latest: int
    """The version they lead to; 0 for a store that has no schema."""
    told: str
    """The same in words."""


@click.command("migrate")
@click.option("--plan", is_flag=True, help="Only say what would be done.")
@click.option("--sql", "as_sql", is_flag=True, help="Only print the SQL of what would be done (PostgreSQL).")
@json_option
@url_option
def migrate(url: str, *, plan: bool, as_sql: bool, as_json: bool) -> None:
    """Make a store, or bring it to this version's schema.

    Workers may go on meanwhile. On PostgreSQL, --sql is for a database whose owner is somebody else: what it prints
    does the same as this command does without it.
    """
    if as_sql and not is_postgresql(url):
        msg = f"--sql is for PostgreSQL; {masked(url)} is migrated by this command itself, or when it is first used."
        raise BadInput(msg)
    standing = _standing(url)
    applied = [] if plan or as_sql or not (standing.pending or standing.have is None) else _apply(url, standing)
    pending = standing.pending if plan or as_sql else []
    if as_json:
        known = {"version": standing.have, "latest": standing.latest, "pending": pending, "applied": applied}
        show_json({"url": masked(url), **known, **({"sql": _sql(url, standing)} if as_sql else {})})
    elif as_sql:
        click.echo(_sql(url, standing), nl=False)
    elif not standing.latest:
        click.echo(f"{masked(url)} has no schema to keep up to date.")
    elif applied:
        click.echo(f"{standing.told}; applied {', '.join(applied)}, and the schema is now {standing.latest}.")
    elif pending:
        click.echo(f"{standing.told}; to be applied: {', '.join(pending)}.")
    else:
        click.echo(f"{standing.told}; nothing is to be done.")


def _standing(url: str) -> Standing:
    if is_postgresql(url):
        return _postgresql(url)
    if url.startswith("sqlite://"):
        return _sqlite(url)
    app = Holdfast(url)
    app.store  # noqa: B018 - an unknown scheme is told here
    app.close()
    return Standing(0, [], 0, "")


def _apply(url: str, standing: Standing) -> list[str]:
    """Apply what is missing; give what this process applied, because another one may have come first."""
    if is_postgresql(url):
        with reached(url) as pool:
            from holdfast.stores.postgres import schema

            return schema.migrate(pool)
    app = Holdfast(url)
    app.store  # noqa: B018 - opening it brings it up to date
    app.close()
    return standing.pending


def _sql(url: str, standing: Standing) -> str:
    from holdfast.stores.postgres import address, schema

    return schema.printed(address.parse(url).schema, standing.have)


def _postgresql(url: str) -> Standing:
    with reached(url) as pool:
        from holdfast.stores.postgres import schema

        have, pending = schema.plan(pool)
        name, latest = f"{pool.address.schema!r} in {masked(url)}", schema.VERSION
    told = f"There was no schema {name}" if have is None else f"The schema {name} has version {have} of {latest}"
    return Standing(have, list(pending), latest, told)


def _sqlite(url: str) -> Standing:
    from holdfast.stores.sqlite import connection as files

    path, latest = files.path_of(url), files.SCHEMA_VERSION
    have = _file_version(path)
    if have is not None and have > latest:
        msg = f"{path} was written by a newer Holdfast (schema {have}; this one knows {latest}); upgrade Holdfast."
        raise StoreUnusable(msg)
    told = f"There was no {masked(url)}" if have is None else f"{masked(url)} has schema {have} of {latest}"
    return Standing(have, list(files.MIGRATIONS[have or 0 :]), latest, told)


def _file_version(path: Path) -> int | None:
    """Read a file's version without changing anything."""
    import apsw

    from holdfast.stores.sqlite import connection as files

    if path.is_dir():
        msg = f"{path} is a folder; a store URL names a file in it."
        raise StoreUnusable(msg)
    if not path.exists():
        return None
    with files.sentences(path):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            version = int(db.pragma("user_version"))
            ours = db.pragma("application_id") == files.APPLICATION_ID
            empty = not db.execute("SELECT count(*) FROM sqlite_schema").get
        finally:
            db.close()
    if not ours and (version or not empty):
        msg = f"{path} is a SQLite database, but not a Holdfast one; name another file."
        raise StoreUnusable(msg)
    return version
