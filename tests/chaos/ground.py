"""What every chaos test looks at: one store, from outside the processes that work on it."""

import threading
import time
from collections.abc import Callable, Iterator

from holdfast import Holdfast
from holdfast.domain.audit import violations
from holdfast.domain.job import JobRecord
from holdfast.port.store import Query


class Ground:
    """A store under watch."""

    app: Holdfast

    def until(self, condition: Callable[[], object], what: str, patience: float = 120) -> None:
        """Wait for something that other processes bring about."""
        end = time.monotonic() + patience
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {patience} s; {self.app.counts()}"
            pause.wait(0.02)

    def records(self) -> Iterator[JobRecord]:
        """Read every job."""
        query = Query(limit=1000)
        while page := self.app.store.find(query):
            yield from page
            query = query._replace(before=page[-1].id)

    def assert_sound(self) -> None:
        """Check every invariant that can be read off the store."""
        assert list(self.app.store.check()) == []
        now = self.app.store.now()
        for job in self.records():
            assert violations(job, self.app.store.attempts(job.id), now) == []
