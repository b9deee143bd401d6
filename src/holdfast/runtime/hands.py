"""What the attempts of one worker do their steps with."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.client.registry import Registry
from holdfast.client.settings import Settings
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Store
from holdfast.runtime.committer import Committer
from holdfast.runtime.telemetry.watch import Watch
from holdfast.runtime.threads import Threads

_PATIENCE: Micros = 2 * SECOND
"""The longest pause between two tries of a step that keeps its slot."""
_MOST_THREADS = 64


@dataclass(frozen=True)
class Hands:
    """The worker's own, for every attempt."""

    store: Store
    registry: Registry
    settings: Settings
    draw: Callable[[], float]
    ids: Callable[[int], list[str]]
    patience: Micros = _PATIENCE
    watch: Watch | None = None

    @functools.cached_property
    def committer(self) -> Committer:
        """Where checkpoints meet."""
        return Committer(self.store)

    @functools.cached_property
    def threads(self) -> Threads:
        """Where the plain functions among the steps of asynchronous workflows run."""
        return Threads(_MOST_THREADS)
