"""What the store itself says: how many jobs there are, how many are dead, how long the oldest has been due, how full
the limits are.

Every process that shows metrics asks the store the same, and is told the same; whoever adds up over processes takes the
largest. The answer is kept for a moment, so that nobody can make the store work by asking often.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from holdfast.client.limits import able, rules_of, standing_of
from holdfast.domain.errors import StoreError
from holdfast.domain.job import State
from holdfast.domain.limits import NO_RULES
from holdfast.domain.moments import SECOND
from holdfast.port.store import Store
from holdfast.runtime.telemetry import families
from holdfast.runtime.telemetry.families import OTHER
from holdfast.runtime.telemetry.metrics import MOST_QUEUES
from holdfast.runtime.telemetry.tally import Key, Totals

FRESH = 2.0
"""Seconds for which an answer is good."""


class StoreGauges:
    """The gauges of one store."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._asked = -FRESH
        self._known = Totals({}, {})

    def totals(self) -> Totals:
        """Give what the store says; only that it is out of reach, if it is."""
        with self._lock:
            if time.monotonic() - self._asked >= FRESH:
                try:
                    self._known = Totals(measured(self._store()), {})
                except StoreError:
                    self._known = Totals({(families.STORE_UP.name, ()): 0}, {})
                self._asked = time.monotonic()
            return self._known


def measured(store: Store) -> dict[Key, float]:
    """Ask a store for all its gauges."""
    counts, since, paused, now = store.counts(), store.due_since(), store.paused(), store.now()
    queues = sorted({queue for queue, _ in counts} | paused)
    label = _labels(queues)
    numbers: dict[Key, float] = {(families.STORE_UP.name, ()): 1, (families.WORKERS.name, ()): len(store.workers())}
    jobs: Counter[tuple[str, str]] = Counter()
    for (queue, state), count in counts.items():
        jobs[label[queue], state.value] += count
    for queue in {label[queue] for queue in queues}:
        for state in State:
            numbers[families.JOBS.name, (queue, state.value)] = jobs[queue, state.value]
        numbers[families.DEAD.name, (queue,)] = jobs[queue, State.DEAD.value]
        numbers[families.OLDEST.name, (queue,)] = 0
        numbers[families.PAUSED.name, (queue,)] = 0
    for queue, at in since.items():
        key = (families.OLDEST.name, (label.get(queue, OTHER),))
        numbers[key] = max(numbers.get(key, 0), (now - at) / SECOND)
    for queue in paused:
        numbers[families.PAUSED.name, (label[queue],)] = 1
    return numbers | _governed(store, len(paused))


def _governed(store: Store, paused: int) -> dict[Key, float]:
    """Ask what is paused and how full the limits are; a store without rules is asked for them and nothing else."""
    rules = rules_of(store) if able(store) else NO_RULES
    held = {"queue": paused, "tenant": len(rules.tenants), "kind": len(rules.kinds)}
    numbers: dict[Key, float] = {(families.PAUSES.name, (what,)): count for what, count in held.items()}
    for rule, used in standing_of(store, rules, MOST_QUEUES):
        for limit, gates in zip(rule.limits, used, strict=True):
            labels = (rule.queue, limit.per, limit.what)
            numbers[families.CAPACITY.name, labels] = limit.capacity
            numbers[families.USED.name, labels] = max((gate.used for gate in gates), default=0)
            numbers[families.FULL.name, labels] = sum(gate.full for gate in gates)
    return numbers


def _labels(queues: Iterable[str]) -> dict[str, str]:
    """Give each queue its label: its name, unless there are too many."""
    return {queue: queue if place < MOST_QUEUES else OTHER for place, queue in enumerate(queues)}
