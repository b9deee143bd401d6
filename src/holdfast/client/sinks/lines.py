"""Events as lines of JSON in a file that only grows: one line per event, on the disk before it counts as delivered.

The file is opened for each delivery, so it may be moved away at any time. Writers take turns by a lock on the file. A
line that was cut off when its writer died is taken out, for its event is delivered again; other text is left alone.
"""

import fcntl
import os
import stat
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from holdfast.client.sinks.shape import Told, Undelivered
from holdfast.domain.errors import BadInput

_MODE = 0o600
_OURS = b'{"id":"'
"""Begins each line of ours."""
_LONGEST = 1024 * 1024
"""No line of ours is longer, in bytes."""


class JsonLines:
    """A file to append events to, made for its owner alone (mode 0600) if it is not there."""

    most = 1_000

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = _checked(path)

    def __repr__(self) -> str:
        return f"JsonLines({str(self._path)!r})"

    def deliver(self, told: list[Told]) -> None:
        """Append the events and see them on the disk."""
        lines = b"".join(to_json(event) + b"\n" for event in told)
        try:
            new = not self._path.exists()
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
            try:
                _append(file, lines)
            finally:
                os.close(file)
            if new:
                _sync_folder(self._path.parent)
        except OSError as error:
            msg = f"{self._path} cannot be written ({error.strerror or type(error).__name__})"
            raise Undelivered(msg) from error

    def close(self) -> None:
        """Nothing is kept open."""


def _checked(path: Any) -> Path:
    if not isinstance(path, str | PathLike) or not isinstance(os.fspath(path), str):
        msg = f"JsonLines takes the path of a file, not {type(path).__name__}."
        raise BadInput(msg)
    if not os.fspath(path) or "\x00" in os.fspath(path):
        msg = "JsonLines takes the path of a file; this one is empty or holds a NUL character."
        raise BadInput(msg)
    whole = Path(path).absolute()
    if whole.is_dir():
        msg = f"JsonLines takes the path of a file, and {whole} is a folder."
        raise BadInput(msg)
    if not whole.parent.is_dir():
        msg = f"JsonLines appends to a file in a folder that is there; {whole.parent} is not."
        raise BadInput(msg)
    return whole


def _append(file: int, lines: bytes) -> None:
    fcntl.flock(file, fcntl.LOCK_EX)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        msg = "not a regular file"
        raise OSError(0, msg)
    end, gap = _end(file, status.st_size)
    if end < status.st_size:
        os.ftruncate(file, end)
    try:
        left = memoryview(gap + lines)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)
        raise


def _end(file: int, size: int) -> tuple[int, bytes]:
    """Say where to go on: at the end, after a line of ours that was cut off is gone or other text has got its end."""
    start = max(size - _LONGEST, 0)
    tail = os.pread(file, size - start, start) if size and os.pread(file, 1, size - 1) != b"\n" else b""
    if not tail:
        return size, b""
    line = tail[tail.rfind(b"\n") + 1 :]
    cut = line.startswith(_OURS) or _OURS.startswith(line)
    return (size - len(line), b"") if cut else (size, b"\n")


def _sync_folder(folder: Path) -> None:
    """See the new file's name on the disk too."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
