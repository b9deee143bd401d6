"""Where artifacts lie: a folder of this machine, or whatever fsspec reaches.

A folder needs nothing installed. Its files are durable when `write` returns, and only their owner can read them. Other
places are as durable as they say they are; an object store takes an object whole or not at all.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.domain.errors import ArtifactsUnavailable, BadInput
from holdfast.domain.redaction import without_person

_OWNER_ONLY = 0o600
_OWNER_ONLY_FOLDER = 0o700


class Place(Protocol):
    """What artifacts need of the place they lie in. Names are relative, and checked by the caller."""

    @property
    def shown(self) -> str:
        """How the place is called in a sentence."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Keep data under a name that is not in use."""
        ...

    def read(self, name: str, most: int) -> bytes:
        """Give what is kept under a name, `most` bytes of it if there are more; raises FileNotFoundError."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is kept under these names; what is gone stays gone."""
        ...


class Folder:
    """A folder of this machine's own file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._settled: Path | None = None
        """The folder of a day that is known to outlast a power cut."""
        self.shown = str(root)

    @classmethod
    def at(cls, url: str) -> "Folder":
        """Read the folder's path from `file:///srv/artifacts`."""
        parts = urlsplit(url)
        path = Path(unquote(parts.path))
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.is_absolute():
            msg = f"{url!r} names no folder of this machine; write file:///srv/artifacts, and ? or # as %3F and %23."
            raise BadInput(msg)
        return cls(path)

    def write(self, name: str, data: bytes) -> None:
        """Keep data: first under a name of its own, so that what has its name is whole."""
        path = self._root / name
        if path.parent != self._settled or not path.parent.is_dir():
            self._make(path.parent)
        draft = path.with_suffix(".part")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def read(self, name: str, most: int) -> bytes:
        """Give what is kept under a name."""
        with (self._root / name).open("rb") as file:
            return file.read(most)

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is kept under these names."""
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def _make(self, day: Path) -> None:
        """Make the folder of a day. Another process may have made it just now, so each level is synced in any case."""
        if not self._root.parent.is_dir():
            msg = f"The folder {self._root.parent} does not exist; make it first, or name another with artifacts=URL."
            raise ArtifactsUnavailable(msg)
        for folder in (self._root, day.parent.parent, day.parent, day):
            with suppress(FileExistsError):
                folder.mkdir(_OWNER_ONLY_FOLDER)
            _sync(folder.parent)
        self._settled = day


class Remote:
    """Anything that fsspec has a URL for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.shown = shown(url)
        try:
            self._reach()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "fsspec":
                raise self._unknown(error) from error
            msg = f'Artifacts in {self.shown} need fsspec; install it with: pip install "holdfast[artifacts]".'
            raise BadInput(msg) from error
        except (ImportError, ValueError) as error:
            raise self._unknown(error) from error

    def write(self, name: str, data: bytes) -> None:
        """Keep data; folders are made where the place has any."""
        system, root = self._reach()
        path = f"{root}/{name}"
        try:
            system.pipe_file(path, data)
        except FileNotFoundError:
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, data)

    def read(self, name: str, most: int) -> bytes:
        """Give what is kept under a name."""
        system, root = self._reach()
        return bytes(system.cat_file(f"{root}/{name}", start=0, end=most))

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is kept under these names: at once where the place can, one by one if some are gone."""
        system, root = self._reach()
        paths = [f"{root}/{name}" for name in names]
        try:
            system.rm(paths)
        except FileNotFoundError:
            for path in paths:
                with suppress(FileNotFoundError):
                    system.rm_file(path)

    def _reach(self) -> tuple[Any, str]:
        """Give fsspec's file system and our folder in it; fsspec keeps one for each process, so that a fork is safe."""
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        system, root = url_to_fs(self._url)
        return system, str(root).rstrip("/")

    def _unknown(self, error: Exception) -> BadInput:
        return BadInput(f"Artifacts cannot be kept in {self.shown}: {error}.")


def shown(url: str) -> str:
    """Leave out what may be a password."""
    return without_person(url.partition("?")[0])


def _sync(folder: Path) -> None:
    """Make the names in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
