"""The way of starts and steps into the store: those that come together, of whatever jobs, share a commit."""

from collections.abc import Sequence

from holdfast.client.sharing import Sharing
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Store


class Committer(Sharing[Move, Answer]):
    """One worker's commits outside its own trips."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def _write(self, batch: Sequence[Move]) -> Sequence[Answer]:
        return self._store.commit(batch)
