"""The jobs that a claim has picked, before it takes them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from holdfast.domain.job import State
from holdfast.domain.ring import Offer
from holdfast.stores.sqlite.rows import Told


class Picked(NamedTuple):
    """The jobs to be claimed."""

    seqs: str
    """As JSON."""
    jobs: dict[tuple[str, State], int]
    """How many there are by queue and state."""
    told: Told | None = None
    """What `claimed` will tell of them, if that is known already."""


NOBODY = Picked("[]", {})


def by_turns(chosen: Sequence[tuple[str, Offer]]) -> Picked:
    """Give jobs that were chosen by turns, as `lines.Queue` offers them."""
    states = Counter((queue, offer.ref[1]) for queue, offer in chosen)
    seqs = to_json([offer.ref[0] for _, offer in chosen]).decode()
    return Picked(seqs, {(queue, State(state)): jobs for (queue, state), jobs in states.items()})


def by_place(queue: str, chosen: list[list[Any]]) -> Picked:
    """Give jobs of a queue that were chosen by turns, as `lines.Stands` offers them."""
    if not chosen:
        return NOBODY
    places = [told[-1] for told in chosen]
    retrying = sum([place & 1 for place in places])
    jobs = {(queue, State.QUEUED): len(chosen) - retrying, (queue, State.RETRYING): retrying}
    return Picked(to_json([place >> 1 for place in places]).decode(), jobs, chosen)
