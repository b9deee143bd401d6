"""Pages: the documents of surfaces."""

from holdfast.domain.moments import Micros
from holdfast.port.store import Page
from holdfast.stores.postgres import sql
from holdfast.stores.postgres.pool import Connection

_LAST = "\U0010ffff"
"""Stands behind every name."""


def list_pages(
    db: Connection, schema: str, asked: tuple[str, str | None, int], now: Micros | None, *, newest: bool
) -> list[Page]:
    """List pages: of this book, from behind this name on, so many."""
    book, after, limit = asked
    start = _LAST if newest else ""
    values = {"book": book, "bound": start if after is None else after, "limit": limit, "now": now}
    return [Page(*row) for row in db.execute(sql.statement(schema, "newest_pages" if newest else "pages"), values)]


def read_page(db: Connection, schema: str, book: str, name: str, now: Micros | None) -> Page | None:
    """Read one page."""
    row = db.execute(sql.statement(schema, "page"), {"book": book, "name": name, "now": now}).fetchone()
    return row and Page(*row)


def write_page(db: Connection, schema: str, page: Page, seen: int | None, now: Micros | None) -> bool:
    """Write a page that has not changed."""
    statement = sql.statement(schema, "add_page" if seen is None else "change_page")
    return db.execute(statement, {**page._asdict(), "seen": seen, "now": now}).fetchone() is not None


def remove_page(db: Connection, schema: str, book: str, name: str, now: Micros | None) -> bool:
    """Forget a page."""
    values = {"book": book, "name": name, "now": now}
    return db.execute(sql.statement(schema, "remove_page"), values).fetchone() is not None
