"""A time limit for a function that runs in this thread: `StepTimeout` is raised in it at its next bytecode.

A function that blocks in C does not see it before it comes back.
"""

import threading
from types import TracebackType
from typing import Self

from holdfast.domain.errors import StepTimeout
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.shelter import SHELTER


class Alarm:
    """Used as `with Alarm(timeout)`."""

    def __init__(self, timeout: Micros) -> None:
        self._seconds = timeout / SECOND
        self._lock = threading.Lock()
        self._over = False
        self._rung = False

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        SHELTER.expose()
        self._timer = threading.Timer(self._seconds, self._ring)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._lock:
                self._over = True
            self._timer.cancel()
        except StepTimeout:  # it came while the step was ending
            self._over = True
        if self._rung and not isinstance(error, StepTimeout):
            SHELTER.spare(self._thread)
            raise StepTimeout from error

    def _ring(self) -> None:
        with self._lock:
            if not self._over:
                self._rung = True
                SHELTER.stop(self._thread, StepTimeout)
