"""Threads that do plain functions for tasks of the event loop.

They are daemons, unlike those of the standard library: a function that never returns cannot keep a process from ending.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """At most `most` threads, hired as they are needed; they end when nobody holds this object any more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hired = 0
        self._lock = threading.Lock()
        self._free = threading.Semaphore(0)
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        weakref.finalize(self, self._work.put, None)

    def run(self, fn: Callable[[], T]) -> "Future[T]":
        """Call a function in one of the threads."""
        future: Future[T] = Future()
        self._work.put((future, fn))
        if not self._free.acquire(blocking=False):
            self._hire()
        return future

    def _hire(self) -> None:
        with self._lock:
            if self._hired < self._most:
                self._hired += 1
                thread = threading.Thread(
                    target=_live, args=(self._work, self._free), name=f"holdfast-step-{self._hired}", daemon=True
                )
                thread.start()


def _live(work: "SimpleQueue[_Work | None]", free: threading.Semaphore) -> None:
    while (asked := work.get()) is not None:
        future, fn = asked
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(fn())
            except BaseException as error:  # noqa: BLE001 - whoever awaits it is to hear of it
                future.set_exception(error)
        del asked, future, fn
        free.release()
    work.put(None)
