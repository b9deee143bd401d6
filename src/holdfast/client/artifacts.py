"""Payloads and results that are too large for a record: kept as files outside the store, by reference.

A file is whole and durable before the reference to it is committed, so a reference that can be read leads to a whole
file. Its name is fresh, belongs to one job and goes when that job is purged. What is read back is compared with the
size and the digest in its reference.

A reference is told by its text, which has one exact spelling. A user's own JSON that begins as references do is itself
kept outside the store, however small it is, so that it can never be taken for one.
"""

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

from holdfast.client.asynchronous import in_thread
from holdfast.client.places import Folder, Place, Remote, shown
from holdfast.domain import codec
from holdfast.domain.codec import ARTIFACT, Reference
from holdfast.domain.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ArtifactsUnavailable,
    BadInput,
    BadPayload,
    HoldfastError,
)
from holdfast.domain.moments import to_datetime
from holdfast.port.clock import Clock, SystemClock

log = logging.getLogger("holdfast.artifacts")
LARGEST = 64 * 1024 * 1024
_HIGHEST = 1024 * 1024 * 1024
_WIDEST = 4
"""The most bytes that one character takes."""


class Artifacts:
    """One application's large texts. Without a URL there is no place for them, and they are refused.

    `limit` is what a record holds; `largest` is what an artifact may be, both in bytes of JSON.
    """

    def __init__(
        self,
        url: str | None,
        limit: int = codec.MAX_BYTES,
        largest: int = LARGEST,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(largest, bool) or not isinstance(largest, int) or not codec.MAX_RECORD < largest <= _HIGHEST:
            msg = f"An artifact may be {codec.MAX_RECORD + 1:,} to {_HIGHEST:,} bytes large, not {largest!r}."
            raise BadInput(msg)
        if isinstance(limit, bool) or not isinstance(limit, int):
            msg = f"max_payload is a whole number of bytes, not {limit!r}."
            raise BadInput(msg)
        self._place = None if url is None else place_of(url)
        self._limit = limit
        self._short = limit // _WIDEST
        """Texts of so few characters are within the limit, whatever they are."""
        self._clock = clock or SystemClock()
        self.largest = limit if url is None else largest
        """The largest text that `keep` takes."""

    def fits(self, text: str) -> bool:
        """Tell whether a text is stored as it is."""
        return not text.startswith(ARTIFACT) and (len(text) <= self._short or _size(text) <= self._limit)

    def fit(self, texts: Sequence[str]) -> bool:
        """Tell whether each of these texts is stored as it is; there may be very many."""
        if max(map(len, texts), default=0) > self._short:
            return all(map(self.fits, texts))
        return not any(map(str.startswith, texts, repeat(ARTIFACT)))

    def keep(self, text: str, what: str) -> str:
        """Give what is to be stored for a text: itself, or the reference to where it has been put; `what` names it in
        the error.
        """
        if self.fits(text):
            return text
        if (size := _size(text)) > self.largest:
            raise codec.too_large(what, size, self.largest)
        if self._place is None:
            instead = "begin with another key, or pass artifacts=URL"
            msg = f'{what} begins with the key "$artifact", by which Holdfast knows its own references; {instead}.'
            raise BadPayload(msg)
        return self.put(text)

    def load(self, text: str) -> str:
        """Give the text that `keep` was given."""
        return self.get(text) if text.startswith(ARTIFACT) and codec.reference(text) else text

    def forget(self, texts: Iterable[str]) -> None:
        """Remove what the references among these texts lead to. What cannot be removed stays behind, and is logged."""
        references = [found for text in texts if (found := codec.reference(text))]
        if not references:
            return
        try:
            self._remove(references)
        except HoldfastError as error:
            log.warning("up to %d artifacts stay, from %s on: %s", len(references), references[0].name, error)

    async def akeep(self, text: str, what: str) -> str:
        """Asynchronous twin of `keep`; a text that fits does not leave the event loop."""
        return text if self.fits(text) else await in_thread(self.keep, text, what)

    async def aload(self, text: str) -> str:
        """Asynchronous twin of `load`; a text that is no reference does not leave the event loop."""
        return await in_thread(self.load, text) if codec.reference(text) else text

    def put(self, text: str) -> str:
        """Put a text outside the store, whatever its size, and give the reference to it."""
        data = text.encode()
        name = f"{to_datetime(self._clock.now()):%Y/%m/%d}/{secrets.token_hex(16)}.json"
        with self._reached() as place:
            place.write(name, data)
        return Reference(name, len(data), codec.digest(data)).text

    def get(self, reference: str) -> str:
        """Read what a reference leads to; raises `ArtifactMissing`, `ArtifactDamaged` or `ArtifactsUnavailable`."""
        wanted = _read(reference)
        with self._reached() as place:
            try:
                data = place.read(wanted.name, wanted.size + 1)
            except FileNotFoundError as error:
                next_step = "bring it back, or say with artifacts=URL where it is"
                msg = f"The artifact {wanted.name} is not in {place.shown}; {next_step}."
                raise ArtifactMissing(msg) from error
        if len(data) != wanted.size or codec.digest(data) != wanted.sha256:
            msg = f"The artifact {wanted.name} in {place.shown} is not what was put there; restore it from a backup."
            raise ArtifactDamaged(msg)
        return data.decode()

    def remove(self, references: Iterable[str]) -> None:
        """Remove what these references lead to, or nothing if one of them is not ours; what is gone stays gone."""
        self._remove([_read(reference) for reference in references])

    def _remove(self, references: list[Reference]) -> None:
        with self._reached() as place:
            place.remove([each.name for each in references])

    @contextmanager
    def _reached(self) -> Iterator[Place]:
        """Give the place, and put whatever goes wrong there into one sentence."""
        if self._place is None:
            msg = "There is no place for artifacts; say where they are: artifacts=URL."
            raise ArtifactsUnavailable(msg)
        try:
            yield self._place
        except HoldfastError:
            raise
        except Exception as error:  # each place has errors of its own
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            msg = f"The artifacts in {self._place.shown} cannot be reached: {why}."
            raise ArtifactsUnavailable(msg) from error


def place_of(url: str) -> Place:
    """Find the place that a URL names."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or not rest or "::" in url or scheme == "local":
        msg = f"artifacts= takes a URL like file:///srv/artifacts or s3://bucket/folder, not {shown(str(url))!r}."
        raise BadInput(msg)
    return Folder.at(url) if scheme == "file" else Remote(url)


def default_url(store_url: str) -> str | None:
    """Give the place for a store's artifacts if none is named: a folder beside a SQLite file; none for other stores."""
    if not store_url.startswith("sqlite://"):
        return None
    from holdfast.stores.sqlite.connection import path_of

    try:
        path = path_of(store_url).resolve()
    except (HoldfastError, OSError):
        return None  # whoever opens the store says what is wrong with it
    return path.with_name(f"{path.name}-artifacts").as_uri()


def _read(reference: str) -> Reference:
    found = codec.reference(reference)
    if found is None:
        msg = "This is not a reference to an artifact that Holdfast put away."
        raise BadInput(msg)
    return found


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
