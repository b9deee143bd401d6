"""`holdfast migrate` and `holdfast backup`: the file itself."""

from pathlib import Path

import click

from holdfast.app import Holdfast
from holdfast.cli.output import progress, show_json
from holdfast.cli.store import json_option, masked, opened, url_option
from holdfast.domain.errors import StoreError, StoreUnusable


@click.command("migrate")
@click.option("--plan", is_flag=True, help="Only say what would be done.")
@json_option
@url_option
def migrate(url: str, *, plan: bool, as_json: bool) -> None:
    """Make a store, or bring it to this version's schema."""
    have, pending, latest = _state(url)
    if not plan and (pending or have is None):
        app = Holdfast(url)
        app.store  # noqa: B018 - opening it brings it up to date
        app.close()
    if as_json:
        done = {"pending": pending, "applied": []} if plan else {"pending": [], "applied": pending}
        show_json({"url": masked(url), "version": have, "latest": latest, **done})
        return
    where = f"There was no {masked(url)}" if have is None else f"{masked(url)} has schema {have} of {latest}"
    if not latest:
        click.echo(f"{masked(url)} has no schema to keep up to date.")
    elif not pending:
        click.echo(f"{where}; nothing is to be done.")
    elif plan:
        click.echo(f"{where}; to be applied: {', '.join(pending)}.")
    else:
        click.echo(f"{where}; applied {', '.join(pending)}, and the schema is now {latest}.")


def _state(url: str) -> tuple[int | None, list[str], int]:
    """Give the schema's version (None: no file), the migrations that are missing, and the version they lead to."""
    if not url.startswith("sqlite://"):
        app = Holdfast(url)
        app.store  # noqa: B018 - an unknown scheme is told here
        app.close()
        return 0, [], 0
    from holdfast.stores.sqlite import connection as files

    path = files.path_of(url)
    have = _version(path)
    if have is not None and have > files.SCHEMA_VERSION:
        known = files.SCHEMA_VERSION
        msg = f"{path} was written by a newer Holdfast (schema {have}; this one knows {known}); upgrade Holdfast."
        raise StoreUnusable(msg)
    return have, list(files.MIGRATIONS[have or 0 :]), files.SCHEMA_VERSION


def _version(path: Path) -> int | None:
    """Read the schema's version without changing anything."""
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


@click.command("backup")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
@url_option
def backup(path: Path, url: str, *, as_json: bool) -> None:
    """Copy a consistent snapshot to the new file PATH.

    Workers may go on meanwhile; the copy is the store as it was at one moment.
    """
    if not path.absolute().parent.is_dir():
        msg = f"The folder {path.parent} does not exist; make it first, or name a file elsewhere."
        raise StoreError(msg)
    with opened(url) as app, progress("copying"):
        app.store.backup(str(path))
    size = path.stat().st_size
    if as_json:
        show_json({"url": masked(url), "path": str(path), "bytes": size})
    else:
        click.echo(f"{path} holds a copy of {masked(url)} ({size:,} bytes); open it as sqlite:///{path}.")
