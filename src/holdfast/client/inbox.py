"""Where dropped files are looked for: a folder of this machine, or a prefix of whatever fsspec reaches.

One level is listed, never what lies in folders below. Left out are folders, links (they may lead anywhere), hidden
files and the names that programs give to what they have not finished writing.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.client.places import shown
from holdfast.domain.errors import BadInput, HoldfastError
from holdfast.domain.moments import Micros, instant

UNFINISHED = (".part", ".partial", ".filepart", ".crdownload", ".download", ".tmp", ".temp", ".swp", "~")
"""How the names of files end that somebody is still writing."""
_TAGS = ("ETag", "etag", "md5Hash", "md5", "content_md5")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


class Found(NamedTuple):
    """An object as it was when it was looked at."""

    path: str
    """Its absolute path, or its URL."""
    size: int
    modified: Micros | None
    etag: str | None
    content: str
    """What tells this content of the path from another: the tag, or time and size."""


class Inbox(Protocol):
    """A place that is looked at again and again."""

    @property
    def shown(self) -> str:
        """How the place is called in a sentence."""
        ...

    def look(self, pattern: str) -> Iterator[Found]:
        """Give the finished-looking objects whose names fit the pattern; raises `InboxTrouble`."""
        ...


class InboxTrouble(HoldfastError):
    """The place cannot be looked at now; looking again later may work."""

    code = "inbox_trouble"


class Folder:
    """A folder of this machine's own file system."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.shown = str(self._path)

    def look(self, pattern: str) -> Iterator[Found]:
        """Go through the folder; a file that vanishes meanwhile is left out."""
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if wanted(entry.name, pattern) and (found := _file(entry)) is not None:
                        yield found
        except OSError as error:
            msg = f"The folder {self.shown} cannot be looked at ({error.strerror}); make it, or let this user read it."
            raise InboxTrouble(msg) from error


class Prefix:
    """A folder, bucket or prefix that fsspec has a URL for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.shown = shown(url)
        try:
            self._reach()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "fsspec":
                raise self._unknown(error) from error
            msg = f"Watching {self.shown} needs fsspec; install it with: pip install 'holdfast[artifacts]'."
            raise BadInput(msg) from error
        except (ImportError, ValueError) as error:
            raise self._unknown(error) from error

    def look(self, pattern: str) -> Iterator[Found]:
        """List the prefix, as it is now and not as fsspec remembers it."""
        try:
            system, root = self._reach()
            system.invalidate_cache()
            listed: list[Mapping[str, Any]] = system.ls(root, detail=True)
            for entry in listed:
                name = str(entry["name"])
                if entry.get("type") == "file" and wanted(name.rpartition("/")[2], pattern):
                    yield _object(system.unstrip_protocol(name), entry)
        except Exception as error:
            msg = f"{self.shown} cannot be looked at ({type(error).__name__}); check that it is there and may be read."
            raise InboxTrouble(msg) from error

    def _reach(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        system, root = url_to_fs(self._url)
        return system, str(root)

    def _unknown(self, error: Exception) -> BadInput:
        return BadInput(f"{self.shown} cannot be watched: {error}.")


def inbox_of(watch: str | os.PathLike[str]) -> Inbox:
    """Read where to look: a path, `file:///path`, or a URL of fsspec's."""
    if not isinstance(watch, str | os.PathLike) or not os.fspath(watch):
        msg = f"A drop watches a folder or a URL, as in '/srv/inbox' or 's3://bucket/inbox'; {watch!r} is neither."
        raise BadInput(msg)
    place = os.fspath(watch)
    if "://" not in place:
        return Folder(Path(place))
    parts = urlsplit(place)
    if parts.scheme != "file":
        return Prefix(place)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        msg = f"{place!r} names no folder of this machine; write file:///srv/inbox, and ? or # as %3F and %23."
        raise BadInput(msg)
    return Folder(Path(unquote(parts.path)))


def wanted(name: str, pattern: str) -> bool:
    """Tell whether a name fits the pattern, and is neither hidden nor that of an unfinished file."""
    return not name.startswith(".") and not name.lower().endswith(UNFINISHED) and fnmatchcase(name, pattern)


def _file(entry: "os.DirEntry[str]") -> Found | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        stat = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Found(entry.path, stat.st_size, stat.st_mtime_ns // 1000, None, f"{stat.st_mtime_ns}.{stat.st_size}")


def _object(url: str, entry: Mapping[str, Any]) -> Found:
    size = int(entry.get("size") or 0)
    modified = next((at for name in _TIMES if (at := _instant(entry.get(name))) is not None), None)
    etag = next((tag for name in _TAGS if isinstance(tag := entry.get(name), str) and tag), None)
    return Found(url, size, modified, etag, etag or f"{modified}.{size}")


def _instant(value: Any) -> Micros | None:
    """Read the time of an object in any of the ways that fsspec's file systems have for it."""
    match value:
        case bool() | None:
            return None
        case int() | float():
            return int(value * 1_000_000)
        case datetime():
            return instant(value if value.tzinfo else value.replace(tzinfo=UTC), "modified")
        case str():
            try:
                return _instant(datetime.fromisoformat(value))
            except ValueError:
                return None
        case _:
            return None
