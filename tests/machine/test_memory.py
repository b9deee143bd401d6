"""The walk itself is sound: the reference equals the reference, and a store that strays is caught."""

import pytest
from hypothesis import Phase

from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer
from holdfast.port.clock import Clock
from holdfast.port.store import Beat
from holdfast.stores.memory import MemoryStore
from holdfast.testing.machine import compare


def test_memory_does_as_memory_does() -> None:
    compare(lambda clock: MemoryStore(clock=clock), walks=50)


def test_a_store_that_strays_is_caught() -> None:
    class Careless(MemoryStore):
        def heartbeat(self, beats: list[Beat], lease: Micros) -> list[Answer]:  # type: ignore[override]
            return super().heartbeat([beat for beat in beats if beat.begun], lease) + [
                Answer.OK for beat in beats if not beat.begun
            ]

    def careless(clock: Clock) -> MemoryStore:
        return Careless(clock=clock)

    with pytest.raises(AssertionError, match="the store answered"):
        compare(careless, phases=[Phase.generate])
