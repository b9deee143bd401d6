"""Counters and histograms of one process, and what those of several are together.

They are plain numbers under one lock: counting costs a fraction of a microsecond, and what was counted can be handed
to another process as JSON. Prometheus' own library is needed only where they are shown.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from holdfast.runtime.telemetry.families import FAMILIES, Family

Labels = tuple[str, ...]
Key = tuple[str, Labels]


class Totals(NamedTuple):
    """What was counted up to a moment."""

    numbers: Mapping[Key, float]
    """Counters and gauges."""
    spans: Mapping[Key, list[float]]
    """Histograms: how many fell into each bucket, the last one without an end, and then the sum of all."""

    def as_json(self) -> list[Any]:
        """Give them as JSON can hold them."""
        return [[[*key, value] for key, value in part.items()] for part in self]


NOTHING = Totals({}, {})


def from_json(value: list[Any]) -> Totals:
    """Read what `as_json` gave."""
    numbers, spans = ({(name, tuple(labels)): each for name, labels, each in part} for part in value)
    return Totals(numbers, spans)


def counters(totals: Totals) -> Totals:
    """Give what stays true when its process has ended: all but the gauges."""
    return Totals({k: v for k, v in totals.numbers.items() if FAMILIES[k[0]].sort == "counter"}, totals.spans)


def together(several: Iterable[Totals]) -> Totals:
    """Add up what several processes counted."""
    numbers: dict[Key, float] = {}
    spans: dict[Key, list[float]] = {}
    parts = list(several)
    for key, value in chain.from_iterable(part.numbers.items() for part in parts):
        before = numbers.get(key)
        if before is None:
            numbers[key] = value
        else:
            numbers[key] = max(before, value) if FAMILIES[key[0]].together == "max" else before + value
    for key, counted in chain.from_iterable(part.spans.items() for part in parts):
        spans[key] = [a + b for a, b in zip(spans[key], counted, strict=True)] if key in spans else list(counted)
    return Totals(numbers, spans)


class Tally:
    """Counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Key, float] = {}
        self._spans: dict[Key, list[float]] = {}

    def count(self, family: Family, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = (family.name, labels)
        with self._lock:
            self._numbers[key] = self._numbers.get(key, 0) + by

    def observe(self, family: Family, seconds: float, *labels: str) -> None:
        """Put a duration into a histogram."""
        key = (family.name, labels)
        with self._lock:
            counted = self._spans.get(key)
            if counted is None:
                counted = self._spans[key] = [0.0] * (len(family.buckets) + 2)
            counted[bisect_left(family.buckets, seconds)] += 1
            counted[-1] += seconds

    def totals(self) -> Totals:
        """Give what was counted so far."""
        with self._lock:
            return Totals(dict(self._numbers), {key: list(counted) for key, counted in self._spans.items()})
