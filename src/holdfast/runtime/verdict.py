"""What a child process says of the handler it ran."""

import json
from typing import NamedTuple, Self

from holdfast.domain import lifecycle
from holdfast.domain.job import Failure
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Move
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.executor import Executor


class Verdict(NamedTuple):
    """How a handler ended, in JSON's own terms."""

    result: str | None = None
    snooze: float | None = None
    failure: tuple[str, str, bool] | None = None
    traceback: str | None = None

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Read what a child wrote."""
        return cls(*json.loads(line))

    def settle(self, executor: Executor, attempt: Attempt) -> Move | None:
        """Turn the verdict into the move that settles the attempt."""
        if self.failure is not None:
            return executor.fail(attempt, Failure(*self.failure), self.traceback)
        if self.snooze is not None:
            return lifecycle.snooze(attempt.job, round(self.snooze * SECOND))
        return executor.complete(attempt, self.result)
