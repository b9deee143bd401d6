"""One line of a report: what was measured, ours, what it is compared with, and the goal."""

from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """One measured figure. A ratio is better when larger; a plain value is better when smaller."""

    what: str
    ours: float
    floor: float | None
    unit: str
    goal: float | None = None
    larger_is_better: bool = True

    @property
    def score(self) -> float:
        """What is compared with the goal."""
        return self.ours / self.floor if self.floor else self.ours

    @property
    def holds(self) -> bool:
        """Whether the goal is reached; without one, nothing is missed."""
        if self.goal is None:
            return True
        return self.score >= self.goal if self.larger_is_better else self.score <= self.goal

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as a table's row: measure, ours, against, ratio or value, goal."""
        sign = "≥" if self.larger_is_better else "≤"
        mark = "" if self.goal is None else "✓ " if self.holds else "✗ "
        unit = f" {self.unit}" if self.unit and not self.floor else ""
        figure = f"{self.score:,.0f}" if self.score >= 1000 else f"{self.score:.2f}"  # noqa: PLR2004 - enough digits
        if 0 < self.score < 0.01:  # noqa: PLR2004 - more digits
            figure = f"{self.score:.4f}"
        return (
            self.what,
            f"{_number(self.ours)} {self.unit}" if self.floor else "",
            "" if self.floor is None else _number(self.floor),
            f"{mark}{figure}{unit}",
            "" if self.goal is None else f"{sign} {self.goal:g}{unit}",
        )

    @property
    def sentence(self) -> str:
        """The line in words, for whoever watches."""
        _, ours, against, score, goal = self.cells
        mark = score[:2] if score[:2] in ("✓ ", "✗ ") else "– "
        score = score.removeprefix(mark)
        told = f"{ours} against {against}, ratio {score}" if self.floor else score
        return f"{mark}{self.what}: {told}" + (f" (goal {goal})" if goal else "")


def typical(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Give the round whose ratio is the median of all: a machine's speed drifts, and both sides drift with it."""
    return sorted(rounds, key=lambda sides: sides[0] / sides[1])[len(rounds) // 2]


HEADINGS = ("measure", "ours", "against", "ratio or value", "goal")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"  # noqa: PLR2004 - enough digits
