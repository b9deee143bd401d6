"""Pages: the documents of surfaces, a partition for each book.

A page that expires has a mark that lies by the time it does, so that upkeep finds it without reading the table; the
mark is written first, because one that leads to no page does no harm. Both carry `ttl_at`, by which a table removes
them itself where that is turned on.
"""

from itertools import islice
from typing import Any

from holdfast.domain.errors import StoreError
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Page
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import Item, Place
from holdfast.stores.dynamodb.wire import Failed, TooLarge, Wire, op_token

_MARKS = "pages-expiring"
_LIVE = "(attribute_not_exists(expires_at) OR expires_at > :now)"


class Pages:
    """The pages of a table."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, book: str, after: str | None, limit: int, now: Micros, *, newest: bool) -> list[Page]:
        """List the pages of a book from behind a name."""
        bound = None if after is None else _place(book, after).sk
        between = {} if bound is None else {"last" if newest else "first": bound}
        size = max(1, min(limit + 1, 1_000))
        walk = self._wire.walk(_partition(book), **between, newest=newest, limit=size)
        found = (_page(item) for item in walk if item["SK"]["S"] != bound)
        return list(islice((page for page in found if not _over(page, now)), limit))

    def read(self, book: str, name: str, now: Micros) -> Page | None:
        """Read one page."""
        item = self._wire.get(_place(book, name))
        page = None if item is None else _page(item)
        return None if page is None or _over(page, now) else page

    def write(self, page: Page, seen: int | None, now: Micros) -> bool:
        """Write a page that has not changed."""
        op = op_token()
        stored = page._replace(version=(seen or 0) + 1)
        if stored.expires_at is not None:
            self._wire.write_all([_mark(stored, stored.expires_at)])
        values = {**stored._asdict(), "ttl_at": _ttl(stored.expires_at), "op_token": op}
        try:
            self._wire.put(_place(page.book, page.name).key | items.attributes(values), op, **_guard(seen, now))
        except Failed:
            return False
        except TooLarge as error:
            msg = f"The page {page.name!r} of {page.book!r} is too large for DynamoDB."
            raise StoreError(msg) from error
        return True

    def remove(self, book: str, name: str, now: Micros) -> bool:
        """Forget a page."""
        return self._delete(_place(book, name), f"attribute_exists(PK) AND {_LIVE}", now)

    def purge(self, limit: int, now: Micros) -> int:
        """Remove pages whose time is over, and the marks by which they were found; give the number of pages."""
        late = list(islice(self._wire.walk(_MARKS, last=f"{now:020d}#~", limit=max(1, min(limit, 1_000))), limit))
        places = [_place(item["book"]["S"], item["name"]["S"]) for item in late]
        gone = self._wire.each(lambda place: self._delete(place, "expires_at <= :now", now), places)
        self._wire.write_all(deletes=[Place(_MARKS, item["SK"]["S"]) for item in late])
        return sum(gone)

    def _delete(self, place: Place, condition: str, now: Micros) -> bool:
        """Remove a page under a condition; tell whether it held."""
        try:
            self._wire.call(
                "delete_item",
                writes=True,
                Key=place.key,
                ConditionExpression=condition,
                ExpressionAttributeValues={":now": items.wire(now)},
            )
        except Failed:
            return False
        return True


def _guard(seen: int | None, now: Micros) -> dict[str, Any]:
    values: Item = {":now": items.wire(now)}
    if seen is None:
        return {
            "ConditionExpression": "attribute_not_exists(PK) OR expires_at <= :now",
            "ExpressionAttributeValues": values,
        }
    return {
        "ConditionExpression": f"#version = :seen AND {_LIVE}",
        "ExpressionAttributeNames": {"#version": "version"},
        "ExpressionAttributeValues": {**values, ":seen": items.wire(seen)},
    }


def _partition(book: str) -> str:
    return items.short(f"pages#{book}")


def _place(book: str, name: str) -> Place:
    return Place(_partition(book), items.short(f"page#{name}"))


def _mark(page: Page, expires_at: Micros) -> Item:
    place = Place(_MARKS, items.short(f"{expires_at:020d}#{page.book}#{page.name}"))
    return place.key | items.attributes({"book": page.book, "name": page.name, "ttl_at": _ttl(expires_at)})


def _ttl(expires_at: Micros | None) -> int | None:
    """Give the second after which the table may remove an item."""
    return None if expires_at is None else max(0, -(-expires_at // SECOND))


def _page(item: Item) -> Page:
    return Page(**items.fields(item, Page._fields))


def _over(page: Page, now: Micros) -> bool:
    return page.expires_at is not None and page.expires_at <= now
