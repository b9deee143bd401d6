"""Wake-up across processes without polling: each waiting process listens on a small socket beside the database, and
whoever stores a job rings them.

A ring is a hint and may be lost; waiting is always bounded by a timeout. Sockets of dead processes are removed by the
first to ring them.
Where Unix sockets are not to be had, `wait` sleeps in short turns instead.
"""

import contextlib
import os
import secrets
import select
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from holdfast.port.process import PROCESS

_ANY = b"*"
_LONGEST_MESSAGE = 1024
_TURN = 0.02


class Bell:
    """One store object's end of the wake-up: it can ring, and (from its first `wait` on) be rung.

    Like a connection it must not cross a fork: the child begins anew, and leaves alone what its parent opened.
    """

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + "-wake")
        self._text = str(self._folder)
        self._begin()

    def _begin(self) -> None:
        self._process = PROCESS.id
        self._lock = threading.Lock()
        self._ears: socket.socket | None = None
        self._voice: socket.socket | None = None
        self._name: Path | None = None
        self._listed: tuple[int, list[str]] = (-1, [])
        self._deaf = not hasattr(socket, "AF_UNIX")

    def listen(self) -> None:
        """Be rung from now on."""
        self._after_fork()
        if self._ears is not None or self._deaf:
            return
        with self._lock:
            for _ in range(3):
                with contextlib.suppress(OSError):
                    self._bind()
                    return
            self._deaf = True

    def _after_fork(self) -> None:
        if self._process != PROCESS.id:
            self._inherited = (self._ears, self._voice)
            self._begin()

    def _bind(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = self._folder / secrets.token_hex(6)
        ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with _short(name) as short:
                ears.bind(short)
        except OSError:
            ears.close()
            raise
        ears.setblocking(False)
        self._name, self._ears = name, ears

    def wait(self, queues: Sequence[str] | None, timeout: float) -> bool:
        """Block until rung for one of these queues, or until the timeout."""
        self.listen()
        ears = self._ears
        if ears is None:
            threading.Event().wait(min(timeout, _TURN))
            return timeout > _TURN
        ready, _, _ = select.select([ears], [], [], timeout)
        return bool(ready) and self._drain(ears, queues)

    def _drain(self, ears: socket.socket, queues: Sequence[str] | None) -> bool:
        rung = False
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                message = ears.recv(_LONGEST_MESSAGE)
                rung = (
                    rung
                    or queues is None
                    or message == _ANY
                    or not set(queues).isdisjoint(message.decode().split("\n"))
                )
        return rung

    def ring(self, queues: Collection[str] | None = None) -> None:
        """Wake whoever waits for one of these queues, in every process."""
        if not os.access(self._text, os.F_OK) or (queues is not None and not queues):
            return
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return
        self._after_fork()
        message = _ANY if queues is None else "\n".join(queues).encode()
        if len(message) > _LONGEST_MESSAGE:
            message = _ANY
        with self._lock, contextlib.suppress(OSError):
            if self._listed[0] != changed:
                self._listed = (changed, [path.name for path in self._folder.iterdir()])
            if self._voice is None:
                self._voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._voice.setblocking(False)
            for name in self._listed[1]:
                self._send(self._voice, self._folder / name, message)

    def _send(self, voice: socket.socket, name: Path, message: bytes) -> None:
        try:
            with _short(name) as short:
                voice.sendto(message, short)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                name.unlink()
        except OSError:
            return

    def ring_own(self) -> None:
        """Wake this store object's own waiters only."""
        self._after_fork()
        with self._lock:
            if self._name is not None:
                voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                voice.setblocking(False)
                self._send(voice, self._name, _ANY)
                voice.close()

    def close(self) -> None:
        """Stop listening."""
        self._after_fork()
        with self._lock:
            for end in (self._ears, self._voice):
                if end is not None:
                    end.close()
            if self._name is not None:
                self._name.unlink(missing_ok=True)
            self._ears = self._voice = self._name = None
            self._deaf = True
            with contextlib.suppress(OSError):
                self._folder.rmdir()


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give a name for a socket that fits the 107 bytes a Unix address may have."""
    text = str(path)
    if len(os.fsencode(text)) < 100:  # noqa: PLR2004
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
