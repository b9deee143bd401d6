"""How leases are extended: those of a batch by one statement, and what their holders tell of progress with them."""

import json
from collections.abc import Sequence

from holdfast.domain.job import PLAIN, State
from holdfast.domain.moments import Micros
from holdfast.domain.move import Answer, refusal
from holdfast.port.store import Beat
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.guests import OwnConnection
from holdfast.stores.sqlite.sql import SQL

_PROGRESS = (rows.flow_text(PLAIN), rows.place_in_flow("progress"))


def extend(db: OwnConnection, beats: Sequence[Beat], now: Micros, lease: Micros) -> list[Answer]:
    """Extend the leases that are still held; answer each."""
    batch = json.dumps(beats)
    db.execute(SQL["heartbeat"], (batch, now, lease))
    if news := [beat for beat in beats if beat.progress is not None]:
        db.execute(SQL["progress"], (json.dumps(news), *_PROGRESS))
    found = json.loads(db.execute(SQL["leases"], (batch,)).get)
    return [_still_held(beat, *row) for beat, row in zip(beats, found, strict=True)]


def _still_held(beat: Beat, state: str | None, token: int, lease_id: str | None, cancel: int) -> Answer:
    if state == State.RUNNING and (token, lease_id) == (beat.token, beat.lease_id):
        return Answer.CANCEL_REQUESTED if cancel else Answer.OK
    return refusal(None if state is None else State(state))
