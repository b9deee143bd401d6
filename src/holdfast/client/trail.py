"""The trail: who did what through a surface, and when. It is added to and read, and nothing in it is changed.

Deeds are named by version 7 ids, so that the newest come first by their names alone; they are kept for 90 days.
"""

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.client.asynchronous import asynchronous
from holdfast.domain.errors import BadInput
from holdfast.domain.ids import Ids
from holdfast.domain.moments import DAY, Micros
from holdfast.port.store import Page, Store

BOOK = "trail"
KEPT: Micros = 90 * DAY
LARGEST_PAGE = 1_000
_LONGEST = 500
_LARGEST = 16 * 1024
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Deed(NamedTuple):
    """Something that somebody did."""

    id: str
    at: Micros
    who: str
    what: str
    target: str
    """What it was done to: the id of a job, the name of a queue."""
    tenant: str | None
    """The tenant that whoever did it is bound to."""
    detail: dict[str, Any]


Listed = list[Deed]


class Trail:
    """What was done to a store."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ids = Ids(lambda: self._store().now() // 1000, secrets.randbits)

    def record(
        self, who: str, what: str, target: str, tenant: str | None = None, detail: Mapping[str, Any] = _NOTHING
    ) -> Deed:
        """Write down what was done. Long words are cut, and a detail that is too large is left out."""
        store = self._store()
        with self._lock:
            [id_] = self._ids.take(1)
        deed = Deed(id_, store.now(), who[:_LONGEST], what[:_LONGEST], target[:_LONGEST], tenant, _fitting(detail))
        body = json.dumps({name: value for name, value in deed._asdict().items() if name != "id"})
        store.write_page(Page(BOOK, id_, body, expires_at=deed.at + KEPT), None)
        return deed

    def list(self, limit: int = 50, before: str | None = None) -> Listed:
        """List what was done, newest first; `before` continues after the last one of the page before."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            msg = f"limit is a whole number from 1 to {LARGEST_PAGE}, not {limit!r}."
            raise BadInput(msg)
        pages = self._store().pages(BOOK, before, limit, newest=True)
        return [Deed(page.name, **json.loads(page.body)) for page in pages]

    arecord = asynchronous(record)
    alist = asynchronous(list)  # noqa: A003 - the method, not the type


def _fitting(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Give a detail as JSON keeps it; one that is too large is only said to be."""
    told = json.dumps(dict(detail), default=str)
    kept: dict[str, Any] = json.loads(told) if len(told) <= _LARGEST else {"left_out": f"{len(told):,} bytes"}
    return kept
