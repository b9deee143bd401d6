"""Slots: how many handlers may run at once, where several kinds of lanes share one limit."""

from queue import Empty, SimpleQueue


class Slots:
    """So many slots. A queue of the standard library's, because taking and giving back costs it next to nothing, and
    a slot is taken for every step of every pipeline.
    """

    def __init__(self, number: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(number):
            self._free.put(None)
        self.take = self._free.get
        """Take a slot, once there is one."""

    def try_take(self) -> bool:
        """Take a slot, if there is one."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    def give_back(self) -> None:
        """Let somebody else have a slot."""
        self._free.put(None)
