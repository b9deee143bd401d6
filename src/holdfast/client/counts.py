"""How many jobs there are, by state and by queue."""

from collections.abc import Mapping

from holdfast.domain.job import State


class Counts(dict[str, int]):
    """Jobs by state, every state present; `queues` has the same per queue."""

    def __init__(self, counted: Mapping[tuple[str, State], int]) -> None:
        super().__init__({state.value: 0 for state in State})
        self.queues: dict[str, dict[str, int]] = {}
        for (queue, state), jobs in sorted(counted.items()):
            self[state.value] += jobs
            by_state = self.queues.setdefault(queue, {each.value: 0 for each in State})
            by_state[state.value] += jobs

    @property
    def total(self) -> int:
        """All jobs in the store."""
        return sum(self.values())

    @property
    def unfinished(self) -> int:
        """Jobs that are not in a terminal state."""
        return sum(self[state.value] for state in State if state not in (State.SUCCEEDED, State.DEAD, State.CANCELLED))
