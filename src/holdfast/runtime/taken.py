"""What a drop has taken: the digests of objects whose jobs are stored, on pages of the store.

Objects may stay for longer than their jobs are kept, and must not be taken a second time. A page holds many digests and
lasts as long as one of its objects is seen, and some weeks more: a place may be out of sight for a while.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from pydantic_core import from_json, to_json

from holdfast.domain.moments import DAY, Micros
from holdfast.port.store import Page, Store

KEPT: Micros = 90 * DAY
"""How long a page lasts after it was last written; it is written again when half of that is over."""
_FULL = 500
"""The digests that a page holds."""
_READ = 100


class Taken:
    """What one drop has taken, as the watcher knows it. `fresh` makes names for pages."""

    def __init__(self, store: Store, drop: str, fresh: Callable[[], str]) -> None:
        self._store = store
        self._book = f"drop:{drop}"
        self._fresh = fresh
        self._pages: dict[str, Page] = {}
        self._known: set[str] = set()
        self._open: Page | None = None
        """The page that has room."""

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    def load(self) -> None:
        """Read all that was taken before."""
        self._pages, self._known, self._open = {}, set(), None
        after: str | None = None
        while found := self._store.pages(self._book, after, _READ):
            for page in found:
                digests = from_json(page.body)
                self._pages[page.name] = page
                self._known.update(digests)
                if len(digests) < _FULL:
                    self._open = page
            after = found[-1].name

    def add(self, digests: Iterable[str], now: Micros) -> None:
        """Write down what is taken from now on."""
        left = [digest for digest in digests if digest not in self._known]
        while left:
            page = self._open or Page(self._book, self._fresh(), "[]", 0)
            held: list[str] = from_json(page.body)
            more = left[: _FULL - len(held)]
            written = self._write(page._replace(body=to_json(held + more).decode()), now)
            if written is None:
                self._open = None  # another watcher has written on it, or it is gone
                continue
            del left[: len(more)]
            self._known.update(more)
            self._open = written if len(held) + len(more) < _FULL else None

    def keep(self, seen: AbstractSet[str], now: Micros) -> None:
        """Let the pages last on which something is that is still there."""
        for page in list(self._pages.values()):
            ends = page.expires_at
            if ends is not None and ends - now < KEPT // 2 and not seen.isdisjoint(from_json(page.body)):
                self._write(page, now)

    def _write(self, page: Page, now: Micros) -> Page | None:
        wanted = page._replace(expires_at=now + KEPT)
        if not self._store.write_page(wanted, page.version or None):
            self._pages.pop(page.name, None)
            return None
        written = wanted._replace(version=page.version + 1)
        self._pages[page.name] = written
        return written
