"""Where a thread is safe from being stopped: what holds a lock or a connection must come to its end first.

Python can raise an exception in another thread, between any two of its bytecodes: that is how a handler is stopped that
is cancelled, or takes too long. Between taking a lock and noting that it was taken, such an exception would leave the
lock taken for ever. So whoever takes what others wait for does it `with SHELTER`, and a thread in there hears of its
stop when it comes out. It costs next to nothing in a thread that was never `exposed`, and only those can be stopped.
"""

import ctypes
import os
import threading
from types import TracebackType

Stop = type[BaseException]


class Shelter:
    """The threads of one process that are inside, and what they will hear when they come out."""

    def __init__(self) -> None:
        self._open_anew()
        os.register_at_fork(after_in_child=self._open_anew)

    def _open_anew(self) -> None:
        self._gate = threading.Lock()
        self.exposed: set[int] = set()
        """The threads that can be stopped; each adds itself, so while there are none, none has to take shelter."""
        self._depths: dict[int, int] = {}
        self._stops: dict[int, Stop] = {}

    def expose(self) -> None:
        """Let this thread be stopped from now on; it must not be inside."""
        self.exposed.add(threading.get_ident())

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me not in self.exposed:
            return
        with self._gate:
            # A stop that was sent before the gate closed is raised by this call of `get` at the latest.
            self._depths[me] = self._depths.get(me, 0) + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me = threading.get_ident()
        if me not in self.exposed:
            return
        with self._gate:
            depth = self._depths.pop(me) - 1
            if depth:
                self._depths[me] = depth
                return
            stop = self._stops.pop(me, None)
        if stop is not None:
            raise stop from error

    def stop(self, thread: int, stop: Stop) -> None:
        """Raise this in an exposed thread: at once, or when it comes out."""
        assert thread in self.exposed
        with self._gate:
            if thread in self._depths:
                self._stops[thread] = stop
            else:
                _raise_in(thread, ctypes.py_object(stop))

    def spare(self, thread: int) -> None:
        """Take a stop back that has not been heard."""
        with self._gate:
            self._stops.pop(thread, None)
            _raise_in(thread, None)


def _raise_in(thread: int, stop: "ctypes.py_object[Stop] | None") -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), stop)


SHELTER = Shelter()
"""One for the whole process, because threads are the process's."""
