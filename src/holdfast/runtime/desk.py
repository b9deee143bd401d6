"""The desk: where pipelines wait for their steps to be recorded, without a thread each.

A lane runs one pipeline up to the record of its next step, leaves it here and goes on with another. Once nothing is
left to run, whoever comes first writes all that lies here in one commit; then those pipelines go on. So quick steps of
many pipelines share commits, and no thread waits for another. While many are being written, as many others may begin:
one thread runs steps then, and another waits for the disk.
"""

import logging
import threading
from collections import deque

from holdfast.domain.errors import StoreError
from holdfast.domain.move import Move
from holdfast.port.store import Store
from holdfast.runtime.attempt import Attempt

log = logging.getLogger("holdfast.desk")
_TROUBLE = 0.2


class Desk:
    """The records of one worker's pipelines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answered: deque[Attempt] = deque()
        """Pipelines whose record has been answered: they can go on."""
        self._left: deque[tuple[Attempt, Move]] = deque()
        self._writing = threading.Lock()
        self._written = 0
        """How many records are being written."""
        self._troubled = False
        self._begun: set[Attempt] = set()

    def begin(self, attempt: Attempt) -> None:
        """Say that a pipeline begins."""
        self._begun.add(attempt)

    def end(self, attempt: Attempt) -> None:
        """Say that a pipeline has ended."""
        self._begun.discard(attempt)

    def room(self, most: int) -> bool:
        """Tell whether another pipeline may begin: fewer than this have, or many only wait for the disk."""
        if len(self._begun) < most:
            return True
        self._begun -= {attempt for attempt in list(self._begun) if attempt.settled}  # ended without a word
        waiting = min(self._written, most)
        return len(self._begun) < (most + waiting if waiting * 2 >= most else most)

    def crowded(self, most: int) -> bool:
        """Tell whether so much lies here that others may begin while it is written."""
        return len(self._left) * 2 >= most

    def leave(self, attempt: Attempt, move: Move) -> None:
        """Leave a record to be written."""
        self._left.append((attempt, move))

    @property
    def calls(self) -> bool:
        """Whether something lies here that nobody is writing."""
        return bool(self._left) and not self._writing.locked()

    def flush(self) -> bool:
        """Write all that lies here; false if there is nothing, or another writes."""
        if not self._left or not self._writing.acquire(blocking=False):
            return False
        try:
            batch = [self._left.popleft() for _ in range(len(self._left))]
            self._written = len(batch)
            if batch:
                self._write(batch)
            return bool(batch)
        finally:
            self._written = 0
            self._writing.release()

    def _write(self, batch: list[tuple[Attempt, Move]]) -> None:
        try:
            answers = self._store.commit([move for _, move in batch])
        except StoreError as error:
            self._wait(batch, error)
            return
        self._troubled = False
        for (attempt, _), answer in zip(batch, answers, strict=True):
            attempt.answer = answer
            self.answered.append(attempt)

    def _wait(self, batch: list[tuple[Attempt, Move]], error: StoreError) -> None:
        """Ask again later, whatever became of it; for those that have been told to stop it is over."""
        if not self._troubled:
            log.warning("steps wait to be recorded: %s", error)
        self._troubled = True
        for attempt, move in batch:
            if attempt.stopping:
                self.answered.append(attempt)
            else:
                self._left.append((attempt, move))
        threading.Event().wait(_TROUBLE)
