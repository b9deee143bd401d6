"""Pages: the documents of surfaces."""

from holdfast.domain.moments import Micros
from holdfast.port.store import Page
from holdfast.stores.sqlite.guests import Connection, OwnConnection
from holdfast.stores.sqlite.sql import SQL

_LAST = "\U0010ffff"
"""Stands behind every name."""


def list_pages(db: Connection, asked: tuple[str, str | None, int], now: Micros, *, newest: bool) -> list[Page]:
    """List pages: of this book, from behind this name on, so many."""
    book, after, limit = asked
    start = _LAST if newest else ""
    values = (book, start if after is None else after, now, limit)
    return [Page(*row) for row in db.execute(SQL["newest_pages" if newest else "pages"], values)]


def read_page(db: Connection, book: str, name: str, now: Micros) -> Page | None:
    """Read one page."""
    row = db.execute(SQL["page"], (book, name, now)).fetchone()
    return None if row is None else Page(*row)


def write_page(db: OwnConnection, page: Page, seen: int | None, now: Micros) -> bool:
    """Write a page that has not changed."""
    values = (page.book, page.name, page.body, page.expires_at, now)
    if seen is None:
        db.execute(SQL["add_page"], values)
    else:
        db.execute(SQL["change_page"], (*values, seen))
    return bool(db.changes())
