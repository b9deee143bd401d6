"""How often one caller may ask: a bucket for each, filled at a rate and emptied by requests."""

from collections import OrderedDict

_MOST = 10_000
"""The callers that are remembered; whoever has not asked for longest is forgotten first, with a full bucket."""


class Rate:
    """The buckets of one server."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> float:
        """Take one request out of a caller's bucket; gives the seconds to wait if it is empty, and 0 if it is not."""
        left, seen = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + max(now - seen, 0.0) * self._rate)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate
