"""How long a job waits after a failed attempt, and how many attempts it gets.

A policy is plain data, stored with the job as a short text (`spec`), so that whoever reaps a lost job applies the same
policy as the worker that would have run it. Every policy declares a lower and an upper bound for each delay; the draw
that picks a
point between them is an argument, never made here.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Literal, Self

from holdfast.domain.errors import BadInput
from holdfast.domain.moments import DAY, SECOND, Micros, duration

LONGEST: Micros = 365 * DAY
DEFAULT_ATTEMPTS = 5
_MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Retry:
    """One backoff policy: `Retry.table`, `Retry.exponential` or `Retry.fixed`."""

    shape: Literal["table", "exponential", "fixed"]
    delays: tuple[Micros, ...]
    max_attempts: int
    jitter: float = 0.0
    max_delay: Micros = LONGEST

    @classmethod
    def table(cls, *delays: float | timedelta, max_attempts: int = DEFAULT_ATTEMPTS) -> Self:
        """Wait the n-th delay after the n-th attempt; the last one repeats."""
        if not delays:
            msg = "Retry.table needs at least one delay."
            raise BadInput(msg)
        return cls("table", tuple(duration(d, "a retry delay") for d in delays), _attempts(max_attempts))

    @classmethod
    def exponential(
        cls,
        base: float | timedelta = 2,
        *,
        max_attempts: int = DEFAULT_ATTEMPTS,
        jitter: float = 0.0,
        max_delay: float | timedelta | None = None,
    ) -> Self:
        """Wait base * 2**(n-1) after the n-th attempt, plus up to `jitter` (a share of the delay) on top."""
        if not 0 <= jitter <= 1:
            msg = f"jitter is a share between 0 and 1, not {jitter!r}."
            raise BadInput(msg)
        cap = LONGEST if max_delay is None else duration(max_delay, "max_delay")
        return cls("exponential", (duration(base, "base"),), _attempts(max_attempts), float(jitter), cap)

    @classmethod
    def fixed(cls, delay: float | timedelta, *, retries: int = 3) -> Self:
        """Wait the same delay after every failure, `retries` times."""
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            msg = f"retries must be a whole number of 0 or more, not {retries!r}."
            raise BadInput(msg)
        return cls("fixed", (duration(delay, "a retry delay"),), _attempts(retries + 1))

    def bounds(self, attempt: int) -> tuple[Micros, Micros]:
        """Give the shortest and the longest wait after this attempt (the first is 1)."""
        if self.shape == "exponential":
            low = min(self.delays[0] << min(attempt - 1, 62), self.max_delay)
        else:
            low = self.delays[min(attempt, len(self.delays)) - 1]
        return low, low + int(low * self.jitter)

    def delay(self, attempt: int, draw: float) -> Micros:
        """Pick the wait after this attempt; `draw` in [0, 1) says where between the bounds."""
        low, high = self.bounds(attempt)
        return low + int((high - low) * draw)

    @property
    def spec(self) -> str:
        """The policy as the text stored with a job (all but `max_attempts`, which the job carries itself)."""
        delays = ",".join(map(str, self.delays))
        return f"{self.shape}:{delays}:{self.jitter!r}:{self.max_delay}"


@lru_cache(maxsize=1024)
def parse(spec: str, max_attempts: int) -> Retry:
    """Read back what `Retry.spec` wrote."""
    shape, delays, jitter, max_delay = spec.split(":")
    if shape not in ("table", "exponential", "fixed"):
        msg = f"A stored retry policy has the unknown shape {shape!r}."
        raise BadInput(msg)
    return Retry(shape, tuple(map(int, delays.split(","))), max_attempts, float(jitter), int(max_delay))  # type: ignore[arg-type]


def _attempts(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_ATTEMPTS:
        msg = f"max_attempts must be a whole number from 1 to {_MOST_ATTEMPTS}, not {value!r}."
        raise BadInput(msg)
    return value


DEFAULT_RETRY = Retry("exponential", (2 * SECOND,), DEFAULT_ATTEMPTS, 0.1)
