"""`holdfast backup`: a copy of the store's file."""

from pathlib import Path

import click

from holdfast.cli.output import progress, show_json
from holdfast.cli.store import json_option, masked, opened, url_option
from holdfast.domain.errors import StoreError


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
