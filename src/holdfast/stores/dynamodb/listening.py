"""Waiting for messages while somebody waits for jobs."""

import threading
import time
from collections.abc import Callable

from holdfast.domain.errors import StoreError
from holdfast.stores.dynamodb.mail import Mail


class Listener:
    """Waits for messages on a thread of its own, while somebody waits for jobs: a long wait costs one request."""

    def __init__(self, mail: Mail, ring: Callable[[], None]) -> None:
        self._mail = mail
        self._ring = ring
        self._wanted = 0.0
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def want(self, seconds: float) -> None:
        """Listen for at least this long."""
        self._wanted = time.monotonic() + seconds + 1
        with self._lock:
            if not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._listen, name="holdfast-messages", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Listen no more; what comes now goes back."""
        self._closed = True
        self._mail.hand_back()

    def _listen(self) -> None:
        try:
            while not self._closed and time.monotonic() < self._wanted:
                if self._mail.heard_some or self._mail.room < 1:
                    time.sleep(0.05)
                elif self._mail.listen(20):
                    self._ring()
        except StoreError:
            return  # whoever waits asks again
        if self._closed:
            self._mail.hand_back()
