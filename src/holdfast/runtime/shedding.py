"""Shedding: jobs that find a limit full go, where they are not just to wait for it."""

from holdfast.client.family import tend
from holdfast.client.settings import Settings
from holdfast.domain import events, excess
from holdfast.domain.errors import IllegalMove
from holdfast.domain.job import JobRecord
from holdfast.domain.move import Answer, Move
from holdfast.port.store import Store

BATCH = 500


def shed(store: Store, settings: Settings) -> int:
    """Cancel what is beyond full limits; give the number. A store without such limits answers at once."""
    going: list[tuple[JobRecord, Move]] = []
    for one in store.overflow(BATCH):
        try:
            move = excess.decide(one, settings.retention)
        except IllegalMove:  # it is on its way out already
            continue
        going.append((one.job, events.told(one.job, move, public=settings.events)))
    if not going:
        return 0
    answers = store.commit([move for _, move in going])
    gone = [pair for pair, answer in zip(going, answers, strict=True) if answer is Answer.OK]
    tend(store, settings.retention, gone, public=settings.events)
    return len(gone)
