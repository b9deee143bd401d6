"""Letting actors loose at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0


def together(*actors: Callable[[], T]) -> list[T]:
    """Run every actor in its own thread, all released by one barrier; give their answers, or raise what one raised."""
    gate = threading.Barrier(len(actors))

    def run(actor: Callable[[], T]) -> T:
        gate.wait(PATIENCE)
        return actor()

    with ThreadPoolExecutor(len(actors)) as pool:
        return [done.result(PATIENCE) for done in [pool.submit(run, actor) for actor in actors]]
