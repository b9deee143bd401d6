"""Which process this is, for what must not cross a fork: asked for every job, and so without a call."""

import os


class _Process:
    """The process that this code runs in."""

    def __init__(self) -> None:
        self._look()
        os.register_at_fork(after_in_child=self._look)

    def _look(self) -> None:
        self.id = os.getpid()


PROCESS = _Process()
"""One, of which a fork's child has a copy that knows better."""
