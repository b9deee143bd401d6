"""What a chaos run asks for, what must become of it, and what is to go wrong: pure, and the same for the same seed.

A mix of everything a worker can be doing when it is struck: plain jobs, blocking and not; jobs that fail at first, for
good, or are rejected; jobs with a key that is offered twice; pipelines and workflows of several steps, some with a
sleep in the middle.
"""

import random
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from holdfast.domain.job import Cause, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.domain.retry import Retry

LASTING = Retry.fixed(0.1, retries=500)
"""No job may die of the faults: only of what it was made for."""
HOPELESS = Retry.exponential(base=0.1, max_attempts=3, jitter=0.1)
CRASH_CAP = 500
STEPS = 5
NAP: Micros = SECOND // 5
_PACE = 400
"""Up to this many jobs, each takes its full time; more than that share it."""
_KEYED = 6
"""Of so many jobs, one has a key."""
_MIX = ("work",) * 7 + ("awork",) * 5 + ("flaky",) * 3 + ("pipe",) * 3 + ("flow", "aflow", "reject", "hopeless")
STEPPED = frozenset({"pipe", "flow", "aflow"})
NAPPING = frozenset({"flow", "aflow"})

Sort = Literal["kill", "freeze"]


class Orders(NamedTuple):
    """What the user asks for."""

    jobs: int
    workers: int
    kills: int
    freezes: int
    seed: int


class Task(NamedTuple):
    """One job to be asked for. Its first `misses` attempts fail; each body takes `effort` seconds."""

    number: int
    kind: str
    effort: float
    misses: int = 0
    key: str | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """What its handler is given."""
        return {"number": self.number, "effort": self.effort, "misses": self.misses}

    @property
    def cause(self) -> Cause | None:
        """What it must die of, if it must."""
        return {"reject": Cause.REJECTED, "hopeless": Cause.EXHAUSTED}.get(self.kind)

    @property
    def state(self) -> State:
        """How it must end."""
        return State.DEAD if self.cause else State.SUCCEEDED

    @property
    def steps(self) -> tuple[str, ...]:
        """Its steps, in order, without its sleep."""
        return tuple(step(place) for place in range(STEPS)) if self.kind in STEPPED else ()


class Strike(NamedTuple):
    """One fault to come: after `pause` seconds, on a worker that `pick` (0 to 1) chooses among the busy."""

    sort: Sort
    pause: float
    pick: float


class Plan(NamedTuple):
    """All that will be asked for, in shares: after each but the last, a fault."""

    shares: tuple[tuple[Task, ...], ...]
    strikes: tuple[Strike, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every job."""
        return tuple(task for share in self.shares for task in share)


def step(place: int) -> str:
    """Name a step by its place."""
    return f"s{place}"


def make(orders: Orders) -> Plan:
    """Plan exactly what was asked for; the seed decides on the rest."""
    draw = random.Random(orders.seed)  # noqa: S311 - a plan that can be repeated
    pace = min(1.0, _PACE / orders.jobs)
    kinds = [_MIX[n % len(_MIX)] for n in range(orders.jobs)]
    draw.shuffle(kinds)
    tasks = [_task(number, kind, draw, pace) for number, kind in enumerate(kinds)]
    sorts: list[Sort] = ["kill"] * orders.kills
    sorts += ["freeze"] * orders.freezes
    draw.shuffle(sorts)
    strikes = tuple(Strike(sort, draw.uniform(0, 0.15), draw.random()) for sort in sorts)
    number = len(strikes) + 1
    cuts = [place * orders.jobs // number for place in range(number + 1)]
    shares = tuple(tuple(tasks[start:end]) for start, end in pairwise(cuts))
    return Plan(shares, strikes)


def _task(number: int, kind: str, draw: random.Random, pace: float) -> Task:
    effort = round((draw.uniform(0.02, 0.1) if kind in STEPPED else draw.uniform(0.05, 0.4)) * pace, 4)
    misses = draw.choice((1, 1, 2)) if kind == "flaky" else 0
    key = f"{kind}:{number}" if number % _KEYED == 0 else None
    return Task(number, kind, effort, misses, key)
