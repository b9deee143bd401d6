"""The witness: sits between a worker and its store and writes down each write that the store refused.

It changes nothing: what the store answers is what the worker is told.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from holdfast.chaos.ledger import Ledger
from holdfast.domain.job import JobRecord
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, Held, Move
from holdfast.port.store import Beat, Claim, Store
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.telemetry.watch import Watch

_REFUSED = frozenset({Answer.ALREADY_CLAIMED, Answer.NO_OP_TERMINAL, Answer.ABSENT})


class Witness(Watch):
    """Watches one worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def store(self, store: Store) -> Store:
        """Give a store whose refusals are written down."""
        return cast("Store", WitnessedStore(store, self._refused))

    def lost(self, attempt: Attempt) -> None:
        """Write that the worker itself let go of a job, before or after it was told to."""
        self._ledger.write("lost", attempt.job.id, attempt.job.token)

    def _refused(self, job: str, token: int, verb: str) -> None:
        self._ledger.write("refused", job, token, note=verb)


class WitnessedStore:
    """A store whose refusals are told; all else it leaves to the store itself."""

    def __init__(self, store: Store, tell: Callable[[str, int, str], None]) -> None:
        self._store = store
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, moves: Sequence[Move]) -> list[Answer]:
        """Write each move whose guard holds."""
        return self._heard(moves, self._store.commit(moves))

    def exchange(self, moves: Sequence[Move], want: Claim) -> tuple[list[Answer], list[JobRecord]]:
        """Commit and then claim, in one trip."""
        answers, claimed = self._store.exchange(moves, want)
        return self._heard(moves, answers), claimed

    def heartbeat(self, beats: Sequence[Beat], lease: Micros) -> list[Answer]:
        """Extend leases."""
        answers = self._store.heartbeat(beats, lease)
        for beat, answer in zip(beats, answers, strict=True):
            if answer in _REFUSED:
                self._tell(beat.id, beat.token, "heartbeat")
        return answers

    def _heard(self, moves: Sequence[Move], answers: list[Answer]) -> list[Answer]:
        for move, answer in zip(moves, answers, strict=True):
            if answer in _REFUSED and isinstance(move.guard, Held):
                self._tell(move.id, move.guard.token, move.verb.value)
        return answers
