"""Keeps Python's cycle collector from walking many small values again and again: of a large batch while it is being
made, and of all that a worker holds.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_LARGE = 1_000
_SELDOM = 50_000


@contextmanager
def uncollected(objects: int) -> Iterator[None]:
    """Keep the collector off many small values that cannot form cycles, while they are made and afterwards: it would
    walk all of them at once, because there are so many new ones. So they count as old: that is what freezing makes of
    them.
    """
    if objects < _LARGE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else somebody wants something to stay frozen
            gc.freeze()
            gc.unfreeze()
        gc.enable()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector begin after 50,000 new objects instead of 700, for as long as a worker runs: the jobs in its
    hands are more than 700 and no cycles, and to walk them took a sixth of its time. A choice of the user's own that
    is higher, or to have no collector, is left alone.
    """
    young, *older = gc.get_threshold()
    if young == 0 or young >= _SELDOM:
        yield
        return
    gc.set_threshold(_SELDOM, *older)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _SELDOM:  # nobody has chosen otherwise meanwhile
            gc.set_threshold(young, *older)
