"""The geometry of charts. What is computed here is drawn by a template, as SVG and without any script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 6, 8, 20
_LINES = 4
_STEPS = (1, 2, 2.5, 5, 10)

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its name, and the stretches of it that have values."""

    name: str
    stretches: tuple[str, ...]
    """Each as the points of an SVG polyline."""
    area: tuple[str, ...]
    """The same stretches, closed along the axis."""
    last: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that is ready to be drawn."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    marks: tuple[tuple[float, str], ...]
    """Horizontal rules: how far down, and what they stand for."""
    times: tuple[tuple[float, str], ...]
    """Labels along the bottom: how far right, and the text."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to draw."""
        return not any(line.stretches for line in self.lines)


def chart(title: str, unit: str, series: Mapping[str, Values], *, seconds: int) -> Chart:
    """Lay out some series of equal length that end now and began so many seconds ago."""
    top = _ceiling(max((value for values in series.values() for value in values if value is not None), default=0.0))
    lines = tuple(_line(name, values, top) for name, values in series.items())
    marks = tuple((_down(top * n / _LINES, top), _label(top * n / _LINES)) for n in range(_LINES + 1))
    width = WIDTH - _LEFT - _RIGHT
    minutes = range(seconds // 60 + 1)
    times = tuple(
        (round(_LEFT + width * (1 - minute * 60 / seconds), 1), "now" if minute == 0 else f"−{minute} min")
        for minute in reversed(minutes)
    )
    return Chart(title, unit, lines, marks, times)


def _line(name: str, values: Values, top: float) -> Line:
    step = (WIDTH - _LEFT - _RIGHT) / max(len(values) - 1, 1)
    stretches: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((round(_LEFT + place * step, 1), _down(value, top)))
    drawn = [stretch for stretch in stretches if stretch]
    ground = HEIGHT - _BOTTOM
    areas = ([(stretch[0][0], ground), *stretch, (stretch[-1][0], ground)] for stretch in drawn)
    last = next((value for value in reversed(values) if value is not None), None)
    return Line(name, tuple(_points(_visible(s)) for s in drawn), tuple(_points(area) for area in areas), last)


def _visible(stretch: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """A single value would be a line without length."""
    if len(stretch) > 1:
        return stretch
    ((x, y),) = stretch
    return [(x - 2, y), (x + 2, y)]


def _points(stretch: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in stretch)


def _down(value: float, top: float) -> float:
    ground = HEIGHT - _BOTTOM
    return round(ground - (ground - _TOP) * (value / top), 1)


def _ceiling(highest: float) -> float:
    """Round up to a number that divides well."""
    if highest <= 0:
        return 1.0
    size: float = 10 ** floor(log10(highest))
    return next(step * size for step in _STEPS if step * size >= highest * 0.999)


def _label(value: float) -> str:
    if value >= 10_000:  # noqa: PLR2004 - room for five signs
        return f"{value / 1000:g}k"
    return f"{value:.3g}"


def share(part: float, whole: float, width: int = 100) -> int:
    """Give a part of a whole as a width; what is there at all is at least one wide."""
    return 0 if part <= 0 or whole <= 0 else max(1, min(width, ceil(part / whole * width)))
