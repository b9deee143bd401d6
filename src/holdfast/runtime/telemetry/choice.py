"""What a process tells about its jobs, as its application has chosen. A choice loads what it needs when it is made."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.client.registry import Registry
from holdfast.domain.errors import BadInput
from holdfast.domain.job import NewJob
from holdfast.domain.redaction import Redaction
from holdfast.port.store import Store
from holdfast.runtime.telemetry.journal import Journal
from holdfast.runtime.telemetry.journal import log as journal
from holdfast.runtime.telemetry.watch import Watch, Watches

if TYPE_CHECKING:
    from holdfast.runtime.telemetry.gauges import StoreGauges
    from holdfast.runtime.telemetry.metrics import Metrics
    from holdfast.runtime.telemetry.tally import Totals


class Telemetry:
    """The watches of one application."""

    def __init__(self, registry: Registry, redaction: Redaction, store: Callable[[], Store]) -> None:
        self._registry = registry
        self._redaction = redaction
        self._store = store
        self._chosen: dict[str, Watch] = {}
        self.watch: Watches | None = None
        """All that is on, as one; None as long as nothing is."""

        self.metrics: Metrics | None = None
        """What this process has counted, if metrics are on."""

    @cached_property
    def _gauges(self) -> "StoreGauges":
        from holdfast.runtime.telemetry.gauges import StoreGauges

        return StoreGauges(self._store)

    def totals(self) -> "Totals":
        """Give what the store says of the jobs, and what this process has counted if metrics are on."""
        from holdfast.runtime.telemetry.tally import NOTHING, together

        return together([self._gauges.totals(), NOTHING if self.metrics is None else self.metrics.totals()])

    def turn_on(self, *, metrics: bool = False, tracing: Any = False, sentry: bool = False, logs: bool = False) -> None:
        """Turn some of it on; what is on stays as it is."""
        if metrics and self.metrics is None:
            from holdfast.runtime.telemetry.metrics import Metrics

            self._chosen["metrics"] = self.metrics = Metrics(self._registry)
        if tracing and "tracing" not in self._chosen:
            self._chosen["tracing"] = _tracing(None if tracing is True else tracing)
        if sentry and "sentry" not in self._chosen:
            self._chosen["sentry"] = _sentry(self._redaction)
        if logs:
            self._chosen.setdefault("logs", Journal())
        self.watch = Watches(tuple(self._chosen.values())) if self._chosen else None

    def of_worker(self) -> Watches | None:
        """Give the watches of a worker, with the journal if somebody reads it."""
        if not journal.isEnabledFor(logging.DEBUG) or "logs" in self._chosen:
            return self.watch
        return Watches((*self._chosen.values(), Journal()))

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """Surround the storing of jobs in a caller's own transaction; whether it commits is not for us to count."""
        if self.watch is None:
            yield jobs
            return
        with self.watch.enqueuing(jobs) as sent:
            yield sent


def _tracing(provider: Any) -> Watch:
    try:
        from holdfast.runtime.telemetry.tracing import Tracing
    except ModuleNotFoundError as error:
        raise _missing("Tracing", "tracing", error) from error
    return Tracing(provider)


def _sentry(redaction: Redaction) -> Watch:
    try:
        from holdfast.runtime.telemetry.sentry import Sentry
    except ModuleNotFoundError as error:
        raise _missing("Sentry", "sentry", error) from error
    return Sentry(redaction)


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> BadInput:
    return BadInput(f"{what} needs {error.name}; install it with: pip install 'holdfast[{extra}]'.")
