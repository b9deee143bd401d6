"""Where a listing goes on: an id, signed together with the filter and the tenant that it belongs to.

A cursor is good for the very question that it was an answer to, and for whoever may ask that. The key is kept in the
store, so that it is the same for every server of a store.
"""

import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable, Mapping
from uuid import UUID

from holdfast.domain.errors import StoreError
from holdfast.port.store import Page, Store
from holdfast.server.problems import Problem

_BOOK, _NAME = "server", "cursor-key"
_ID = 16


class Cursors:
    """The cursors of one server."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._key: bytes | None = None

    def make(self, last: str, question: Mapping[str, object]) -> str:
        """Give the cursor that goes on behind this id. Blocks."""
        raw = UUID(last).bytes
        return urlsafe_b64encode(raw + self._signature(raw, question)).decode().rstrip("=")

    def read(self, cursor: str, question: Mapping[str, object]) -> str:
        """Give the id behind which to go on; raises a problem if it is no cursor of this question. Blocks."""
        try:
            last = str(UUID(bytes=urlsafe_b64decode(f"{cursor}=")[:_ID]))
        except (Error, ValueError):
            last = None
        # As a text, because several texts stand for the same bytes.
        if last is None or not hmac.compare_digest(cursor.encode(), self.make(last, question).encode()):
            detail = "The cursor does not belong to this listing; take it from 'next' and keep the filter as it was."
            raise Problem(400, "bad-cursor", detail)
        return last

    def _signature(self, last: bytes, question: Mapping[str, object]) -> bytes:
        asked = json.dumps(question, sort_keys=True, default=str).encode()
        return hmac.digest(self._secret(), last + asked, hashlib.sha256)[:_ID]

    def _secret(self) -> bytes:
        if self._key is None:
            self._key = bytes.fromhex(self._kept())
        return self._key

    def _kept(self) -> str:
        """Read the key, or keep a new one; where nothing can be kept, the key is this process's own."""
        store, fresh = self._store(), secrets.token_hex(32)
        found = store.page(_BOOK, _NAME)
        if found is None:
            try:
                store.write_page(Page(_BOOK, _NAME, json.dumps(fresh)), None)
            except StoreError:
                return fresh
            found = store.page(_BOOK, _NAME)
        return fresh if found is None else str(json.loads(found.body))
