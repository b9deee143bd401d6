"""What a call changed: told by whoever wrote it, for those who count jobs and those who send messages about them."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.domain.job import JobRecord, State


class Change(NamedTuple):
    """A job that is another now; `before` is None if it is new, `after` if it is gone."""

    before: JobRecord | None
    after: JobRecord | None


class Changes:
    """The changes of one call. Appending is atomic, so several threads may tell of theirs at once."""

    def __init__(self) -> None:
        self.all: list[Change] = []

    def tell(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Tell of a job that was written."""
        self.all.append(Change(before, after))

    def counts(self) -> Mapping[tuple[str, State], int]:
        """Give by how much the numbers of jobs by queue and state have changed."""
        total: Counter[tuple[str, State]] = Counter()
        for before, after in self.all:
            if before is not None:
                total[before.queue, before.state] -= 1
            if after is not None:
                total[after.queue, after.state] += 1
        return total
