"""The desk: where pipelines wait for their steps to be recorded, without a thread each.

A lane runs one pipeline up to the record of its next step, leaves it here and goes on with another. Once nothing is
left to run, whoever comes first writes all that lies here in one commit; then those pipelines go on. So quick steps of
many pipelines share commits, and no thread waits for another. While many are being written, others may begin: one
thread runs steps then, and another waits for the disk.
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
_CROWD = 2
"""How many times as many pipelines as may run may also wait for the disk: so commits grow while it is slow."""


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
        self.begun: set[Attempt] = set()
        """Pipelines that have begun and not ended."""

    def begin(self, attempt: Attempt) -> None:
        """Say that a pipeline begins."""
        self.begun.add(attempt)

    def end(self, attempt: Attempt) -> None:
        """Say that a pipeline has ended."""
        self.begun.discard(attempt)

    def room(self, most: int) -> bool:
        """Tell whether another pipeline may begin: fewer than this have, or many only wait for the disk."""
        if len(self.begun) < most:
            return True
        waiting = min(self._written + len(self._left), most * _CROWD) if self._written else 0
        if waiting * 2 >= most:
            most += waiting
        if len(self.begun) >= most:
            self.begun -= {attempt for attempt in list(self.begun) if attempt.settled}  # ended without a word
        return len(self.begun) < most

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

    def flush(self, most: int) -> bool:
        """Write what lies here; false if there is nothing, or another writes.

        If that is more than this, it is at most half of all pipelines: so the others can run meanwhile.
        """
        if not self._left or not self._writing.acquire(blocking=False):
            return False
        try:
            batch = [self._left.popleft() for _ in range(min(len(self._left), max(most, len(self.begun) // 2)))]
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
